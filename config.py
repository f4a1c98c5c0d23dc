"""The typed schema of every setting: one field, its docstring is its --help. A YAML preset is overridden by
flags.

Must not know: any room. What a name means (a task, a loader, an architecture) is checked by train.py against
the room's table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import Field, FiniteFloat, PositiveInt, ValidationError

from cli import Settings, flags, nearest
from contracts import MAX_PIXELS, UserError
from preset import read_preset, shown

PRESETS = Path(__file__).resolve().parent / "configs"

Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Side = Annotated[int, Field(ge=8, le=65_536)]
"""Length in pixels."""
NotNegative = Annotated[FiniteFloat, Field(ge=0)]


class Data(Settings):
    """The data to train on."""

    data: Path | None = None
    """Folder with train/<class>/* and val/<class>/* (ImageNet's own layout), or with lists, train.csv and
    val.csv, with lines 'path label', of videos also 'path label start end'. For detectors it has COCO's
    layout: train2017/, val2017/, annotations/, or that of another tool's export. Not needed with --loader
    synthetic."""
    source: str = "auto"
    """What the images of --data lie in: {sources}; auto = what is found there."""
    exif: Literal["stored", "shown"] = "stored"
    """Images whose EXIF asks viewers to turn them: stored = as their pixels are stored, as torchvision takes
    them; shown = turned, with the boxes, masks and keypoints of annotations that are of what is shown."""
    trust_list: bool = False
    """Begin to train without having opened the files of a list: of each, size and format are read in worker
    processes a few thousand samples ahead. What cannot be read is masked and named."""
    order: Literal["shuffled", "sequential"] = "shuffled"
    """Order of the training samples: another one each epoch, or that of the list, or of the sorted paths."""
    lmdb_label: str | None = None
    """Labels of the images in an LMDB: prefix = what comes before the first / of a key; else the path of a
    list with lines 'key label'. Default: prefix."""
    label_key: str | None = None
    """Labels of the images in tar shards that have no .cls: the value of this key in the .json of a
    sample."""
    manifest_dir: Path | None = None
    """Folder that keeps the scanned columns. It may not lie inside --data. Default:
    $XDG_CACHE_HOME/saturate."""
    rescan: bool = False
    """Scan --data again although folders look unchanged (files were rewritten in place)."""
    max_pixels: PositiveInt = MAX_PIXELS
    """Leave out, by name, images and videos whose header claims more pixels (width x height) than this, since
    decoding one of them may take all memory. Default: the number beyond which Pillow refuses an image."""


class Augmentation(Settings):
    """Augmentations that the plan draws for each sample, with the same numbers for every loader."""

    image_size: Side | None = None
    """Height and width of the training and validation images, in pixels. For detectors it is the shorter
    side, for SSD both sides. Default: what the architecture was made for, mostly 224, or 800 for
    detectors."""
    train_window: Literal["random-resized", "center", "stretch"] = "random-resized"
    """Training window: torchvision's RandomResizedCrop, the validation's centre crop, or the whole image
    stretched."""
    crop_scale: tuple[FiniteFloat, FiniteFloat] = (0.08, 1.0)
    """RandomResizedCrop: smallest and largest area, as a share of the image's."""
    crop_ratio: tuple[FiniteFloat, FiniteFloat] = (3 / 4, 4 / 3)
    """RandomResizedCrop: smallest and largest width / height."""
    flip: Share = 0.5
    """Probability of a left-right flip in training."""
    val_window: Literal["center", "stretch"] = "center"
    """Validation window: Resize(shorter side) + CenterCrop, or the whole image stretched."""
    val_resize: Side | None = None
    """Validation: length of the shorter side before the crop, pixels. Default: image size * 256 / 224, or
    what torchvision's --weights of that name were measured with; for --val-crops 3 the image size."""
    mean: tuple[FiniteFloat, FiniteFloat, FiniteFloat] | None = None
    """Mean that is subtracted from RGB in [0, 1]. Default: what the architecture's published weights take:
    ImageNet's mean, Kinetics', or SSD's own."""
    std: tuple[FiniteFloat, FiniteFloat, FiniteFloat] | None = None
    """Standard deviation that RGB is divided by after the mean is subtracted. Default: as for --mean."""


class Clips(Settings):
    """Clips that are taken from videos (--task video)."""

    clip_frames: Annotated[int, Field(gt=0, le=1_000_000)] = 16
    """Frames of a clip."""
    clip_stride: Annotated[int, Field(gt=0, le=1_000_000)] = 2
    """Distance from one frame of a clip to the next, in frames of the video, or of --clip-fps where that is
    given."""
    clip_fps: Annotated[FiniteFloat, Field(gt=0, le=1000)] | None = None
    """Take the frames nearest in time at this rate. Default: each video at its own."""
    short_side: tuple[Side, Side] | None = None
    """Training: the shorter side is scaled to a random length between these two before the crop, pixels.
    Default: image size * 256 / 224 and * 320 / 224."""
    val_clips: Annotated[int, Field(gt=0, le=1_000_000)] = 5
    """Validation: clips of a video, evenly spaced; their logits are averaged."""
    val_crops: Literal[1, 3] = 1
    """Validation: crops of a clip, the middle or three along the longer side."""


class Detection(Settings):
    """Detectors' training and scoring (--task detection); --image-size is the shorter side, or SSD's both."""

    augment: Literal["flip", "multiscale", "lsj", "ssd", "ssdlite"] = "flip"
    """Training images: flipped alone; at a random scale (multiscale: --short-sides; lsj: 0.1 to 2, then cut
    or filled to --image-size, as "Simple Copy-Paste"); ssd: colours, zoom out, crop by overlap, as SSD's
    paper; ssdlite: crop by overlap. All of them flip."""
    longer_side: Side | None = None
    """Largest length of the longer side, in pixels; the shorter side shrinks with it. Default: what the
    architecture was made for, mostly 1333."""
    short_sides: tuple[Side, ...] = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    """--augment multiscale: lengths that the shorter side is drawn from, in pixels."""
    keep_empty: bool = False
    """Also train on images without a box."""
    weights_backbone: str | None = None
    """Start the backbone from a state dict file of its classifier, or from torchvision's weights of that
    name."""
    trainable_layers: Annotated[int, Field(ge=0, le=6)] | None = None
    """Stages of the backbone that are trained, counted from its end. Default: torchvision's, with weights;
    else all."""
    evaluator: Literal["faster-coco-eval", "pycocotools"] = "faster-coco-eval"
    """Library that computes AP. Both give the same figures; faster-coco-eval is faster."""
    score: Path | None = None
    """Score a results file in COCO's format against --data's validation annotations, and stop."""


class Loading(Settings):
    """The loader, its workers and its batches."""

    loader: str = "auto"
    """Images: {image loaders}; auto = dali-gpu with a GPU (dali-fed, where samples are no files of their
    own), else torchvision. Videos: {video loaders}; auto = nvdec+pyav where the GPU's engines can be used,
    else pyav."""
    reader: Literal["auto", "nvimgcodec", "torchvision", "pil", "opencv", "imageio"] = "auto"
    """Decoder of the torchvision loader; auto = the fastest whose pixels are PIL's, bit for bit."""
    batch_size: PositiveInt = 64
    """Samples in a micro-batch of one rank."""
    val_batch_size: PositiveInt | None = None
    """Samples in a validation batch of one rank; never more than there are. Default: --batch-size."""
    workers: Annotated[int, Field(ge=0)] | None = None
    """Worker processes (torchvision, dali-fed, all loaders of videos) or threads (dali-cpu, dali-gpu) of each
    rank. nvdec and dali-video start more, which only read, and nvdec+pyav fewer that decode. Default: CPU
    cores / local ranks, less one."""
    decode_threads: PositiveInt | None = None
    """dali-fed: threads of DALI that decode what the workers have read. Default: --workers."""
    pin_memory: bool = True
    """Copy to the GPU from page-locked memory; false shows what that is worth."""
    read_delay_ms: NotNegative = 0.0
    """Make each read of a file take this much longer, in milliseconds: a run that slows down is bound by its
    storage."""


class Model(Settings):
    """The model and its task."""

    task: str = "classification"
    """Meaning of a batch: {tasks}."""
    arch: str | None = None
    """Architecture of torchvision.models, torchvision.models.detection or torchvision.models.video, by its
    name there. Default: resnet50, for detectors fasterrcnn_resnet50_fpn_v2, for videos r3d_18."""
    weights: str | None = None
    """Start from a file of weights (a checkpoint, a state dict, timm's, Lightning's, safetensors, ...), or
    from torchvision's weights of that name (DEFAULT, IMAGENET1K_V1, ...). Resampling is bilinear, also for
    those that were trained with bicubic."""
    precision: Literal["auto", "fp16", "fp16-pure", "bf16", "fp32"] = "auto"
    """Precision of the step. auto = fp16 on CUDA; on a CPU bf16 where it is native, else fp32. fp16 computes
    by autocast from fp32 weights; fp16-pure has fp16 weights and gradients, and fp32 masters of them."""
    compile: bool = False
    """Compile the model with torch.compile."""
    graphs: Literal["auto"] | bool = "auto"
    """Replay the whole optimiser step as a CUDA graph, with one launch instead of hundreds. auto = on a GPU,
    where every batch has the same shape (not for detectors) and nothing in the step makes the host wait."""


class Optimisation(Settings):
    """The optimiser, its schedule, and the length of a run."""

    epochs: PositiveInt = 90
    """Passes over the training data."""
    steps: PositiveInt | None = None
    """End after this many optimiser steps in all, wherever the epoch is. The schedule still spans
    --epochs."""
    seconds: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """End once the steady windows of the rate add up to this many seconds: for a measurement."""
    optimizer: Literal["sgd", "adamw", "apex-sgd"] = "sgd"
    """SGD with Nesterov momentum, AdamW, or FusedSGD of NVIDIA's apex, where that is installed."""
    lr: Annotated[FiniteFloat, Field(gt=0)] = 0.1
    """Peak learning rate, as it is used: nothing scales it with the batch."""
    momentum: Share = 0.9
    """SGD's momentum."""
    nesterov: bool = True
    """SGD's Nesterov form."""
    weight_decay: NotNegative = 1e-4
    """Weight decay of convolutions' and linear layers' weights."""
    norm_weight_decay: NotNegative = 0.0
    """Weight decay of all other parameters: biases, norms, scales, embeddings."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """Learning rate after the warm-up: cosine to --final-lr, --lr-gamma every --lr-step-epochs or at
    --lr-milestones, or constant."""
    warmup_epochs: NotNegative = 5.0
    """Linear warm-up from 1 % of --lr."""
    final_lr: NotNegative = 0.0
    """Learning rate at the end of the cosine."""
    lr_step_epochs: Annotated[FiniteFloat, Field(gt=0)] = 30.0
    """Step schedule: epochs between two drops."""
    lr_milestones: tuple[NotNegative, ...] | None = None
    """Step schedule: the epochs of the drops, instead of --lr-step-epochs."""
    lr_gamma: Annotated[FiniteFloat, Field(gt=0, le=1)] = 0.1
    """Step schedule: the factor of a drop."""
    label_smoothing: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.0
    """Share of the target spread over all classes."""
    accumulate: PositiveInt = 1
    """Micro-batches whose gradients are summed for one step."""
    clip_grad_norm: NotNegative = 0.0
    """Largest gradient norm; 0 = no clipping."""


class Run(Settings):
    """The files that a run keeps, what it says and what it measures."""

    config: Path | None = None
    """YAML preset; flags win over it."""
    output: Path | None = None
    """Folder of checkpoints, TensorBoard events, metrics.jsonl and summary.json. Default: a new one below
    runs/."""
    timeout_minutes: Annotated[FiniteFloat, Field(gt=0, le=100_000)] = 10.0
    """Minutes that a rank waits for others, to begin with and in a step, before the run ends with a line that
    names them."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed: the key of every random number of the run."""
    resume: str | None = None
    """Checkpoint file to continue from; auto = last.pt of --output when there is one."""
    evaluate: bool = False
    """Validate once (with --resume or --weights) and stop. A checkpoint brings its settings and the names of
    its classes; flags win, and are named. The training data need not be there."""
    ceilings: bool = True
    """Measure the compute ceiling and the loader ceiling after the first epoch (a few seconds each, longer
    with a slow loader)."""
    profile: bool = False
    """Write a torch.profiler trace of ten steps (after 8 others) below profile/, for ui.perfetto.dev, and a
    table of operators."""
    val_every: Annotated[int, Field(ge=0)] = 1
    """Epochs between validations; the last epoch is always validated. 0 = never."""
    log_every: PositiveInt = 20
    """Steps between two points of the training curves."""
    save_every_steps: Annotated[int, Field(ge=0)] = 0
    """Write last.pt every N steps; 0 = only by --save-every-minutes and at the end of epochs."""
    save_every_minutes: NotNegative = 15.0
    """Write last.pt after this many minutes; 0 = never by time."""
    min_window_s: Annotated[FiniteFloat, Field(gt=0)] = 2.0
    """Shortest window of the rate, seconds."""


class Config(Settings):
    """Train image classifiers, detectors and video classifiers, see how fast it goes, how fast it could go,
    and what holds it back."""

    run: Run = Run()
    data: Data = Data()
    augmentation: Augmentation = Augmentation()
    clips: Clips = Clips()
    detection: Detection = Detection()
    loading: Loading = Loading()
    model: Model = Model()
    optimisation: Optimisation = Optimisation()

    def flat(self) -> dict[str, Any]:
        """Return every setting by its flag's name, with JSON values, as a preset holds them."""
        return {
            name: value for group in self.model_dump(mode="json").values() for name, value in group.items()
        }


GROUPS = {name: cast("type[Settings]", field.annotation) for name, field in Config.model_fields.items()}
COMMON = ("run", "data", "augmentation", "loading", "model", "optimisation")
"""Groups that every task reads, but for the single settings that it names as unread. Any other group is read
by the tasks that name it alone."""
GROUP_OF = {name: group for group, cls in GROUPS.items() for name in cls.model_fields}


def build(flat: dict[str, Any], origin: str = "settings") -> Config:
    """Return a checked Config from flat keys. Raises UserError naming the first bad key, what it got and the
    nearest name."""
    nested: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for key, value in flat.items():
        name = str(key).replace("-", "_")[:200]
        if name not in GROUP_OF:
            raise UserError(
                f"{origin}: unknown key {shown(name)}{nearest(name, GROUP_OF)}; --help lists every setting"
            )
        nested[GROUP_OF[name]][name] = value
    try:
        config = Config.model_validate(nested)
    except ValidationError as error:
        first = error.errors()[0]
        where = str(first["loc"][1] if len(first["loc"]) > 1 else first["loc"][0])
        said = first["msg"][0].lower() + first["msg"][1:]
        raise UserError(
            f"{origin}: --{where.replace('_', '-')} got {shown(first['input'])}: {said}"
        ) from None
    _check_ranges(config, origin)
    return config


def _check_ranges(config: Config, origin: str) -> None:
    for name, lowest in (("crop_scale", 0.0), ("crop_ratio", 0.0)):
        low, high = getattr(config.augmentation, name)
        if not lowest < low <= high or (name == "crop_scale" and high > 1):
            flag = name.replace("_", "-")
            raise UserError(
                f"{origin}: --{flag} got {low} {high}; two values with 0 < low <= "
                f"high{' <= 1' if name == 'crop_scale' else ''}"
            )
    short = config.clips.short_side
    if short and short[0] > short[1]:
        raise UserError(
            f"{origin}: --short-side got {short[0]} {short[1]}; two lengths, the smaller one first"
        )
    if config.augmentation.std and min(config.augmentation.std) <= 0:
        raise UserError(f"{origin}: --std got {config.augmentation.std}; each must be above 0")
    data = config.data.data
    for flag, folder in (("--manifest-dir", config.data.manifest_dir), ("--output", config.run.output)):
        if data and folder and folder.resolve().is_relative_to(data.resolve()):
            raise UserError(
                f"{origin}: {flag} {folder} lies inside --data {data}, which is never written to; name "
                "another folder"
            )


def parse(argv: list[str], tables: Mapping[str, Iterable[str]] | None = None) -> Config:
    """Return the settings: flags over the preset that --config names over the defaults. Raises UserError;
    --help prints and exits 0.

    `tables` are those of the rooms, for --help (tasks.tables). tasks.kind_of tells whether --task is known
    and reads what is set.
    """
    preset, origin = _preset_of(argv)
    before = build(preset, origin=origin)
    config = build(flags(Config, argv, prog="train.py", default=before, tables=tables).flat(), origin="flags")
    _check_read(config, before)
    return config


def given(argv: list[str]) -> frozenset[str]:
    """Return the names of the settings that flags or the preset have, of a command line that parses."""
    preset, _ = _preset_of(argv)
    words = [*(word.partition("=")[0].removeprefix("--") for word in argv if word.startswith("--")), *preset]
    return frozenset(GROUP_OF.keys() & {str(word).replace("-", "_") for word in words})


def _preset_of(argv: list[str]) -> tuple[dict[str, Any], str]:
    """Return the flat keys of the preset that --config names, and what they are of, for messages."""
    preset: dict[str, Any] = {}
    origin = "defaults"
    for word, following in zip(argv, [*argv, ""][1:], strict=True):
        if (word == "--config" and following) or word.startswith("--config="):
            path = following if word == "--config" else word.partition("=")[2]
            preset = read_preset(Path(path))
            origin = f"--config {path}"
    return preset, origin


READ_WITH = {
    "reader": ("loader", ("torchvision",)),
    "decode_threads": ("loader", ("dali-fed",)),
    "crop_scale": ("train_window", ("random-resized",)),
    "crop_ratio": ("train_window", ("random-resized",)),
    "short_sides": ("augment", ("multiscale",)),
    "final_lr": ("schedule", ("cosine",)),
    "lr_milestones": ("schedule", ("step",)),
    "lr_step_epochs": ("schedule", ("step",)),
    "lr_gamma": ("schedule", ("step",)),
    "momentum": ("optimizer", ("sgd", "apex-sgd")),
    "nesterov": ("optimizer", ("sgd", "apex-sgd")),
}
"""Settings that are read only where another one has one of these values, or is left to be found."""


def _check_read(config: Config, before: Config) -> None:
    """Raise UserError for a flag that nothing reads. Only what flags changed `before` is looked at: a preset
    may keep what another flag has made idle."""
    chosen = config.flat()
    preset = before.flat()
    for name, (other, values) in READ_WITH.items():
        if chosen[name] != preset[name] and chosen[other] not in (*values, "auto"):
            flag, needs = (word.replace("_", "-") for word in (name, other))
            wanted = " or ".join(values)
            raise UserError(f"--{flag} is for --{needs} {wanted}, and this is --{needs} {chosen[other]}")


def recipe(config: Config, arch: str) -> list[str]:
    """Return a line that names the preset with the published settings of the architecture; [] when a preset
    was named, or there is none."""
    found = (
        sorted(path.relative_to(PRESETS.parent) for path in PRESETS.glob(f"*/{arch}.yaml"))
        if config.run.config is None
        else []
    )
    return [
        f"--config {path} has the published settings of {arch}; these are --help's defaults" for path in found
    ]


def as_yaml(config: Config, *, without: Collection[str] = ("config",)) -> str:
    """Return the configuration as a preset that `--config` reads back to the same Config, but for the
    settings that are left out (`without`)."""
    lines = []
    for group, cls in GROUPS.items():
        values = config.model_dump(mode="json")[group]
        kept = {name: value for name, value in values.items() if name not in without}
        if kept:
            lines.append(f"# {(cls.__doc__ or '').strip()}")
        for name, value in kept.items():
            # JSON would do, but for names beyond the basic plane, which it writes as two halves that YAML
            # does not join
            written = yaml.safe_dump([value], default_flow_style=True, width=float("inf"))[1:-2]
            lines.append(f"{name}: {written}")
    return "\n".join(lines) + "\n"
