#!/usr/bin/env bash
# From a fresh machine to a trained network: set-up, a small set drawn for the task, a training run and its table.
#
#   scripts/demo.sh [classification|detection|superres|video] [flags of train.py]
#
# Data and runs go to runs/, or to SATURATE_DEMO_DIR. Paths among the flags are relative to the repository.
set -euo pipefail

task=classification
case "${1:-}" in
  '' | --*) ;;
  -h)
    sed -n '2,6s/^# \{0,1\}//p' "$0"
    exit
    ;;
  classification | detection | superres | video)
    task=$1
    shift
    ;;
  *)
    echo "demo: unknown task '$1': choose classification, detection, superres or video" >&2
    exit 2
    ;;
esac
case $task in
  classification) name=demo draw=demo_set preset=configs/demo.yaml ;;
  detection) name=demo-detection draw=demo_coco preset=configs/coco/demo.yaml ;;
  superres) name=demo-superres draw=demo_superres preset=configs/superres/demo.yaml ;;
  video) name=demo-video draw=demo_videos preset=configs/video/demo.yaml ;;
esac

runs=$(realpath -m "${SATURATE_DEMO_DIR:-$(dirname "$0")/../runs}")
cd "$(dirname "$0")/.."
mkdir -p "$runs"
python=$(scripts/setup.sh)

# Made once; a set that is there already takes a tenth of a second.
"$python" -m "scripts.$draw" "$runs/$name-data"

# A flag given here wins over the same flag before it.
exec "$python" train.py --config "$preset" --data "$runs/$name-data" \
  --output "$runs/$name-$(date +%Y%m%d-%H%M%S)" "$@"
