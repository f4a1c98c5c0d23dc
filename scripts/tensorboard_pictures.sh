#!/usr/bin/env bash
# Pictures of TensorBoard's pages over a folder of runs, by headless Chromium: what a change of report/tensorboard.py looks like.
#
#   scripts/tensorboard_pictures.sh RUNS TO [width ...]     (1280 and 1920 pixels)
#
# Needs the Debian package chromium. Writes TO/<page>-<width>.png.
set -euo pipefail
runs=$1 to=$2
shift 2
port=${PORT:-6016}
mkdir -p "$to"
"$(dirname "$0")/../.venv/bin/tensorboard" --logdir "$runs" --port "$port" --reload_interval 0 2>"$to/tensorboard.log" &
server=$!
trap 'kill "$server"' EXIT
until curl -sf "localhost:$port/data/runs" | grep -q '"'; do sleep 1; done
for width in ${@:-1280 1920}; do
  for page in timeseries scalars images text hparams custom_scalars; do
    # with the time that the page has to draw, of the browser's own clock
    chromium --headless --no-sandbox --disable-3d-apis --hide-scrollbars --window-size="$width,900" --user-data-dir="$to/.chromium" \
      --virtual-time-budget=30000 --screenshot="$to/$page-$width.png" "http://localhost:$port/#$page" 2>/dev/null
  done
done
rm -r "$to/.chromium"
