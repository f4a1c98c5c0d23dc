#!/usr/bin/env bash
# Builds the Dockerfile and starts what it makes as users do, without a Docker engine and without a GPU.
#
#   scripts/docker_check.sh FOLDER [options of buildah for every build and run]
#   BASE=IMAGE scripts/docker_check.sh FOLDER     on an image that buildah finds, in place of the stand-in
#
# It needs root, buildah, debootstrap (Debian's packages) and room: 25 GB, and 40 GB with STORAGE_DRIVER=vfs.
# The stand-in for NVIDIA's image is this system's release (SUITE, MIRROR: debootstrap's) with Python, a compiler, and torch
# and torchvision from pip's index, all pinned in PIP_CONSTRAINT as NVIDIA pins its own. Behind a proxy or a mirror the
# options mount what pip needs: -v /etc/pip.conf:/etc/pip.conf:ro -v /etc/ssl/certs:/etc/ssl/certs:ro
#
# Not seen without NVIDIA's image and a Docker engine: the torch, DALI and nvImageCodec that it brings; a GPU in the container
# (--gpus, NVIDIA_DRIVER_CAPABILITIES); --init, --shm-size, --ulimit; a fresh volume, which Docker makes with the mode of the
# image's folder (done here by hand).
set -euo pipefail

if [ $# -eq 0 ] || [ "$1" = -h ] || [ "$1" = --help ]; then
  sed -n '2,14s/^# \{0,1\}//p' "$0"
  exit 2
fi
work=$(realpath -m "$1")
options=("${@:2}")
root=$(cd "$(dirname "$0")/.." && pwd)
export BUILDAH_ISOLATION=chroot
mkdir -p "$work"

failures=0

say() { printf 'docker_check: %s\n' "$*" >&2; }
# Print a line of the table: row WHAT COMMAND..., which holds when the command succeeds.
row() {
  local what=$1 state=holds
  shift
  if ! "$@" >/dev/null 2>&1; then
    state=FAILED
    failures=$((failures + 1))
  fi
  printf '%-7s %s\n' "$state" "$what"
}
not() { ! "$@"; }
storage=(--root "$work/storage" --runroot "$work/runroot" ${STORAGE_DRIVER:+--storage-driver "$STORAGE_DRIVER"})
images() { buildah "${storage[@]}" "$@"; }

# A release with Python and a compiler, then torch: one container, committed once, since vfs copies every layer whole.
make_base() {
  local tree=$work/tree suite container mounted
  if [ ! -e "$tree.complete" ]; then
    say "debootstrap into $tree"
    rm -rf "$tree"
    suite=${SUITE:-$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)}
    debootstrap --variant=minbase --include=ca-certificates,g++,python3-dev,python3-venv "$suite" "$tree" \
      ${MIRROR:+"$MIRROR"} >"$work/debootstrap.log" 2>&1
    touch "$tree.complete"
  fi
  say 'torch and torchvision into the stand-in'
  container=$(images from scratch)
  mounted=$(images mount "$container")
  cp -a "$tree/." "$mounted"
  images run "${options[@]}" "$container" -- bash -euc '
    python3 -m venv /usr/local/python
    /usr/local/python/bin/python -m pip install --no-cache-dir torch torchvision
    mkdir /etc/pip
    /usr/local/python/bin/python -m pip list --format=freeze > /etc/pip/constraint.txt' >"$work/base.log" 2>&1
  images config --env PATH=/usr/local/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    --env PIP_CONSTRAINT=/etc/pip/constraint.txt "$container"
  images commit --quiet --rm "$container" stand-in >/dev/null
}

if [ -z "${BASE:-}" ]; then
  BASE=localhost/stand-in
  images inspect --type image "$BASE" >/dev/null 2>&1 || make_base
fi

say "the Dockerfile on $BASE"
# In Docker's format, since OCI's knows no SHELL.
if ! images build "${options[@]}" --format docker --build-arg "BASE=$BASE" --file "$root/Dockerfile" --tag saturate "$root" \
  >"$work/build.log" 2>&1; then
  say "the build failed: $work/build.log"
  exit 1
fi

container=$(images from saturate)
trap 'images rm "$container" >/dev/null' EXIT
mounted=$(images mount "$container")
mapfile -t entry < <(images inspect --format '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}' "$container" | sed '/^$/d')

