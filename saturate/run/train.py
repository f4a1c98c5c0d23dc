"""Train: config -> split -> plan -> loader -> model -> step -> loop. `--help-all` lists every setting."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import NoReturn

from saturate.settings import preflight

INTERRUPT = preflight.begin("train.py")
from saturate.engine.distributed import ProcessWorld, leave, prepare_process  # noqa: E402

# isort: split
# the import above sets OpenMP's variables, and torch loads it
import torch  # noqa: E402

from saturate.contracts import Split  # noqa: E402
from saturate.dataset.model_classes import ModelClasses  # noqa: E402
from saturate.dataset.open import cache_folder  # noqa: E402
from saturate.dataset.stores.mirror import Mirror, mirrored  # noqa: E402
from saturate.dataset.val_split import Trained, sketched  # noqa: E402
from saturate.engine import (  # noqa: E402
    autotune,
    exit_codes,
    graphed,
    memory,
    precision,
    schedules,
    unkillable,
)
from saturate.engine.checkpoint import Checkpoints, Resume, set_aside  # noqa: E402
from saturate.engine.failures import Failures  # noqa: E402
from saturate.engine.loop import Training  # noqa: E402
from saturate.engine.step import Step  # noqa: E402
from saturate.engine.validation import Validation  # noqa: E402
from saturate.loaders import first_batches, open_loader, require_files  # noqa: E402
from saturate.models import AUXILIARY_WEIGHTS, Unusable  # noqa: E402
from saturate.plan import draws  # noqa: E402
from saturate.report import ceilings, record  # noqa: E402
from saturate.report.console import Console  # noqa: E402
from saturate.report.hardware import sources, versions  # noqa: E402
from saturate.report.meter import Meter  # noqa: E402
from saturate.report.phases import Phases  # noqa: E402
from saturate.report.profile import profiler  # noqa: E402
from saturate.report.reporter import Reporter  # noqa: E402
from saturate.report.sinks import require_trackers  # noqa: E402
from saturate.report.summary import describe, left_out, rejected  # noqa: E402
from saturate.run.predict import predict  # noqa: E402
from saturate.settings.config import (  # noqa: E402
    Config,
    alike,
    build,
    checked,
    flags_of,
    for_ranks,
    of_ranks,
    preset_of,
    recipe,
)
from saturate.settings.run import Run  # noqa: E402
from saturate.system.resources import cores  # noqa: E402
from saturate.system.timeline import Timeline  # noqa: E402
from saturate.system.triton_kernels import hash_ahead  # noqa: E402
from saturate.tasks import architecture, compared, kind_of, tables  # noqa: E402
from saturate.tasks._distillation import Distilled, read_teacher  # noqa: E402
from saturate.tasks.initial_state import Start  # noqa: E402
from saturate.tasks.kind import TaskKind  # noqa: E402

unkillable.begin(sys.argv[1:])  # with --unkillable: returns once a generation
DEVICE = prepare_process()  # before anything starts CUDA or threads
TIMELINE = Timeline()
preflight.imported()
if DEVICE.type == "cuda":
    hash_ahead()
TIMELINE.mark("imports")


def opened(
    model: ModelClasses | None,
    trained: Trained | None,
    console: Console,
    config: Config,
) -> tuple[Config, TaskKind, tuple[str, ...], dict[str, Split]]:
    """Open the data of these settings; return them with their task, the loaders that may run, and the splits.

    Raises UserError.
    """
    kind = kind_of(config)
    names = kind.may_open(config, gpu=DEVICE.type == "cuda")
    share = {"trained": trained} if trained and config.data.val_share else {}
    return config, kind, names, kind.splits(config, names[0], console, model, **share)


def train(
    config: Config,
    start: Start,
    resume: Resume,
    world: ProcessWorld,
    console: Console,
    *,
    upload: Mirror | None,
) -> int:
    """Train, or evaluate, and return the exit code. Raises UserError and NotFinite."""
    run = config.run
    load = config.loading
    model = config.model
    sized = for_ranks(config, world.size)
    kind = kind_of(config)
    if (scored := kind.score(config, console)) is not None:
        return scored
    require_trackers(run.log)
    names = kind.may_open(config, gpu=DEVICE.type == "cuda")
    registry, arch = architecture(kind, model.arch)
    precise = precision.choose(model.precision, DEVICE, on_cpu=kind.cpu_precision)
    native = start.native(registry, arch)
    workers = world.workers(load.workers)
    name = f"{arch}-{load.loader}-b{load.batch_size}"
    # a new one is named by rank 0's clock
    output = world.first(lambda: record.folder(run, resume.path, name=name))
    with ExitStack() as stack:
        claim = record.claimed(
            output,
            resuming=resume.within(output),
            # one that was ended before its first checkpoint
            may_hold=record.BEGUN + record.VALIDATED if resume.auto else (),
        )
        world.first(lambda: stack.enter_context(claim))
        trained = start.trained_on(resume.of_data(world))
        start, (config, kind, names, splits) = start.on_its_data(
            partial(opened, start.classes(registry, arch), trained, console)
        )
        sized = for_ranks(config, world.size)
        # files that cannot be read are said here, and not first in the validation
        require_files(names[0], [split.source for split in splits.values()])
        TIMELINE.mark("data")
        train_set = splits["train"].columns
        plan, val_plan = kind.plans(sized, splits, native, seed=run.seed, **world.place)
        opt, told = schedules.of_plan(sized.optimisation, plan)
        task, val_task = kind.tasks(config, splits, AUXILIARY_WEIGHTS.get(arch, 0.0))
        shape = plan.batches.sample_shape
        # cuDNN's search begins anew with each shape
        torch.backends.cudnn.benchmark = not plan.batches.varies
        # behind the scans: joining has a time-out
        stack.enter_context(world.joined(run.timeout_minutes))
        # before Phases, whose timeline is the stream of now
        stack.enter_context(world.own_stream())
        identity = {
            "arch": arch,
            "classes": list(train_set.classes),
            "manifest": train_set.fingerprint,
        }
        # before a network is built
        seen = {"precision": precise, "order of the samples": plan.ordering}
        world.agree({**identity, **seen, "samples a step": plan.global_batch_size})
        resume.fits(task=kind.name, config=config.flat(), world=world, **identity)
        heads = kind.building(config, train_set)
        net = start.network(
            registry,
            arch,
            (plan.batches.rows, *shape),
            heads,
            console,
            world.file,
            train_set.classes if not run.uses else (),
        )
        layout = memory.CHANNELS_LAST[1 + len(shape)]
        module = net.to(DEVICE).to(memory_format=layout)
        if opt.teacher:
            with world.file(opt.teacher) as path:
                teacher = read_teacher(
                    str(path),
                    kind,
                    native,
                    train_set.classes,
                    (plan.batches.rows, *shape),
                    config.augmentation.image_size_start,
                )
            task = Distilled(
                task,
                teacher.to(DEVICE).to(memory_format=layout),
                opt.teacher_share,
                opt.teacher_temperature,
            )
        step = Step(
            module=module,
            task=task,
            optimisation=opt,
            precision=precise,
            world=world,
            draw_key=partial(draws.key, run.seed, draws.Purpose.MODEL),
            phases=Phases(DEVICE),
            compiled=model.compile,
        )
        pixels = start.pixels(native, step.dtype)
        feed, val_feed = kind.feeds(
            config,
            splits,
            (plan, val_plan),
            (task, val_task),
            pixels=pixels,
            device=DEVICE,
            workers=workers,
        )
        # before Reporter cuts the run's files
        cut = (record.METRICS, record.RESULTS)
        if resume.within(output):
            world.first(lambda: set_aside(output, resume.progress.step, cut))
        elif resume.auto:
            world.first(lambda: record.keep_aside(output))
        resume.into(module, step, optimizer=opt.optimizer)
        TIMELINE.mark("network")
        # graphs hold NCCL, and a group with graphs does not end
        stack.callback(step.forget)
        about = {
            "arch": arch,
            "precision": precise,
            "image_size": native.size,
            "workers": workers,
        }
        alike = {
            **autotune.timed(config.flat(), plan),
            **about,
            "manifest": train_set.fingerprint,
        }
        asked = model.graphs if not run.evaluate else False
        explained = partial(memory.explained, plan.batches.rows)
        with explained():  # a loader's threads break a capture
            graphs = graphed.prepare(
                step, partial(first_batches, feed), world, asked, one_shape=kind.graphs
            )
            TIMELINE.mark("graphs")
            choice = autotune.choose(
                names,
                partial(open_loader, feed=feed),
                step=step,
                samples=plan.global_batch_size,
                epoch=alike["epoch"],
                answers=autotune.Answers(
                    cache_folder(config.data.manifest_dir), alike, world
                ),
                before=resume.content.get("loader"),
                say=console.info,
            )
            TIMELINE.mark("choosing the loader")
            loader = (
                None
                if run.evaluate
                else stack.enter_context(open_loader(choice.loader, feed))
            )
        TIMELINE.mark("loader")
        meter = Meter(
            world,
            min_window_s=run.min_window_s,
            synchronise=world.synchronise,
            stage_seconds=loader.stage_seconds if loader else None,
        )
        limits = {"loaders": choice.told(kind.unit)}
        if not run.evaluate:
            limits["weights"] = start.weights_told(resumed=bool(resume.content))
            limits |= schedules.limits(
                plan,
                opt,
                asked=sized.loading.batch_size,
                repeats=config.augmentation.repeats,
                val_every=run.val_every if config.data.data else 0,
            )
        about |= {
            "rejected": rejected(splits),
            "left_out": left_out(splits),
            "loaders": kind.can_open(config, gpu=DEVICE.type == "cuda"),
            "unit": kind.unit,
            "cores_a_rank": world.cores(),
            "accumulate": opt.accumulate,
            **choice.facts(),
            **graphs.facts(),
            **kind.facts(plan),
            **schedules.facts(plan),
        }
        reporter = Reporter(
            output,
            world=world,
            console=console,
            meter=meter,
            description=describe(
                config,
                about,
                limits=limits,
                loader=loader,
                world=world,
                cores=cores(),
            ),
            task=kind,
            compared=compared(),
            pixels=pixels,
            resumed_at=resume.resumed_at,
            evaluated=start.used,
            classes=train_set.classes,
            timeline=TIMELINE,
        )
        stack.callback(reporter.close)  # also after an error: what was told is kept
        notes = loader.notes if loader else ()
        console.info(*notes, *start.told, *told, *recipe(config, arch))
        resume.tell(
            reporter,
            config=config.flat(),
            ordering=plan.ordering,
            samples_a_step=plan.global_batch_size,
        )
        profile = profiler(
            output, enabled=run.profile, rank=world.rank, warn=reporter.warn
        )
        failures = {
            split: Failures(
                split=split,
                samples=its.samples,
                name_of=of.source.name,
                report=reporter,
            )
            for split, its, of in (("train", plan, feed), ("val", val_plan, val_feed))
        }
        kept = start.kept(kind, val_plan, pixels, size=native.size)
        saved = {
            "ordering": plan.ordering,
            "samples_a_step": plan.global_batch_size,
            "loader": choice.loader,
            **identity,
            **kept,
            **sketched(train_set, trained),
        }
        checkpoints = Checkpoints(
            folder=output,
            world=world,
            module=module,
            step=step,
            about=saved,
            keep=run.keep,
            keep_best=run.keep_best,
            upload=upload,
            saved=resume.progress.step if resume.within(output) else 0,
        )
        training = Training(
            world=world,
            plan=plan,
            loader=loader,
            step=step,
            validation=Validation(
                world=world,
                task=val_task,
                best=kind.figures[0],
                precision=precise,
                plan=val_plan,
                open_loader=partial(open_loader, choice.loader, val_feed)
                if config.data.data
                else None,
                checkpoints=checkpoints,
                failures=failures["val"],
                report=reporter,
                of_average=start.of_average,
            ),
            checkpoints=checkpoints,
            failures=failures["train"],
            report=reporter,
            meter=meter,
            profiler_step=stack.enter_context(profile),
            measure_ceilings=ceilings.measure,
            run=run,
            optimisation=opt,
            bytes_of=partial(kind.bytes_read, train_set),
            progress=resume.progress_in(output, world),
        )
        with training.stop.listening(), explained():
            finished = training.validate() if run.evaluate else training.fit()
        reporter.finish(
            asdict(training.progress),
            failed=training.failures.ids,
            finished=finished,
            loader=loader,
        )
        reporter.close()  # its files are uploaded, too
        checkpoints.finish(stopped=not finished)
        return training.exit_code(finished) or (2 if reporter.lost else 0)


def fetched(run: Run, stack: ExitStack) -> Mirror | None:
    """Claim and fetch what a URL of --output has; return what uploads the run's folder, until `stack` ends. None
    where it is no URL.
    """
    mirror = mirrored(
        run.output, run.folder, resuming=run.resume == "auto", trains=not run.uses
    )
    with ExitStack() as held:
        if run.folder and "://" in str(run.output):
            # not over the files of a run that is under way
            held.enter_context(record.claimed(run.folder, resuming=True))
        return stack.enter_context(mirror)


def main() -> int:
    world = ProcessWorld(DEVICE)
    try:
        signal.signal(signal.SIGINT, INTERRUPT)
        words = flags_of(sys.argv[1:], tables())
        world.meet(build(words, "flags").run.timeout_minutes)
        # from here on rank 0 reads files of settings and weights: other hosts may have others, or none
        preset = world.first(lambda: preset_of(words))
        config = checked(words, preset)
        console = Console(enabled=world.rank == 0, quiet=config.run.quiet)
        if world.size > 1:
            world.agree({**alike(config), "code": sources()})
            if line := world.differing(versions()):
                console.warn(f"the ranks differ: {line}")
            config = of_ranks(config, world.first(config.flat))
        run = config.run
        with ExitStack() as stack:
            mirrors: list[Mirror | None] = []
            world.first(lambda: mirrors.append(fetched(run, stack)))
            resume = world.first(lambda: Resume.find(run, weights=config.model.weights))
            start = Start.of(
                config,
                {*words, *preset},
                resume.content,
                path=resume.path,
                origin=resume.origin,
            )
            if start.config.run.predict:
                return predict(start.config, start, resume, world, console)
            upload = mirrors[0] if mirrors else None  # rank 0's
            return train(start.config, start, resume, world, console, upload=upload)
    except KeyboardInterrupt:  # before there was anything to save
        return 130
    except Exception as error:
        return exit_codes.code_of(error, world, said_by=Unusable)


def program() -> NoReturn:
    """Train as the command line says, and end the process with the run's exit code."""
    leave(main())
