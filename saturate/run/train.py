"""Train: settings -> assembly -> step -> loader -> loop. `--help-all` lists every setting.

run/build.py makes the assembly: data, plans, tasks, the network.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from saturate.settings import preflight

INTERRUPT = preflight.begin("train.py")
from saturate.engine.distributed import ProcessWorld, leave, prepare_process  # noqa: E402

# isort: split
# The import above must come first: it sets OpenMP's variables, which torch reads when it loads.
import torch  # noqa: E402

from saturate.contracts import Loader, PeerLost, UserError  # noqa: E402
from saturate.dataset.images.columns import slow_to_decode  # noqa: E402
from saturate.dataset.open import cache_folder, fewest  # noqa: E402
from saturate.dataset.stores.mirror import Mirror, mirrored  # noqa: E402
from saturate.dataset.val_split import Trained, sketched  # noqa: E402
from saturate.engine import (  # noqa: E402
    autotune,
    graphed,
    memory,
    schedules,
    unkillable,
)
from saturate.engine.checkpoint import (  # noqa: E402
    Checkpoints,
    Progress,
    Resume,
    set_aside,
)
from saturate.engine.failures import Failures  # noqa: E402
from saturate.engine.loop import Training  # noqa: E402
from saturate.engine.step import Step  # noqa: E402
from saturate.engine.stop import notify  # noqa: E402
from saturate.engine.validation import Target, Validation  # noqa: E402
from saturate.loaders import LOADERS, first_batches, open_loader  # noqa: E402
from saturate.loaders._dali import hold_decoder  # noqa: E402
from saturate.models import Unusable  # noqa: E402
from saturate.plan import draws  # noqa: E402
from saturate.report import ceilings, record  # noqa: E402
from saturate.report.console import Console  # noqa: E402
from saturate.report.hardware import is_throttled, sources, versions  # noqa: E402
from saturate.report.meter import Meter  # noqa: E402
from saturate.report.phases import Phases  # noqa: E402
from saturate.report.profile import profiler  # noqa: E402
from saturate.report.reporter import Reporter  # noqa: E402
from saturate.report.sinks import require_trackers  # noqa: E402
from saturate.report.summary import describe, left_out, rejected  # noqa: E402
from saturate.run import batch_size, build  # noqa: E402
from saturate.run.build import Assembly, Resolved  # noqa: E402
from saturate.run.predict import predict  # noqa: E402
from saturate.settings import config as schema  # noqa: E402
from saturate.settings.config import recipe  # noqa: E402
from saturate.settings.run import Run  # noqa: E402
from saturate.system import bytecode, exit_codes  # noqa: E402
from saturate.system.resources import cores  # noqa: E402
from saturate.system.timeline import Timeline  # noqa: E402
from saturate.system.triton_kernels import hash_ahead  # noqa: E402
from saturate.tasks import COMPARED, tables  # noqa: E402
from saturate.tasks.initial_state import Start  # noqa: E402
from saturate.tasks.kind import TaskKind  # noqa: E402


def rehearse(device: torch.device) -> None:
    """Do what makes the start of a trainer shorter that takes this process over."""
    imported = {name for name, spec in LOADERS.items() if spec.module in sys.modules}
    # the second imports the first
    if imported & {"dali-gpu", "dali-fed"} and "dali-cpu" not in imported:
        hold_decoder(device.index)


# with --unkillable: returns once a generation
unkillable.begin(sys.argv[1:], rehearse)
DEVICE = prepare_process()  # before anything starts CUDA or threads
TIMELINE = Timeline(unkillable.began_s)  # a spare has waited before
preflight.imported()
if DEVICE.type == "cuda":
    hash_ahead()
TIMELINE.mark("imports")


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """How the steps of a run are launched, and which loader feeds them."""

    step: Step
    graphs: graphed.Outcome
    loader_choice: autotune.Choice
    loader: Loader | None  # None: to evaluate


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known of a run before its first step."""

    assembly: Assembly
    chosen: Chosen
    resumed: bool

    def described(self) -> dict[str, Any]:
        """Return it by the keys of a summary."""
        settings, plan = self.assembly.settings, self.assembly.plan
        kind, columns = settings.kind, self.assembly.splits["train"].columns
        return {
            "arch": settings.arch,
            "precision": settings.precision,
            "image_size": settings.native.size,
            "workers": settings.workers,
            "rejected": rejected(self.assembly.splits),
            "left_out": left_out(self.assembly.splits),
            "files": slow_to_decode(columns, settings.native.size),
            # stand-ins of the synthetic loader are few
            "learning": {"fewest": fewest(columns)}
            if settings.config.data.data
            else {},
            "loaders": build.can_open(
                kind, settings.config, gpu=settings.device.type == "cuda"
            ),
            "unit": kind.unit,
            "cores_a_rank": self.chosen.step.world.cores(),
            "accumulate": settings.batching.accumulate,
            **self.chosen.loader_choice.facts(),
            **self.chosen.graphs.facts(),
            **kind.facts(plan),
            **schedules.facts(plan),
        }

    def messages(self) -> dict[str, str]:
        """Return by title what the run leaves out, or does otherwise than it was asked to."""
        settings = self.assembly.settings
        config = settings.config
        messages = {"loaders": self.chosen.loader_choice.message(settings.kind.unit)}
        if config.run.evaluate:
            return messages
        return {
            **messages,
            "imports": bytecode.compiled_anew(torch),
            "weights": settings.start.weights_message(resumed=self.resumed),
            **schedules.limits(
                self.assembly.plan,
                self.assembly.optimisation,
                asked=settings.batching.size,
                repeats=config.augmentation.repeats,
                val_every=config.run.val_every if config.data.data else 0,
            ),
        }


