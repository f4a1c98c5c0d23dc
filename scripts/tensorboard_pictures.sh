#!/usr/bin/env bash
# Pictures of TensorBoard's pages over a folder of runs, by headless Chromium: how they look on a screen.
#
#   scripts/tensorboard_pictures.sh RUNS TO [width ...]     (1280 and 1920 pixels)
#
# Needs the Debian package chromium. Writes TO/<page>-<width>.png.
set -euo pipefail
runs=$1 to=$2
shift 2
widths=("${@:-1280}")
(($#)) || widths+=(1920)
port=${PORT:-6016}
work=$(mktemp -d)
mkdir -p "$to"
"$(dirname "$0")/../.venv/bin/tensorboard" --logdir "$runs" --port "$port" --reload_interval 0 2>"$work/log" &
server=$!
trap 'kill "$server"; rm -r "$work"' EXIT
until curl -sf "localhost:$port/data/runs" | grep -q '"'; do sleep 1; done
for width in "${widths[@]}"; do
  for page in timeseries scalars images text hparams custom_scalars; do
    # without WebGL, whose lines come too late; the budget is of the page's own clock
    chromium --headless --no-sandbox --disable-3d-apis --hide-scrollbars --user-data-dir="$work/chromium" --window-size="$width,900" \
      --virtual-time-budget=30000 --screenshot="$to/$page-$width.png" "http://localhost:$port/#$page" 2>>"$work/log"
  done
done
