"""Predict: files without classes -> plan -> loader -> network -> a table. train.py hands over to it."""

from __future__ import annotations

import time
from contextlib import ExitStack

import torch
from torch import nn

from saturate.contracts import UserError, counted
from saturate.dataset.unlabelled import open_unlabelled
from saturate.engine import memory, precision
from saturate.engine.checkpoint import Resume
from saturate.engine.distributed import ProcessWorld, Vote
from saturate.engine.evaluate import evaluate
from saturate.engine.stop import StopRequest
from saturate.loaders import open_loader
from saturate.report import record
from saturate.report.console import Console
from saturate.settings.config import Config
from saturate.system import fonts
from saturate.tasks import architecture, kind_of
from saturate.tasks.initial_state import Start
from saturate.tasks.kind import Asked


class Mirrored(nn.Module):
    """A classifier whose logits are the mean of two views: a batch as it is, and mirrored left to right."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [B, C] of images [B, 3, H, W], or of clips [B, 3, T, H, W]."""
        both: torch.Tensor = self.module(images) + self.module(images.flip(-1))
        return both / 2


def predict(
    config: Config, start: Start, resume: Resume, world: ProcessWorld, console: Console
) -> int:
    """Write what a network says of the files of --predict, and return the exit code. Raises UserError."""
    run = config.run
    load = config.loading
    assert run.predict is not None
    kind = kind_of(config)
    if not kind.predicts:
        raise UserError(
            f"--predict is not for {kind.unpredicted or f'--task {kind.name}'}"
        )
    on_gpu = world.device.type == "cuda"
    loader_name = kind.may_open(config, gpu=on_gpu)[0]
    if loader_name == "synthetic":
        raise UserError("--loader synthetic reads no file; --predict needs another one")
    registry, arch = architecture(kind, config.model.arch)
    classes = start.classes(registry, arch)
    if classes is None and kind.has_classes:
        known = "a checkpoint of this program, or torchvision's --weights by their name"
        raise UserError(
            f"{start.origin} does not name its classes, which --predict needs: {known}"
        )
    precise = precision.choose(
        config.model.precision, world.device, on_cpu=kind.cpu_precision
    )
    native = start.native(registry, arch)
    output = world.first(lambda: record.folder(run, resume.path, name="predict"))
    with ExitStack() as stack:
        claim = record.claimed(
            output, resuming=resume.within(output), may_hold=record.PREDICTED
        )
        world.first(lambda: stack.enter_context(claim))
        with console.counting("predict") as progress:
            found = open_unlabelled(
                run.predict,
                config.data,
                content="videos" if kind.medium == "videos" else "images",
                read_delay_s=load.read_delay_ms / 1e3,
                progress=progress,
            )
        # after the scan: joining has a time-out
        stack.enter_context(world.joined(run.timeout_minutes))
        stack.enter_context(world.own_stream())
        asked = kind.predicting(
            config, found.split, classes.names if classes else (), output
        )
        world.agree({"precision": precise, "files": asked.split.columns.fingerprint})
        splits = {"train": asked.split, "val": asked.split}
        _, plan = kind.plans(config, splits, native, seed=run.seed, **world.place)
        heads = kind.building(config, asked.split.columns)
        net = start.network(
            registry,
            arch,
            (load.batch_size, *plan.batches.sample_shape),
            heads,
            console,
            world.file,
        )
        module = net.to(world.device).to(
            memory_format=memory.CHANNELS_LAST[1 + len(plan.batches.sample_shape)]
        )
        pixels = start.pixels(native, precision.dtype_of(precise))
        _, feed = kind.feeds(
            config,
            splits,
            (plan, plan),
            (asked.task, asked.task),
            pixels=pixels,
            device=world.device,
            workers=world.workers(load.workers),
        )
        console.info(*start.told)
        stop = StopRequest()
        began = time.perf_counter()
        item = kind.unit.removesuffix("/s")
        total = plan.samples * plan.views
        with (
            stop.listening(),
            memory.validating(plan.batches.rows),
            open_loader(loader_name, feed) as loader,
            console.epoch(title="predicting", total=total, item=item) as bar,
        ):
            outcome = evaluate(
                Mirrored(module) if run.tta == "flip" else module,
                loader.batches(0, 0),
                task=asked.task,
                precision=precise,
                world=world,
                vote=Vote(world),
                stop=stop,
                # ranks may have unlike numbers of samples
                advance=lambda samples: bar.update(
                    samples=min(bar.samples + samples * world.size, total)
                ),
            )
        if outcome is None:
            console.info("stopped: no prediction is written")
            return 128 + max(world.gather(stop.signal or 0))
        answers = outcome.result(world)
        undecodable = dict.fromkeys(outcome.failed, "its pixels cannot be decoded")
        errors = found.errors | {
            place: undecodable[sample]
            for place, sample in enumerate(found.samples.tolist())
            if sample in undecodable
        }
        if world.rank == 0:
            files = Asked(
                names=found.names,
                samples=found.samples,
                errors=errors,
                form=run.predict_format,
            )
            output.mkdir(parents=True, exist_ok=True)
            written = asked.write(output, answers, files)
            without = f", {len(errors)} of them with an error" if errors else ""
            took = time.perf_counter() - began
            console.info(
                f"predicted {counted(len(found.names), 'file')} in {took:.1f} s{without}"
            )
            console.info(*answers.get("notes", ()), *(f"{path}" for path in written))
            line = fonts.unseen(classes.names) if classes else None
            if line and output / "drawn" in written:
                console.warn(line)
        world.barrier()  # the files are whole before any rank leaves
    return 0