def train(
    start: Start,
    resume: Resume,
    world: ProcessWorld,
    console: Console,
    *,
    upload: Mirror | None,
) -> int:
    """Train, or evaluate, and return the exit code. Raises UserError, Unusable and NotFinite."""
    run = start.config.run
    settings = build.resolve(start, world)
    batch_size.require_gpu(settings)
    require_trackers(run.log)
    output = world.first(lambda: folder_of(settings, resume))
    with ExitStack() as stack:
        claim(output, resume, world, stack)
        checkpoint = resume.of_data(world)
        trained = start.trained_on(checkpoint)
        settings, splits = build.open_data(settings, world, console, trained)
        TIMELINE.mark("data")
        # After the scan: ranks must join within --timeout-minutes, and a scan may take longer.
        stack.enter_context(world.joined(run.timeout_minutes))
        if unkillable.memory is not None and is_throttled(world.device):
            notify(f"{unkillable.FLAG}: {world.named}: its GPU's clock is held down")
        # Must precede Phases(): it records events on the current stream.
        stack.enter_context(world.own_stream())
        before = checkpoint.get("config", {}).get("batch_size")
        sized = partial(batch_size.sized, before=before, make_step=step_of)
        settings = sized(settings, splits, world, console)
        assembly = build.build(settings, splits, world, console, resume=resume)
        torch.backends.cudnn.benchmark = schedules.searches_kernels(
            start.config, assembly.plan, restarts=unkillable.memory is not None
        )
        step = step_of(assembly, world)
        set_later_aside(output, resume, world)
        resume.into(
            assembly.module, step, optimizer=start.config.optimisation.optimizer
        )
        TIMELINE.mark("network")
        # Free the CUDA graphs first: destroy_process_group hangs while one holds an NCCL operation.
        stack.callback(step.forget)
        explained = partial(memory.explained, assembly.plan.batches.rows)
        with explained():
            chosen = choose(assembly, step, resume, console, stack)
        TIMELINE.mark("loader")
        meter = Meter(
            world,
            min_window_s=run.min_window_s,
            synchronise=world.synchronise,
            stage_seconds=chosen.loader.stage_seconds if chosen.loader else None,
        )
        reporter = reporter_of(assembly, chosen, meter, resume, console, output)
        stack.callback(reporter.close)  # after an error too: what was said is kept
        profile = profiler(
            output, enabled=run.profile, rank=world.rank, warn=reporter.warn
        )
        training = training_of(
            assembly,
            chosen,
            reporter,
            meter=meter,
            profiler_step=stack.enter_context(profile),
            progress=resume.progress_in(output, world, reporter.validates_anew),
            checkpoints=checkpoints_of(
                assembly, chosen, resume, trained, output, upload
            ),
        )
        with training.stop.listening(), explained():
            finished = training.validate() if run.evaluate else training.fit()
        reporter.finish(
            asdict(training.progress),
            failed=training.failures.ids,
            finished=finished,
            loader=chosen.loader,
        )
        reporter.close()  # its files are uploaded, too
        training.checkpoints.finish(stopped=not finished)
        if not finished:
            return exit_codes.of_signal(training.stopped_by())
        training.require_finite()
        return exit_codes.of_run(lost_files=reporter.lost)


def folder_of(settings: Resolved, resume: Resume) -> Path:
    """Return the folder of the run; a new one is named by the clock."""
    load = settings.config.loading
    name = f"{settings.arch}-{load.loader}-b{load.batch_size}"
    return record.folder(settings.config.run, resume.path, name=name)


