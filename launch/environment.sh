# shellcheck shell=bash
# Sourced by the shell scripts: makes a virtual environment with this project in it, and keeps it up to date.

TORCH_VERSION=2.13.0

say() { printf '%s\n' "$*" >&2; }

die() {
  say "$*"
  exit 1
}

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  die "Python 3.11 or newer is needed, and none was found. On Debian or Ubuntu: sudo apt-get install python3 python3-venv. Another interpreter: PYTHON=/path/to/python bash ..."
}

# An interpreter that has SLiME, as in SLiME's container image. Fails where there is none.
find_slime_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python; do
    if "$candidate" -c 'import sys, importlib.util as u; sys.exit(u.find_spec("slime.utils.arguments") is None)' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# In SLiME's environment nothing is replaced: what this project needs beside it is asked for.
require_light_packages() { # ROOT PYTHON
  "$2" -c 'import aiohttp, hydra, msgspec, omegaconf, orjson, rich, yaml' 2>/dev/null ||
    die "$2 has SLiME, but not all that this project needs beside it: $2 -m pip install --no-deps -r $1/docker/requirements.txt"
}

# What the environment was made from; a changed dependency makes it stale.
stamp_of() { # ROOT EXTRAS
  printf '%s %s %s\n' "$TORCH_VERSION" "$2" "$(cksum <"$1/pyproject.toml")"
}

make_environment() { # ROOT VENV EXTRAS
  local root=$1 venv=$2 extras=$3 python
  if [ "$(cat "$venv/.installed" 2>/dev/null)" = "$(stamp_of "$root" "$extras")" ]; then
    return
  fi
  if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
      die "$python can't make virtual environments. On Debian or Ubuntu: sudo apt-get install python3-venv"
    say "Making $venv with $python"
    "$python" -m venv --clear "$venv"
  fi
  say "Installing (once; 1 to 5 minutes) ..."
  "$venv/bin/python" -m pip install --quiet "torch==$TORCH_VERSION"
  "$venv/bin/python" -m pip install --quiet --editable "${root}[$extras]"
  stamp_of "$root" "$extras" >"$venv/.installed"
}
