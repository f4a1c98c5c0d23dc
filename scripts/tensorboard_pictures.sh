#!/usr/bin/env bash
# Pictures of TensorBoard's pages over a folder of runs, by headless Chromium: how they look on a screen.
#
#   scripts/tensorboard_pictures.sh RUNS TO [width ...]     (1280 and 1920 pixels)
#
# Needs the Debian packages chromium and curl. Writes TO/<page>-<width>.png. PAGES, HEIGHT and DARK=1 ask for other ones.
set -euo pipefail
refuse() {
  echo "tensorboard_pictures: $1" >&2
  exit 2
}
(($# >= 2)) || refuse 'it takes RUNS TO [width ...]: a folder of runs, and the folder of the pictures'
runs=$1 to=$2
shift 2
[ -n "$(find -L "$runs" -name '*tfevents*' -print -quit 2>/dev/null)" ] || refuse "$runs: no run is below it"
for program in chromium curl; do
  command -v "$program" >/dev/null || refuse "$program is missing: install the Debian package $program"
done
widths=("${@:-1280}")
(($#)) || widths+=(1920)
port=${PORT:-6016}
dark=false
((${DARK:-0})) && dark=true
work=$(mktemp -d)
mkdir -p "$to"
"$(dirname "$0")/../.venv/bin/tensorboard" --logdir "$runs" --port "$port" --reload_interval 0 2>"$work/log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -r "$work"' EXIT
until curl -sf "localhost:$port/data/runs" | grep -q '"'; do
  # its runs may hold nothing as yet, and its port may be another program's
  if ((SECONDS > 60)) || ! kill -0 "$server" 2>/dev/null; then
    refuse "TensorBoard shows no run: $(tail -n 1 "$work/log")"
  fi
  sleep 1
done
for width in "${widths[@]}"; do
  for page in ${PAGES:-timeseries scalars images text hparams custom_scalars}; do
    # without WebGL, whose lines come too late; the budget is of the page's own clock
    chromium --headless --no-sandbox --disable-3d-apis --hide-scrollbars --user-data-dir="$work/chromium" --window-size="$width,${HEIGHT:-900}" \
      --virtual-time-budget=30000 --screenshot="$to/$page-$width.png" "http://localhost:$port/?darkMode=$dark#$page" 2>>"$work/log"
  done
done
