#!/usr/bin/env bash
# Rows of docs/published.md that need GPUs: what one GPU with 16 cores fills in ten minutes, or four GPUs in five.
#
#   benchmarks/published_gpus.sh IMAGES OUT 1
#   benchmarks/published_gpus.sh IMAGES OUT 4 VIDEOS     # IMAGES and VIDEOS: folders with <class>/*
#   benchmarks/published_gpus.sh - OUT videos [COUNT]    # so many (56) of 1080p in full size on 1, 2 and 4 GPUs, if there
#
# Prints the tables. A point that takes too long leaves in its log.txt where it was; the same command goes on.
set -u
if [ $# -lt 3 ] || { [ "$3" = 4 ] && [ $# -lt 4 ]; }; then
  echo 'published_gpus: it takes IMAGES OUT 1, IMAGES OUT 4 VIDEOS, or - OUT videos' >&2
  exit 2
fi
images=$1 out=$2 gpus=$3
loader=(python -m benchmarks loader)
mkdir -p "$out"

# $1: folder below $out, $2: links, $3: folder of files
links() { [ -d "$out/$1" ] || python -m benchmarks link-set "${3:-$images}" "$out/$1" --count "$2" --symbolic; }

# $1: name of the results, then the command; what is slow to start runs beside others with cores of its own
point() { local name=$1; shift; "$@" --output "$out/$name" > "$out/$name.txt" 2>&1; }

if [ "$gpus" = 1 ]; then
  links slow/train 2000
  links train/train 20000
  links train/val 1000
  slow=("${loader[@]}" --data "$out/slow" --delays 10 --steps 100 --step-ms 100 --batch-size 4 --image-size 512 --workers 8 --dali-threads 2 --limit-s 120)
  core=0
  for name in pytorch+opencv dali-by-hand pytorch+dali dali-proxy; do
    point "slow-$name" taskset -c "$core,$((core + 1))" "${slow[@]}" --loaders $name &
    core=$((core + 2))
  done
  for name in pytorch pytorch+dali dali-fed dali-gpu; do
    point "augmented-$name" taskset -c "$core,$((core + 1))" "${slow[@]}" --augment randaugment --loaders $name &
    core=$((core + 2))
  done
  wait
  point superres python -m benchmarks published superres --tables memory-16 --data "$images" --output "$out/superres" -- --batch-sizes 8 32 128 --seconds 2 --workers 15
  net=(python -m benchmarks train --data "$out/train" --batch-sizes 512 --loaders dali-gpu --precisions fp16 --seconds 4 --limit-s 120)
  point compiled "${net[@]}" --archs resnet18 --by-hand dali dali+compile "--flags=--ceilings false"
  point graphs "${net[@]}" --archs resnext50_32x4d wide_resnet50_2 regnet_y_400mf shufflenet_v2_x1_0 mobilenet_v3_large convnext_tiny \
    "--flags=--ceilings false"
  point eager "${net[@]}" --steps eager "--flags=--ceilings false" --archs googlenet squeezenet1_1 densenet121 mobilenet_v2 mnasnet1_0 \
    shufflenet_v2_x1_0 resnext50_32x4d wide_resnet50_2 regnet_y_400mf efficientnet_b0 convnext_tiny swin_t vit_b_16
elif [ "$gpus" = videos ]; then
  # made once: the points below find it
  python -m benchmarks video-set "$out/full" --count "${4:-56}" > "$out/full.txt" 2>&1
  full=("${loader[@]}" --task video --data "$out/full" --batch-size 2 --image-size 1080 --short-side 1080 --clip-frames 60 --clip-stride 5 --workers 8 --limit-s 280)
  there=$(nvidia-smi --list-gpus | wc -l)
  cores=$(($(nproc) / there))
  # $1: first GPU, $2: GPUs, then loaders: with the cores of these GPUs
  row() {
    local first=$1 count=$2; shift 2
    CUDA_VISIBLE_DEVICES=$(seq -s, "$first" $((first + count - 1))) point "full-$count-$1" \
      taskset -c $((first * cores))-$(((first + count) * cores - 1)) "${full[@]}" --gpus "$count" --loaders "$@"
  }
  # those of one GPU beside each other, as many as there are GPUs
  of_one=(pytorch+decord "pytorch nvdec+pyav" "dali nvdec" "decord pyav")
  for number in "${!of_one[@]}"; do
    # shellcheck disable=SC2086  # several loaders
    row $((number % there)) 1 ${of_one[number]} &
    [ $(((number + 1) % there)) = 0 ] && wait
  done
  wait
  for count in 2 4; do
    [ "$count" -le "$there" ] && row 0 "$count" pytorch+decord dali nvdec decord pytorch pyav nvdec+pyav
  done
else
  links images/train 21453
  links videos/train 56 "$4"
  of_images=("${loader[@]}" --data "$out/images" --batch-size 32 --image-size 640 --workers 8 --limit-s 100)
  of_videos=("${loader[@]}" --task video --data "$out/videos" --batch-size 8 --clip-frames 60 --clip-stride 5 --workers 8 --limit-s 120)
  CUDA_VISIBLE_DEVICES=0,1 point videos-2 taskset -c 0-31 "${of_videos[@]}" --gpus 2 --loaders nvdec dali &
  CUDA_VISIBLE_DEVICES=2,3 point images-2 taskset -c 32-63 "${of_images[@]}" --gpus 1 2 --loaders dali-gpu dali &
  wait
  point images-4 "${of_images[@]}" --gpus 4 --loaders dali dali-gpu
  point videos-4 "${of_videos[@]}" --gpus 4 --loaders nvdec dali
fi
grep -H "^| " "$out"/*/table.md "$out"/*/published.md 2> /dev/null
tail -n 25 "$out"/*/runs/*/log.txt 2> /dev/null | grep -B1 -A20 "most recent call" | head -60
