#!/usr/bin/env bash
# Makes .venv with what requirements.txt names, of Python 3.11 or newer, once, and prints the path of its Python.
#
#   python=$(scripts/setup.sh)          what a run needs
#   python=$(scripts/setup.sh --dev)    and what scripts/test.sh needs
#
# Only that path goes to stdout; progress and errors go to stderr. SATURATE_PYTHON=/path/to/python uses an environment that
# has torch already, such as NVIDIA's image, and installs nothing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

requirements=(requirements.txt)
case "${1:-}" in
  '') ;;
  --dev) requirements+=(requirements-dev.txt) ;;
  *) die "unknown argument '$1': only --dev is known" ;;
esac

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

if [ -n "${SATURATE_PYTHON:-}" ]; then
  command -v "$SATURATE_PYTHON" >/dev/null || die "SATURATE_PYTHON=$SATURATE_PYTHON is no program"
  new_enough "$SATURATE_PYTHON" || die "SATURATE_PYTHON=$SATURATE_PYTHON is not Python 3.11 or newer"
  "$SATURATE_PYTHON" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' ||
    die "SATURATE_PYTHON=$SATURATE_PYTHON has no torch: unset it to let this script make .venv"
  command -v "$SATURATE_PYTHON"
  exit
fi

# One stamp for each file of requirements, so that demo.sh after test.sh installs nothing again. A stamp is its file's
# checksum, written after everything has been installed: what has no stamp is installed, whatever is in .venv.
stamp() { printf '%s/.installed-%s' "$venv" "$1"; }
checksum() { sha256sum <"$root/$1"; }
ready() {
  [ -x "$python" ] || return 1
  local file
  for file in "${requirements[@]}"; do
    [ "$(cat "$(stamp "$file")" 2>/dev/null)" = "$(checksum "$file")" ] || return 1
  done
}

if ready; then
  echo "$python"
  exit
fi

system_python=
for candidate in python3 python3.13 python3.12 python3.11 python; do
  if new_enough "$candidate"; then
    system_python=$(command -v "$candidate")
    break
  fi
done
[ -n "$system_python" ] || die "no Python 3.11 or newer found (python3 is $(python3 --version 2>&1 | tail -n 1)): install one"

# A second call waits here for the first, then finds the work done. The lock belongs to the open file, so it outlives the
# Python that takes it (flock(1) is not everywhere) and goes when this script ends, however it ends.
trap 'exit 130' INT
trap 'exit 143' TERM
exec 9>"$root/.venv.lock"
"$system_python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
if ready; then
  echo "$python"
  exit
fi

# No prompt, no Python fetched in place of the one that was found, and no setting of the user's that sends packages elsewhere.
export UV_PYTHON_DOWNLOADS=never PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_USER=0
unset PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV UV_TARGET UV_PREFIX

# uv trusts its own list of certificates; behind a proxy that signs with its own, only this machine's list works.
if [ -s /etc/ssl/certs/ca-certificates.crt ] || [ -s /etc/pki/tls/certs/ca-bundle.crt ]; then
  export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1} UV_NATIVE_TLS=${UV_NATIVE_TLS:-1}
fi

uv=
if uv --version >/dev/null 2>&1; then
  uv=uv
fi

if ! "$python" -c '' >/dev/null 2>&1; then
  say "making .venv with $("$system_python" --version) ($system_python)"
  if [ -n "$uv" ]; then
    "$uv" venv --quiet --clear --no-project --python "$system_python" "$venv" >&2 </dev/null || die "uv could not make $venv"
  else
    "$system_python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
      die "$system_python cannot make environments: install python3-venv (apt install python3-venv), or uv"
    if ! "$system_python" -m venv --clear "$venv" >&2 </dev/null; then
      rm -rf "$venv"
      die "$system_python -m venv could not make $venv"
    fi
  fi
fi

arguments=()
for file in "${requirements[@]}"; do
  arguments+=(--requirement "$root/$file")
  rm -f "$(stamp "$file")"
done

# uv is faster (19 s against 69 s) but does not read pip's configuration: where that names a mirror, only pip may get through.
with_uv() { "$uv" pip install --python "$python" "${arguments[@]}" >&2 </dev/null; }
with_pip() { "$python" -m pip install "${arguments[@]}" >&2 </dev/null; }
has_pip() { "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null 2>&1; }

say "installing ${requirements[*]} into .venv: about 7 GB, once"
if [ -z "$uv" ] && has_pip && "$python" -m pip install --quiet uv >&2 </dev/null && "$venv/bin/uv" --version >/dev/null 2>&1; then
  uv=$venv/bin/uv
fi
installed=
if [ -n "$uv" ]; then
  if with_uv; then installed=1; else say 'uv did not manage it; trying pip'; fi
fi
if [ -z "$installed" ] && has_pip && with_pip; then installed=1; fi
[ -n "$installed" ] || die 'the installation failed (the lines above say why); the next call tries again'

for file in "${requirements[@]}"; do
  checksum "$file" >"$(stamp "$file").new"
  mv "$(stamp "$file").new" "$(stamp "$file")"
done
echo "$python"
