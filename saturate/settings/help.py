"""What people type: the twenty flags that most runs need, and what flags of other programs are here.

Imports nothing, so that --help answers at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

HELP = """train.py: train image classifiers, detectors, video classifiers and
super-resolution networks, see how fast it goes, how fast it could go, and what
holds it back.

  python train.py --data PHOTOS --val-share 0.2 --weights DEFAULT \\
      --config configs/finetune.yaml
  torchrun --standalone --nproc-per-node 8 -m saturate train \\
      --data IMAGENET --config configs/imagenet/resnet50.yaml
  python train.py --predict NEW --resume runs/photos/best.pt
  python train.py --evaluate true --resume runs/photos/best.pt

What to train on
  --data FOLDER         train/<class>/* and val/<class>/*, lists train.csv and
                        val.csv, or COCO's folder
  --val-share 0.2       for a folder that has class folders alone: this share of
                        it validates
  --task NAME           classification, detection, video or superres

What to train
  --config FILE         a preset, see configs/; flags win over it
  --arch NAME           such as resnet50; python -m scripts.archs lists them
  --weights NAME|FILE   begin with trained weights: DEFAULT, or a file
  --freeze PATTERN      parameters that are not trained: 'conv1|bn1|layer[123]'
  --image-size 224      side of the images, pixels

How to train
  --epochs 90           passes over the data
  --batch-size 64       samples a step, of one GPU
  --lr 0.1              peak learning rate
  --optimizer sgd       sgd or adamw
  --precision auto      fp16 on a GPU; or bf16, fp32
  --patience 0          end after so many validations without a better figure

How to load
  --loader auto         who decodes the files; --help-all names all
  --workers N           processes or threads that load

What comes of it
  --output FOLDER       checkpoints, figures, pictures; else a new one in runs/
  --resume FILE|auto    go on from a checkpoint
  --evaluate true       validate a checkpoint, and stop; --split test on test/
  --predict FOLDER      say what a checkpoint says of files without classes

--help-all explains every setting. docs/own-images.md: from a folder of photos
to a model in use.
"""


def _table(text: str) -> dict[str, str]:
    """Return what to say of each name of a text, whose lines are "name name: what to say"."""
    lines = (line.split(": ", 1) for line in text.strip().splitlines())
    return {name: meaning for names, meaning in lines for name in names.split()}


OURS = _table("""
checkpoint-hist: --keep-best N, beside last.pt and best.pt
model: --arch NAME
model-name: --arch NAME
a: --arch NAME
architecture: --arch NAME
b: --batch-size N
bs: --batch-size N
vb: --val-batch-size N
validation-batch-size: --val-batch-size N
batch: --batch-size N
j: --workers N
num-workers: --workers N
e: --epochs N
num-epochs: --epochs N
max-epochs: --epochs N
max-steps: --steps N
opt: --optimizer NAME
wd: --weight-decay X
learning-rate: --lr X
lr-scheduler: --schedule NAME
sched: --schedule NAME
lr-warmup-epochs: --warmup-epochs N
min-lr: --final-lr X
lr-min: --final-lr X
lr-base: --lr X --lr-per SAMPLES, in proportion to a step's samples (timm: to their root with AdamW and LAMB)
lr-base-size: --lr-per SAMPLES, in proportion to a step's samples (timm: to their root with AdamW and LAMB)
lr-step-size: --lr-step-epochs N
decay-epochs: --lr-step-epochs N
decay-rate: --lr-gamma X
dr: --lr-gamma X
decay-milestones: --lr-milestones N N
lr-steps: --lr-milestones N N
warmup-lr: --warmup-start X, as a share of --lr
lr-warmup-decay: --warmup-start X
lr-warmup-method: --warmup-start X; a warm-up is linear
bias-weight-decay: --norm-weight-decay X
transformer-embedding-decay: --no-decay PATTERN ...
drop-path: --stochastic-depth X
kd-model-name teacher-model teacher-path: --teacher RUN/best.pt
distillation-alpha: --teacher-share X
distillation-tau: --teacher-temperature X
bce-loss: --loss bce
bce-target-thresh: --bce-threshold X
clip-mode: --clip-grad-norm X, or --clip-grad-value X, or --clip-grad-agc X
smoothing: --label-smoothing X
clip-grad: --clip-grad-norm X
grad-accum-steps: --accumulate N
gradient-accumulation-steps: --accumulate N
pretrained: --weights DEFAULT
checkpoint: --resume FILE, or --weights FILE for its weights alone
initial-checkpoint: --weights FILE
no-resume-opt: --weights FILE
pretrained-path: --weights FILE
eval: --evaluate true
test-only: --evaluate true
validate: --evaluate true
inference: --predict FOLDER
img-size: --image-size N
imgsz: --image-size N
input-size: --image-size N
train-crop-size: --image-size N
val-crop-size: --val-image-size N
crop-pct: --val-crop-share X
val-resize-size: --val-resize N
train-interpolation: --interpolation NAME
aug-repeats: --repeats N
ra-sampler: --repeats N
ra-reps: --repeats N
grayscale-prob: --grayscale X
gaussian-blur-prob: --blur X
random-erase: --erase X
remode: --erase-mode NAME
mixup-prob: --mix-prob X
mixup-switch-prob: --mix-switch-prob X
train-img-sizes: --image-size-start N --image-size-ramp FIRST LAST
train-size-schedule: --image-size-start N --image-size-ramp FIRST LAST
no-aug: --train-window center --flip 0
hflip: --flip X
aa: --auto-augment NAME
reprob: --erase X
mixup-alpha: --mixup X
cutmix-alpha: --cutmix X
model-ema: --ema X
model-ema-decay: --ema X
model-ema-steps: --ema X, each step
model-ema-warmup: --ema-warmup true
ratio: --crop-ratio LOW HIGH
data-dir: --data FOLDER
data-path: --data FOLDER
dataset: --data FOLDER
output-dir: --output FOLDER
save-dir: --output FOLDER
logdir: --output FOLDER
project: --output FOLDER
experiment: --output FOLDER
torchcompile: --compile true
torchcompile-mode: --compile true
log-interval: --log-every N
print-freq: --log-every N
log-wandb: --log wandb
val-interval: --val-every N
recovery-interval: --save-every-steps N
pin-mem: --pin-memory true
target-key: --label-key NAME
train-split: --data FOLDER, with train/ and val/
val-split: --data FOLDER, with train/ and val/
data-augmentation: --augment NAME
use-dali: --loader dali-gpu
dali: --loader dali-gpu
dali-cpu: --loader dali-cpu
data-backend: --loader NAME
trainable-backbone-layers: --trainable-layers N
clip-len: --clip-frames N
frame-rate: --clip-fps X
clips-per-video: --val-clips N
train-resize-size: --short-side LEAST MOST
class-weights: --balance loss
early-stopping: --patience N
""")
"""A flag of other programs -> ours."""
NEEDLESS = _table("""
amp: mixed precision is the default on a GPU, --precision says which
fp16: --precision fp16
bf16: --precision bf16
half: --precision fp16
opt-level: --precision fp16, which casts as apex's O1 does, or fp32, its O0
static-loss-scale dynamic-loss-scale loss-scale: the loss scale of fp16 follows the gradients; leave it out
amp-dtype: --precision fp16 or bf16
model-dtype: --precision fp16 or bf16, from fp32 weights
num-classes: the classes are counted in --data; leave it out
nc: the classes are counted in --data; leave it out
device: torchrun --nproc-per-node N says how many GPUs, CUDA_VISIBLE_DEVICES which; leave it out
gpus: torchrun --nproc-per-node N says how many GPUs; leave it out
world-size: torchrun says how many ranks there are; leave it out
dist-url: torchrun says where the ranks meet; leave it out
local-rank: torchrun sets LOCAL_RANK; leave it out
channels-last: images are channels_last always; leave it out
class-map: the classes are those of --data; leave it out
dist-bn: a validation has rank 0's batch norm; leave it out, or --sync-bn true
eval-metric: best.pt is the best by top-1, or by mAP; leave it out
start-epoch: a checkpoint says it, --resume FILE; leave it out
worker-seeding: a sample's draws are its own, whoever loads it; leave it out
no-prefetcher use-multi-epochs-loader: --loader NAME says how images are loaded; leave it out
no-ddp-bb device-modules synchronize-step fuser fast-norm: it changes no result; leave it out
train-num-samples val-num-samples: samples are counted; leave it out
sched-on-updates: the learning rate moves each step; leave it out
save-images: TensorBoard has pictures of what is trained on; leave it out
wandb-project wandb-tags wandb-resume-id: --log wandb, with the variables WANDB_PROJECT, WANDB_TAGS, WANDB_RUN_ID
""")
"""A flag of other programs that is no flag here -> what to do."""
ABSENT = _table("""
in-chans: images are RGB, so leave 3 out; --arch package.module:function builds a network of your own
gp model-kwargs drop drop-connect drop-block: --arch package.module:function builds a network of your own
bn-momentum bn-eps head-init-scale head-init-bias: --arch package.module:function builds a network of your own
opt-eps opt-betas opt-kwargs: an optimiser has its library's defaults
lr-base-scale: --lr-per scales in proportion
lr-noise lr-cycle-mul lr-cycle-limit lr-k-decay: --schedule has no such variant
cooldown-epochs patience-epochs warmup-prefix: --schedule begins behind the warm-up and ends with --epochs
aug-splits jsd-loss split-bn: AugMix is not here
mixup-mode mixup-off-epoch cutmix-minmax: --mixup and --cutmix act on whole batches, in all epochs
bce-pos-weight bce-sum color-jitter-prob train-crop-mode recount resplit: there is no such variant
epoch-repeats layer-decay-min-scale layer-decay-no-opt-scale: there is no such variant
train-batch-sizes train-batches-per-epoch: --batch-size and the data say how long an epoch is
train-size-probs variable-batch-loss-scale: --image-size-start and --image-size-ramp alone change sizes
model-ema-force-cpu: --ema keeps the average on the device
torchscript: --compile true is what there is
input-key input-img-mode: images are found by their format, and are RGB
naflex-loader: NaFlex is not here
dataset-download dataset-trust-remote-code: nothing is downloaded, and no code of a data set is run
""")
"""A flag of other programs that has no counterpart -> why, or what comes near."""
DIFFERENT = _table("""
color-jitter: --color-jitter X, and adds to --auto-augment (timm turns it off there, but for 3a)
scale: --crop-scale LOW HIGH
tta: --tta flip
""")
"""A flag here that means something else to other programs -> what theirs is here."""
UNSET = ("None", "False", "", "0", "0.0", "[]", "{}")
"""How values that switch something off are written."""
DEFAULTS = _table("""
grad-accum-steps val-interval: 1
hflip mixup-switch-prob: 0.5
in-chans: 3
mixup-prob: 1.0
ratio: [0.75, 1.3333333333333333]
scale: [0.08, 1.0]
sched: cosine
train-size-schedule: constant
train-split: train
val-split: validation
lr-cycle-mul lr-k-decay: 1.0
lr-cycle-limit recount: 1
variable-batch-loss-scale: none
patience-epochs: 10
checkpoint-hist: 10
mixup-mode: batch
""")
"""timm's own defaults that act as a run here does, where they are not UNSET."""
IDLE = _table("""
clip-mode: clip_grad None
remode: reprob 0.0
model-ema-decay: model_ema False
decay-epochs decay-milestones decay-rate: sched cosine
lr-base lr-base-size lr-base-scale: lr
""")
"""A key of timm -> the key with the value, or with any one, beside which it does nothing."""
RECIPES = "docs/recipes.md has the table"


def answer(word: str) -> str:
    """Return what to say behind a word of a command line that is no flag here; "" where it is not known."""
    if not word.startswith("-"):
        return ": a path needs a flag; --data FOLDER is trained on, and of --predict one folder, file or list"
    name = word.partition("=")[0].lstrip("-").replace("_", "-")
    if ours := OURS.get(name) or DIFFERENT.get(name):
        flag, comma, more = ours.partition(", ")
        return f" is {flag} here{comma}{more}"
    if name in ABSENT:
        return f" has no counterpart: {ABSENT[name]}; {RECIPES}"
    return f": {NEEDLESS[name]}" if name in NEEDLESS else ""


def foreign_keys(values: Mapping[str, object], known: Collection[str]) -> list[str]:
    """Return lines that say what a preset of another program is here, such as timm's args.yaml; [] for one of ours.

    `values` are by names with underscores, and `known` are the names of our settings.
    """
    flags = {name: name.replace("_", "-") for name in values}
    if len(OURS.keys() & flags.values()) < 2:
        return []
    same = []
    other = []
    for name, flag in flags.items():
        beside, _, off = IDLE.get(flag, "").partition(" ")
        value = str(values.get(beside))
        idle = value == off if off else value not in UNSET
        if idle or str(values[name]) in (*UNSET, DEFAULTS.get(flag)):
            continue
        if flag in OURS or flag in ABSENT or flag in DIFFERENT:
            other.append(name + answer(f"--{name}"))
        elif name in known:
            same.append(name)
    problem = f"is of another program; write a preset, {RECIPES}"
    return [problem, f"the same here: {', '.join(same) or 'none'}", *other]
