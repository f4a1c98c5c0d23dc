#!/usr/bin/env bash
# Tries every Python, with the newest packages and with the lowest ones that requirements.txt allows. It installs them,
# trains the demo's first epoch, runs the quick tests and prints a table.
#
#   scripts/pythons.sh [VERSION ...]     such as 3.12; all from the lowest to the newest without it
#
# A Python that is not here is fetched by uv where it can be. Everything goes to runs/pythons, or to SATURATE_PYTHONS_DIR: a
# clone of what is committed and the logs of each row; environments share uv's cache (7 GB) and are removed after use.
# PYTEST_ADDOPTS narrows the tests.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(realpath -m "${SATURATE_PYTHONS_DIR:-$root/runs/pythons}")
export PATH=$PATH:$root/.venv/bin # for uv, where there is no other
for folder in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin; do PATH=$folder:$PATH; done # its shims are no interpreters
unset SATURATE_PYTHON

command -v uv >/dev/null || {
  echo "pythons: needs uv, which scripts/setup.sh leaves in .venv/bin" >&2
  exit 2
}
versions=("$@")
if [ ${#versions[@]} -eq 0 ]; then versions=(3.11 3.12 3.13 3.14); fi

# The interpreter of a version: one that is here, or one that uv fetches.
interpreter() {
  uv python find --system --no-project "$1" 2>/dev/null && return
  uv python install --quiet "$1" 2>/dev/null && uv python find --system --no-project "$1"
}

# What a log says in its last line that is not empty.
last() { grep -v '^[[:space:]]*$' "$1" | tail -n 1 | tr -d '|' | cut -c 1-100; }

# Prints a row: row VERSION PYTHON RESOLUTION. In a clone, by the programs that a user calls.
row() {
  local folder=$work/$1-$3 installed='failed' demo='-' tests='-' status=1
  rm -rf "$folder"
  mkdir -p "$folder/path"
  git clone --quiet "$root" "$folder/saturate"
  ln -s "$2" "$folder/path/python3"
  if [ -e "$root/../shared" ]; then ln -s "$(realpath "$root/../shared")" "$folder/shared"; fi # real images of some tests
  (
    cd "$folder/saturate"
    # no builds: the lowest version is then the lowest that has a wheel for this Python
    printf '[pip]\nresolution = "%s"\nonly-binary = [":all:"]\n' "$3" >"$folder/uv.toml"
    export PATH=$folder/path:$PATH UV_CONFIG_FILE=$folder/uv.toml SATURATE_DEMO_DIR=$folder
    scripts/setup.sh --dev >"$folder/install.txt" 2>&1 || exit 1
    if grep -q 'trying pip' "$folder/install.txt"; then exit 1; fi # pip would take the newest
    scripts/demo.sh --epochs 1 >"$folder/demo.txt" 2>&1 || exit 2
    .venv/bin/python -m pytest -q -n "$(nproc)" -m 'not slow' tests/unit tests/conformance >"$folder/tests.txt" 2>&1 || exit 3
  ) && status=0 || status=$?
  if [ "$status" -ne 1 ]; then
    installed='yes'
    demo=$(grep -E '^top-1' "$folder/demo.txt" | tr -s ' ' || last "$folder/demo.txt")
  fi
  if [ -e "$folder/tests.txt" ]; then tests=$(last "$folder/tests.txt"); fi
  printf '| %s | %s | %s | %s | %s |\n' "$("$2" -c 'import platform; print(platform.python_version())')" "$3" \
    "$installed" "$demo" "$tests"
  rm -rf "$folder/saturate/.venv"
  return "$status"
}

failed=0
printf '| Python | packages | installs | first epoch of the demo | quick tests |\n| --- | --- | --- | --- | --- |\n'
for version in "${versions[@]}"; do
  if ! python=$(interpreter "$version"); then
    printf '| %s | - | not here, and uv cannot fetch it | - | - |\n' "$version"
    continue
  fi
  for resolution in highest lowest-direct; do
    row "$version" "$python" "$resolution" || failed=1
  done
done
exit "$failed"
