"""The network, its task and its precision."""

from __future__ import annotations

from typing import Literal

from saturate.settings.cli import Settings
from saturate.settings.types import CLASSIFIERS, Share, setting

Precision = Literal["auto", "fp16", "bf16", "fp32"]


class Model(Settings):
    """The model and its task."""

    task: str = "classification"
    """Meaning of a batch: {tasks}."""
    arch: str | None = None
    """Architecture of torchvision.models, torchvision.models.detection or torchvision.models.video, by its
    name there; timm/NAME of timm's classifiers (python -m saturate archs lists all); or package.module:function,
    a function of your own that takes num_classes and returns a network. Default: resnet50, for detectors
    fasterrcnn_resnet50_fpn_v2, for videos r3d_18."""
    weights: str | None = setting(
        None, changes_rate=False, evaluation="own", ranks="first"
    )
    """Start from a file of weights (a checkpoint, a state dict, timm's, Lightning's, safetensors, ...), or
    from torchvision's weights of that name (DEFAULT, IMAGENET1K_V1, ...), or timm's of that tag (a1_in1k,
    DEFAULT)."""
    freeze: str | None = setting(None, evaluation="own")
    """Parameters that are not trained: those whose name this regular expression matches from its beginning,
    such as 'conv1|bn1|layer[123]'."""
    precision: Precision = "auto"
    """Precision of the step. auto = fp16 on CUDA; on a CPU bf16 where it is native, else fp32. fp16 and
    bf16 compute by autocast from fp32 weights."""
    stochastic_depth: Share | None = setting(None, tasks=CLASSIFIERS, evaluation="free")
    """Probability that the last residual block is left out in training; it grows linearly from the first.
    Default: the architecture's own."""
    grad_checkpointing: bool = setting(False, evaluation="free")
    """Compute each block of the network again in the backward pass: less memory, a third more time."""
    sync_bn: bool = setting(False, evaluation="free")
    """Batch norm by the statistics of all ranks (SyncBatchNorm)."""
    compile: bool = setting(False, evaluation="own")
    """Compile the model with torch.compile."""
    graphs: Literal["auto"] | bool = setting("auto", evaluation="own")
    """Replay the whole optimiser step as a CUDA graph, with one launch instead of hundreds. auto = on a GPU,
    where every batch has the same shape (of detectors: SSD's) and nothing in the step makes the host wait."""
