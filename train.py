"""Train: config -> manifest -> plan -> loader -> model -> step -> loop. `torchrun train.py --help` lists every setting."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial

INTERRUPT = signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # while imports run, Ctrl-C has nothing to tidy up
from engine.distributed import ProcessWorld, cores, leave, prepare_process  # noqa: E402

DEVICE = prepare_process()  # before anything starts CUDA or threads

import torch  # noqa: E402

from cli import one_of  # noqa: E402
from config import Config, as_yaml, parse, recipe  # noqa: E402
from contracts import Feed, NotFinite, Pixels, UserError  # noqa: E402
from dataset.sources import are_files  # noqa: E402
from engine import checkpoint, memory, optimizers, precision, schedules  # noqa: E402
from engine.loop import Run  # noqa: E402
from engine.step import Step  # noqa: E402
from loaders import open_loader  # noqa: E402
from models import Unusable  # noqa: E402
from plan import draws  # noqa: E402
from report import ceilings, record  # noqa: E402
from report.console import Console  # noqa: E402
from report.meter import Meter  # noqa: E402
from report.phases import Phases  # noqa: E402
from report.profile import profiler  # noqa: E402
from report.reporter import Reporter, facts  # noqa: E402
from tasks import compared, kind_of, task_with_arch, task_with_loader  # noqa: E402


def train(config: Config, world: ProcessWorld, console: Console) -> int:
    """One run; the exit code. Raises UserError and NotFinite."""
    run, opt, aug, load, model = config.run, config.optimisation, config.augmentation, config.loading, config.model
    kind = kind_of(config)
    registry = kind.registry
    if (scored := kind.score(config, console)) is not None:
        return scored
    files = config.data.data is None or are_files(config.data.source, config.data.data)
    auto = kind.default_loader(gpu=DEVICE.type == "cuda", files=files)
    loader_name = one_of("--loader", load.loader, kind.loaders, auto=auto, elsewhere=task_with_loader)
    arch = one_of("--arch", model.arch or kind.arch, registry.names(), elsewhere=task_with_arch)
    precise = precision.choose(model.precision, DEVICE, on_cpu=kind.cpu_precision)
    native = registry.native(arch, model.weights)
    native = native._replace(size=aug.image_size or native.size)
    workers = world.workers(load.workers)
    resume = checkpoint.find(run.resume, run.output, required=run.evaluate and not model.weights)
    output = record.folder(run.output, resume, evaluate=run.evaluate, name=f"{arch}-{loader_name}-b{load.batch_size}")
    with ExitStack() as stack:
        goes_on = run.resume == "auto" or (resume is not None and resume.parent == output)
        stack.enter_context(record.claimed(output, resuming=goes_on, enabled=world.rank == 0))
        splits = kind.splits(config, loader_name, console)
        train_set, val_set = splits["train"].columns, splits["val"].columns
        colours = {"mean": aug.mean or native.mean, "std": aug.std or native.std}
        named = {"arch": arch, "precision": precise, "image_size": native.size, "workers": workers, "unit": kind.unit}
        plan, val_plan = kind.plans(config, splits, native, seed=run.seed, world_size=world.size, rank=world.rank)
        task, val_task = kind.tasks(config, splits, registry.auxiliary_weight(arch))
        shape = plan.sample_shape
        torch.backends.cudnn.benchmark = plan.resident == 1  # its search for the fastest kernel begins anew with each shape
        stack.enter_context(world.joined())
        stack.enter_context(world.own_stream())
        output = world.gather(output)[0]  # a new one is named by rank 0's clock
        identity = world.agree({"arch": arch, "classes": list(train_set.classes), "manifest": train_set.fingerprint})
        state = checkpoint.read(resume, evaluate=run.evaluate, **identity) if resume else None
        torch.manual_seed(draws.key(run.seed, draws.Purpose.MODEL))
        net, new = registry.build(arch, shape=(load.batch_size, *shape), weights=model.weights, **kind.building(config, train_set))
        module = net.to(DEVICE).to(memory_format=memory.CHANNELS_LAST[1 + len(shape)])
        step = Step(
            module=world.wrap(module, compiled=model.compile, mode=model.compile_mode),
            task=task,
            optimizer=optimizers.build(module, **optimizers.settings(opt)),
            precision=precise,
            accumulate=opt.accumulate,
            clip_grad_norm=opt.clip_grad_norm,
            world=world,
            draw_key=partial(draws.key, run.seed, draws.Purpose.MODEL),
            phases=Phases(DEVICE),
        )
        common = Feed(
            plan=plan,
            source=splits["train"].source,
            columns=train_set,
            targets=task.targets,
            pixels=Pixels(**colours, dtype=str(precision.DTYPES[precise]).removeprefix("torch.")),
            device=DEVICE,
            workers=workers,
            threads=load.decode_threads or workers,
            reader=load.reader,
            pinned=load.pin_memory,
        )
        val_feed = replace(common, plan=val_plan, source=splits["val"].source, columns=val_set, targets=val_task.targets)
        with memory.explained(step, load.batch_size, shape, world):
            loader = None if run.evaluate else stack.enter_context(open_loader(loader_name, common))
        checkpoint.restore(state, module, None if run.evaluate else step, opt.optimizer)  # what does not fit leaves the run's files alone
        meter = Meter(world, min_window_s=run.min_window_s, synchronise=world.synchronise)
        told = facts(config, loader=loader, loader_name=loader_name, world=world, cores=cores(), **named, **kind.facts(plan))
        resumed_at = state["progress"]["step"] if state else 0 if run.resume == "auto" else None
        reporter = Reporter.opened(
            output,
            world=world,
            console=console,
            meter=meter,
            facts=told,
            task=kind,
            compared=compared(),
            config_text=as_yaml(config),
            resumed_at=resumed_at,
            **colours,
        )
        stack.callback(reporter.close)
        anew = [f"--weights are for other classes: {', '.join(new)} start anew"] if new else []
        console.info(*getattr(loader, "notes", ()), *anew, *recipe(config, arch))
        training = Run(
            world=world,
            plan=plan,
            step=step,
            module=module,
            task=val_task,
            precision=precise,
            loader=loader,
            open_validation=None if config.data.data is None else lambda: open_loader(loader_name, val_feed),
            validation_plan=val_plan,
            learning_rate=partial(schedules.learning_rate, **schedules.settings(opt)),
            report=reporter,
            meter=meter,
            phases=step.phases,
            measure_ceilings=ceilings.measure if run.ceilings else None,
            profile=stack.enter_context(profiler(output, enabled=run.profile, rank=world.rank, warn=reporter.warn)),
            output=output,
            identity={**identity, "config": config.flat()},
            **opt.model_dump(include={"epochs", "steps", "seconds"}),
            **run.model_dump(include={"val_every", "log_every", "save_every_steps", "save_every_minutes"}),
            bytes_of=lambda ids: kind.bytes_read(train_set, ids),
            name_of=lambda split, sample: splits[split].source.name(sample),
        )
        training.resume(state)
        with training.stop.listening(), memory.explained(step, load.batch_size, shape, world):
            finished = training.validate() if run.evaluate else training.fit()
        reporter.finish(progress=asdict(training.progress), failed=training.failed, finished=finished, loader=loader)
        return 0 if finished else 128 + max(world.gather(training.stop.signal or 0))


def main() -> int:
    world = ProcessWorld(DEVICE)
    try:
        signal.signal(signal.SIGINT, INTERRUPT)
        return train(parse(sys.argv[1:]), world, Console(enabled=world.rank == 0))
    except KeyboardInterrupt:  # before there was anything to save
        return 130
    except (UserError, NotFinite, Unusable, PermissionError) as error:
        world.complain(f"train.py: {error}")
        return 3 if isinstance(error, NotFinite) else 2


if __name__ == "__main__":
    leave(main())
