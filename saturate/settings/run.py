"""Settings of what a run keeps, says and measures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, PositiveInt

from saturate.settings.cli import FolderOrUrl, Settings
from saturate.settings.types import AUGMENTED, Facts, NotNegative, setting
from saturate.system.urls import bare


def _without_tensorboard(value: Any) -> Any:
    if "tensorboard" in (value or ()):
        raise ValueError("got 'tensorboard', which is always written; leave it out")
    return value


class Run(Settings):
    """The files that a run keeps, what it says and what it measures."""

    facts: ClassVar[Facts] = Facts(
        changes_rate=False, resume="free", evaluation="own", recipe=False
    )

    config: Path | None = setting(None, ranks="own")
    """YAML preset; flags win over it."""
    output: FolderOrUrl = setting(None, ranks="own")
    """Folder of checkpoints, TensorBoard events, metrics.jsonl and summary.json, or a URL such as
    s3://bucket/run: the run then works in runs/bucket/run, uploads that after each checkpoint and in the end,
    and --resume auto first fetches what the URL has. Default: a new one below runs/."""
    timeout_minutes: Annotated[FiniteFloat, Field(gt=0, le=100_000)] = 10.0
    """Minutes that a rank waits for others, to begin with and in a step, before the run ends with a line that
    names them."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = setting(0, resume="named")
    """Seed: the key of every random number of the run."""
    resume: str | None = setting(None, ranks="own")
    """Checkpoint file to continue from; auto = last.pt of --output when there is one."""
    evaluate: bool = False
    """Validate once (with --resume or --weights) and stop. A checkpoint brings its settings and the names of
    its classes; flags win, and are named. The training data need not be there."""
    split: Literal["train", "val", "test"] = setting(
        "val", needs=("evaluate",), tasks=AUGMENTED
    )
    """Split of --data that --evaluate validates on, by the name of its folder, list or annotations."""
    predict: Path | None = None
    """Say what a trained network (--resume or --weights) says of images or videos, and stop: of all below a
    folder, of those of a list with a path a line, or of one file. No classes are needed. What cannot be read
    is a row with an error. As for --evaluate a checkpoint brings its settings."""
    predict_format: Literal["csv", "jsonl", "parquet"] = setting(
        "csv", needs=("predict",), tasks=("classification", "superres", "video")
    )
    """Table of --predict: CSV, a JSON object a line, or parquet."""
    tta: Literal["none", "flip"] = setting(
        "none", tasks=("classification", "video"), evaluation="checkpoint"
    )
    """Views of a sample whose logits a validation and --predict average: flip = as it is and mirrored left to
    right. A validation then takes twice as long."""
    ceilings: Literal["auto"] | bool = "auto"
    """Measure the compute ceiling and the loader ceiling after the first epoch (a few seconds each, longer
    with a slow loader). auto = unless that takes longer than the training; with --seconds always."""
    gpu_price: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """Dollars an hour of one GPU: the closing table then has what the run has cost."""
    profile: bool = False
    """Write a torch.profiler trace of ten steps (after 8 others) below profile/, for ui.perfetto.dev, and a
    table of operators."""
    log: Annotated[
        tuple[Literal["wandb", "mlflow"], ...],
        BeforeValidator(_without_tensorboard),
    ] = ()
    """Trackers that get what TensorBoard gets, where they are installed."""
    val_every: Annotated[int, Field(ge=0)] = 1
    """Epochs between validations; the last epoch is always validated. 0 = never."""
    quiet: bool = False
    """Say nothing but warnings and the closing table."""
    log_every: PositiveInt = 20
    """Steps between two points of the training curves."""
    save_every_steps: Annotated[int, Field(ge=0)] = 0
    """Write last.pt every N steps; 0 = only by --save-every-minutes and at the end of epochs."""
    save_every_minutes: NotNegative = 15.0
    """Write last.pt after this many minutes; 0 = never by time."""
    keep: Annotated[int, Field(ge=0)] = 0
    """Checkpoints that stay beside last.pt as step-N.pt, the newest ones; where last.pt is damaged, --resume
    auto takes the one before."""
    keep_best: Annotated[int, Field(ge=0)] = 0
    """Checkpoints of the best validations that stay beside best.pt, as top1-0.81250-step-000000200.pt."""
    unkillable: PositiveInt | None = None
    """Go on within seconds when ranks die: each rank has a snapshot of every N-th step in memory. Needs
    --resume auto (docs/unkillable.md)."""
    warm_spare: bool = False
    """With --unkillable: beside each rank a process waits which has imported all and has a CUDA context, and takes the
    place of a trainer that dies. It costs memory (docs/unkillable.md)."""
    min_window_s: Annotated[FiniteFloat, Field(gt=0)] = 2.0
    """Shortest window of the rate, seconds."""

    @property
    def folder(self) -> Path | None:
        """The folder of this machine that --output names; None: a new one."""
        if self.output is None:
            return None
        url = bare(self.output).partition("://")[2]
        return Path("runs", url.strip("/")) if url else Path(self.output)

    @property
    def uses(self) -> bool:
        """Whether a network that is trained is used, and nothing is trained."""
        return self.evaluate or self.predict is not None