left_in_tmp=$(find "$mounted/tmp" -mindepth 1)

# What the runs mount. Docker gives a new volume the mode of the image's folder.
rm -rf "$work"/{drawn,runs,cache}
install -d "$work/drawn"
install -d -m 1777 "$work/runs"
install -d -m "$(stat -c %a "$mounted/home/saturate/.cache")" "$work/cache"

# Start the image's entry point with the mounts of docs/docker.md: start UID NAME ARGUMENTS... leaves NAME.log and NAME.code. The
# shell writes its process number, which is then the entry point's; chroot isolation has no numbers of its own. It names the
# container as /etc/hosts does not, so that torchrun's first lookup would time out: localhost.
start() {
  local uid=$1 name=$2 code=0
  shift 2
  say "$name: uid $uid: $*"
  # shellcheck disable=SC2016  # the inner shell expands them
  images run "${options[@]}" --hostname localhost --user "$uid:$uid" --volume "$work/drawn/data:/data:ro" --volume "$work/runs:/opt/saturate/runs" \
    --volume "$work/cache:/home/saturate/.cache" "$container" -- \
    sh -c 'echo $$ >"runs/$0.pid"; exec "$@"' "$name" "${entry[@]}" "$@" >"$work/$name.log" 2>&1 || code=$?
  echo "$code" >"$work/$name.code"
}
logged() { grep -q "$2" "$work/$1.log"; }
left() { [ "$(cat "$work/$1.code")" = "$2" ]; }
finished() { grep -q '"finished": true' "$work/runs/$1/summary.json"; }
train=(--nproc-per-node 1 train.py --config configs/demo.yaml --data /data --ceilings false)
kernels() { find "$work/cache/$user/torchinductor" -type f | sort; }

say 'drawing a small set'
images run "${options[@]}" --user 0:0 --volume "$work/drawn:/drawn" "$container" -- \
  python -m scripts.demo_set --train-per-class 48 --val-per-class 16 /drawn/data >"$work/data.log" 2>&1

user=12345 # neither this system nor the image knows it
start 10001 help train.py --help-all
start $user demo "${train[@]}" --epochs 1 --compile --output runs/demo
kernels >"$work/kernels.first"
start $user again "${train[@]}" --epochs 1 --compile --output runs/again
kernels >"$work/kernels.second"
start $user write python -c 'open("/data/file", "w")'

other=12346 # shares the volume
start $other enter ls "/home/saturate/.cache/$user"
planted=12347 # whose folder the other user has made
install -d -o $other -m 777 "$work/cache/$planted"
start $planted planted "${train[@]}" --epochs 1 --output runs/planted

start $user stopped "${train[@]}" --epochs 3 --output runs/stopped &
while kill -0 $! 2>/dev/null && [ ! -s "$work/runs/stopped/metrics.jsonl" ]; do sleep 0.5; done
kill -TERM "$(cat "$work/runs/stopped.pid")" || say "it ended by itself: $work/stopped.log"
wait $!
start $user resumed "${train[@]}" --epochs 3 --output runs/stopped --resume auto

row 'the image builds: what it imports is there, and train.py --help-all' true
row '  and the build leaves nothing in its HOME' test -z "$left_in_tmp"
row "the image's own user is shown the help" left help 0
row "uid $user trains the demo to its end" finished demo
row '  and exits with 0' left demo 0
row '  and cannot write to the data' logged write 'Read-only file system'
row 'the first start reads the headers' logged demo 'reading headers'
row '  and the second finds the manifests' not logged again 'reading headers'
row '  and compiles nothing anew' cmp "$work/kernels.first" "$work/kernels.second"
row '  of kernels that are there' test -s "$work/kernels.first"
row 'the cache is the user'"'"'s own, with mode 700' test "$(stat -c '%u %a' "$work/cache/$user")" = "$user 700"
row "  and uid $other cannot enter it" logged enter 'Permission denied'
row '  and one that another user made is refused' logged planted "made by uid $other"
row '  with 2' left planted 2
row 'SIGTERM to the entry point leaves a checkpoint' test -s "$work/runs/stopped/last.pt"
row '  and exits with 143' left stopped 143
row '  without a traceback' not logged stopped Traceback
row '  and the run goes on to its end' finished stopped
[ "$failures" -eq 0 ]
