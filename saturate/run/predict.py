"""Predict: files without classes -> plan -> loader -> network -> a table. train.py hands over to it."""

from __future__ import annotations

import time
from contextlib import ExitStack

from saturate.contracts import UserError, counted
from saturate.engine import memory
from saturate.engine.checkpoint import Resume
from saturate.engine.distributed import ProcessWorld, Vote
from saturate.engine.evaluate import Outcome, evaluate
from saturate.engine.stop import StopRequest
from saturate.loaders import open_loader
from saturate.report import record
from saturate.report.console import Console
from saturate.run import build
from saturate.run.build import Assembly, Resolved
from saturate.system import exit_codes, fonts
from saturate.tasks.initial_state import Start
from saturate.tasks.kind import Asked


def predict(start: Start, resume: Resume, world: ProcessWorld, console: Console) -> int:
    """Write what a network says of the files of --predict, and return the exit code. Raises UserError."""
    run = start.config.run
    assert run.predict is not None
    settings = build.resolve(start, world)
    classes = require_predictable(settings)
    output = world.first(lambda: record.folder(run, resume.path, name="predict"))
    with ExitStack() as stack:
        claim = record.claimed(
            output, resuming=resume.within(output), may_hold=record.PREDICTED
        )
        world.first(lambda: stack.enter_context(claim))
        opened = build.open_files(settings, run.predict, console, flag="--predict")
        # After the scan: ranks must join within --timeout-minutes, and a scan may take longer.
        stack.enter_context(world.joined(run.timeout_minutes))
        stack.enter_context(world.own_stream())
        asked = settings.kind.predicting(opened.split, classes, output)
        assembly = build.build(
            settings, asked.splits, world, console, predicted=asked.task
        )
        console.info(*start.messages)
        stop = StopRequest()
        began = time.perf_counter()
        outcome = answered(assembly, stop, world, console)
        if outcome is None:
            console.info("stopped: no prediction is written")
            return exit_codes.of_signal(max(world.gather(stop.signal or 0)))
        answers = outcome.result(world)
        undecodable = dict.fromkeys(outcome.failed, "its pixels cannot be decoded")
        errors = opened.errors | {
            place: undecodable[sample]
            for place, sample in enumerate(opened.samples.tolist())
            if sample in undecodable
        }
        if world.rank == 0:
            files = Asked(
                names=opened.names,
                samples=opened.samples,
                errors=errors,
                form=run.predict_format,
            )
            output.mkdir(parents=True, exist_ok=True)
            written = asked.write(output, answers, files)
            without = f", {len(errors)} of them with an error" if errors else ""
            took = time.perf_counter() - began
            console.info(
                f"predicted {counted(len(opened.names), 'file')} in {took:.1f} s{without}"
            )
            notes = (*answers.get("notes", ()), asked.summed_up(answers))
            console.info(*filter(None, notes), *(f"{path}" for path in written))
            line = fonts.unseen(classes)
            if line and output / "drawn" in written:
                console.warn(line)
        world.barrier()  # the files are whole before any rank leaves
    return exit_codes.DONE


def require_predictable(settings: Resolved) -> tuple[str, ...]:
    """Return the names of the network's classes, () where a task has none.

    Raises UserError where it has no predictions, or no names.
    """
    kind, start = settings.kind, settings.start
    if not kind.predicts:
        raise UserError(
            f"--predict is not for {kind.unpredicted or f'--task {kind.name}'}"
        )
    if settings.loaders[0] == "synthetic":
        raise UserError("--loader synthetic reads no file; --predict needs another one")
    classes = start.classes(settings.registry, settings.arch)
    if classes is None and kind.has_classes:
        known = "a checkpoint of this program, or torchvision's --weights by their name"
        raise UserError(
            f"{start.origin} does not name its classes, which --predict needs: {known}"
        )
    return classes.names if classes else ()


def answered(
    assembly: Assembly, stop: StopRequest, world: ProcessWorld, console: Console
) -> Outcome | None:
    """Return the outcome of a pass over the files; None where a signal has stopped it."""
    settings, plan, module = assembly.settings, assembly.val_plan, assembly.module
    item = settings.kind.unit.removesuffix("/s")
    total = plan.samples * plan.views
    with (
        stop.listening(),
        memory.validating(plan.batches.rows),
        open_loader(settings.loaders[0], assembly.val_feed) as loader,
        console.epoch(title="predicting", total=total, item=item) as bar,
    ):
        return evaluate(
            module,
            loader.batches(0, 0),
            tta=settings.config.run.tta,
            task=assembly.val_task,
            precision=settings.precision,
            world=world,
            vote=Vote(world),
            stop=stop,
            # ranks may have unlike numbers of samples
            advance=lambda samples: bar.update(
                samples=min(bar.samples + samples * world.size, total)
            ),
        )
