#!/usr/bin/env bash
# Every check of the repository: style, types, tests. All of them run, and the last line says which failed.
#
#   scripts/test.sh [--all] [arguments of pytest]
#
# --all adds the sweeps of tests/sweeps.py, which repeat at length what other tests show.
set -euo pipefail

cd "$(dirname "$0")/.."
python=$(scripts/setup.sh --dev)

failed=()
check() {
  local name=$1
  shift
  printf '\n== %s\n' "$name"
  "$@" || failed+=("$name")
}

# Three workers for two cores, since tests of several processes wait for each other. A worker holds about 1 GB once torch
# and DALI are loaded: more than eight of them need memory rather than cores.
workers=$(($(nproc) * 3 / 2))
if [ "$workers" -gt 8 ]; then workers=8; fi

check 'ruff check' "$python" -m ruff check .
check 'ruff format' "$python" -m ruff format --check .
# types are checked beside the tests, and what was found is said behind them
exec 3< <("$python" -m mypy 2>&1)
mypy=$!
types() {
  cat <&3
  wait "$mypy"
}
# each worker has a block of the tests, which share fixtures, and takes of another's when it is through
check pytest "$python" -m pytest -n "$workers" --dist worksteal "$@"
check mypy types

if [ ${#failed[@]} -gt 0 ]; then
  printf '\nfailed:'
  printf ' [%s]' "${failed[@]}"
  printf '\n'
  exit 1
fi
printf '\nall checks passed\n'
