#!/usr/bin/env bash
# From a fresh machine to a trained network: set-up, a small set of images, a training run and its table.
#
#   scripts/demo.sh [classification|video|detection|superres] [flags of train.py]
#
# Data and runs go to runs/, or to SATURATE_DEMO_DIR. Paths among the flags are relative to the repository.
set -euo pipefail

case "${1:-}" in
  '' | --*) ;;
  -h)
    sed -n '2,6s/^# \{0,1\}//p' "$0"
    exit
    ;;
  classification) shift ;;
  video | detection | superres)
    echo "demo: the $1 demo is not there yet; this one is: scripts/demo.sh classification" >&2
    exit 2
    ;;
  *)
    echo "demo: unknown task '$1': choose classification, video, detection or superres" >&2
    exit 2
    ;;
esac

runs=$(realpath -m "${SATURATE_DEMO_DIR:-$(dirname "$0")/../runs}")
cd "$(dirname "$0")/.."
mkdir -p "$runs"
python=$(scripts/setup.sh)

# Made once; a set that is there already takes a tenth of a second.
"$python" -m scripts.demo_set "$runs/demo-data"

# With torchrun, as users start it. A flag given here wins over the same flag before it.
exec "$python" -m torch.distributed.run --standalone --nproc-per-node 1 \
  train.py --config configs/demo.yaml --data "$runs/demo-data" --output "$runs/demo-$(date +%Y%m%d-%H%M%S)" "$@"