def claim(output: Path, resume: Resume, world: ProcessWorld, stack: ExitStack) -> None:
    """Hold the folder of the run until `stack` ends. Raises UserError."""
    claimed = record.claimed(
        output,
        resuming=resume.within(output),
        # a run that ended before its first checkpoint may be begun again
        may_hold=record.BEGUN + record.VALIDATED if resume.auto else (),
        # that of a generation before, on a host which is cut off and hears of its end later
        patience_s=unkillable.patience_s(),
    )
    world.first(lambda: stack.enter_context(claimed))
    if unkillable.memory is not None and world.local_size < world.size:
        unkillable.memory.share(output, world)


def step_of(assembly: Assembly, world: ProcessWorld) -> Step:
    """Make the training step of a run."""
    model = assembly.settings.config.model
    seed = assembly.settings.config.run.seed
    return Step(
        module=assembly.module,
        task=assembly.task,
        optimisation=assembly.optimisation,
        precision=assembly.identity.precision,
        world=world,
        draw_key=partial(draws.key, seed, draws.Purpose.MODEL),
        phases=Phases(world.device),
        compiled=model.compile,
    )


def set_later_aside(output: Path, resume: Resume, world: ProcessWorld) -> None:
    """Move away what an earlier part of the run has written behind the step at which it goes on, before Reporter cuts
    the files.
    """
    if resume.within(output):
        cut = (record.METRICS, record.RESULTS)
        world.first(lambda: set_aside(output, resume.progress.step, cut))
    elif resume.auto:
        world.first(lambda: record.keep_aside(output))


def choose(
    assembly: Assembly,
    step: Step,
    resume: Resume,
    console: Console,
    stack: ExitStack,
) -> Chosen:
    """Capture the step's graphs, find the fastest loader beside them, and open it until `stack` ends."""
    settings = assembly.settings
    config = settings.config
    evaluates = config.run.evaluate
    # before a loader is open, whose threads break a capture
    make_batches = partial(first_batches, assembly.feed)
    graphs = graphed.prepare(
        step,
        make_batches,
        step.world,
        False if evaluates else config.model.graphs,
        one_shape=settings.kind.graphs,
    )
    if not evaluates:
        graphed.arrange_buckets(step, make_batches)
    TIMELINE.mark("graphs")
    measured_under = {
        **autotune.timed(config.flat(), assembly.plan),
        "arch": settings.arch,
        "precision": settings.precision,
        "image_size": settings.native.size,
        "workers": settings.workers,
        "manifest": assembly.identity.manifest,
    }
    choice = autotune.choose(
        settings.loaders,
        partial(open_loader, feed=assembly.feed),
        step=step,
        samples=assembly.plan.global_batch_size,
        epoch=measured_under["epoch"],
        run_steps=schedules.run_steps(assembly.optimisation, assembly.plan.steps(0)),
        answers=autotune.Answers(
            cache_folder(config.data.manifest_dir), measured_under, step.world
        ),
        before=resume.content.get("loader"),
        info=console.info,
    )
    TIMELINE.mark("choosing the loader")
    loader = None
    if not evaluates:
        loader = stack.enter_context(open_loader(choice.loader, assembly.feed))
    return Chosen(step=step, graphs=graphs, loader_choice=choice, loader=loader)


def reporter_of(
    assembly: Assembly,
    chosen: Chosen,
    meter: Meter,
    resume: Resume,
    console: Console,
    output: Path,
) -> Reporter:
    """Begin to report a run: say what was chosen for it, and what is not as in its checkpoint."""
    settings = assembly.settings
    config, start, world = settings.config, settings.start, chosen.step.world
    facts = RunFacts(assembly=assembly, chosen=chosen, resumed=bool(resume.content))
    of_val = config.flat(), assembly.identity.val_manifest
    anew = resume.validates_otherwise(*of_val) and not config.run.evaluate
    reporter = Reporter(
        output,
        world=world,
        console=console,
        meter=meter,
        description=describe(
            config,
            facts.described(),
            limits=facts.messages(),
            loader=chosen.loader,
            world=world,
            cores=cores(),
        ),
        task=settings.kind,
        compared=COMPARED,
        pixels=settings.pixels,
        resumed_at=resume.resumed_at,
        evaluated=start.used,
        classes=assembly.splits["train"].columns.classes,
        timeline=TIMELINE,
        validates_anew=bool(anew),
    )
    notes = chosen.loader.notes if chosen.loader else ()
    advice = recipe(config, settings.arch)
    console.info(*notes, *start.messages, *assembly.messages, *advice)
    resume.tell(
        reporter,
        config=config.flat(),
        ordering=assembly.identity.ordering,
        samples_a_step=assembly.identity.samples_a_step,
        val_manifest=assembly.identity.val_manifest,
    )
    return reporter


def checkpoints_of(
    assembly: Assembly,
    chosen: Chosen,
    resume: Resume,
    trained: Trained | None,
    output: Path,
    upload: Mirror | None,
) -> Checkpoints:
    """Return the checkpoints of a run."""
    settings = assembly.settings
    run = settings.config.run
    used = settings.start.kept(
        settings.kind, assembly.val_plan, settings.pixels, size=settings.native.size
    )
    return Checkpoints(
        folder=output,
        world=chosen.step.world,
        module=assembly.module,
        step=chosen.step,
        about={
            **assembly.identity.kept(),
            "loader": chosen.loader_choice.loader,
            **used,
            **sketched(assembly.splits["train"].columns, trained),
        },
        keep=run.keep,
        keep_best=run.keep_best,
        upload=upload,
        saved=resume.progress.step if resume.within(output) else 0,
    )


def training_of(
    assembly: Assembly,
    chosen: Chosen,
    reporter: Reporter,
    *,
    meter: Meter,
    profiler_step: Callable[[], None],
    progress: Progress,
    checkpoints: Checkpoints,
) -> Training:
    """Return the loop of a run."""
    settings = assembly.settings
    config, kind = settings.config, settings.kind
    failures = {
        split: Failures(
            split=split,
            samples=plan.samples,
            name_of=feed.source.name,
            report=reporter,
        )
        for split, plan, feed in (
            ("train", assembly.plan, assembly.feed),
            ("val", assembly.val_plan, assembly.val_feed),
        )
    }
    open_validation = partial(
        open_loader, chosen.loader_choice.loader, assembly.val_feed
    )
    validation = Validation(
        world=chosen.step.world,
        task=assembly.val_task,
        best=kind.figures[0],
        precision=settings.precision,
        plan=assembly.val_plan,
        open_loader=open_validation if config.data.data else None,
        checkpoints=checkpoints,
        failures=failures["val"],
        report=reporter,
        of_average=settings.start.of_average,
        tta=config.run.tta,
        target=target_of(config.optimisation.until, kind),
    )
    return Training(
        world=chosen.step.world,
        plan=assembly.plan,
        loader=chosen.loader,
        step=chosen.step,
        validation=validation,
        checkpoints=checkpoints,
        failures=failures["train"],
        report=reporter,
        measure_ceilings=ceilings.measure,
        run=config.run,
        optimisation=assembly.optimisation,
        bytes_of=partial(kind.bytes_read, assembly.splits["train"].columns),
        meter=meter,
        profiler_step=profiler_step,
        progress=progress,
    )


def target_of(until: str | None, kind: TaskKind) -> Target | None:
    """Return what --until asks for, which tasks.kind_of has checked."""
    if until is None:
        return None
    name = until.partition("=")[0]
    return Target(until, next(one for one in kind.figures if one.name == name))


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
        try:
            words = schema.flags_of(sys.argv[1:], tables())
            minutes = schema.build(words, "flags").run.timeout_minutes
        except UserError:  # each host is to say it
            with suppress(UserError, PeerLost):
                world.meet(1.0)
            raise
        world.meet(minutes)
        # from here on rank 0 reads files of settings and weights: other hosts may have others, or none
        preset = world.first(lambda: schema.preset_of(words))
        config = schema.checked(words, preset)
        console = Console(enabled=world.rank == 0, quiet=config.run.quiet)
        if world.size > 1:
            world.agree({**schema.alike(config), "code": sources()})
            if line := world.differing(versions()):
                console.warn(f"the ranks differ: {line}")
            config = schema.of_ranks(config, world.first(config.flat))
        run = config.run
        with ExitStack() as stack:
            mirrors: list[Mirror | None] = []
            world.first(lambda: mirrors.append(fetched(run, stack)))
            resume = world.first(lambda: Resume.find(run, weights=config.model.weights))
            start = Start.from_config(
                config,
                {*words, *preset},
                resume.content,
                path=resume.path,
                origin=resume.origin,
            )
            if start.config.run.predict:
                return predict(start, resume, world, console)
            upload = mirrors[0] if mirrors else None  # rank 0's
            return train(start, resume, world, console, upload=upload)
    except KeyboardInterrupt:  # before there was anything to save
        return exit_codes.INTERRUPTED
    except Exception as error:
        return exit_codes.of_error(error, world.complain, in_its_words=Unusable)


def program() -> NoReturn:
    """Train as the command line says, and end the process with the run's exit code."""
    leave(main())
