#!/usr/bin/env bash
# Runs a command as on a machine that has nothing: an empty HOME and an empty /tmp, which end with it, and no daemon of
# Docker. Caches of pip and npm stay. Needs root.   bash tests/bare.sh bash tests/run.sh
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${SLIME_SWE_BARE:-}" ]; then
  SLIME_SWE_BARE=1 exec unshare --mount --propagation private bash "${BASH_SOURCE[0]}" "$@"
fi
unset SLIME_SWE_BARE
PIP_CACHE_DIR=${PIP_CACHE_DIR:-$(python3 -m pip cache dir)}
NPM_CONFIG_CACHE=${NPM_CONFIG_CACHE:-$HOME/.npm}
PYENV_ROOT=${PYENV_ROOT:-$HOME/.pyenv}
export PIP_CACHE_DIR NPM_CONFIG_CACHE PYENV_ROOT
cd "$root"
mount -t tmpfs -o size=16g,mode=1777 tmpfs /tmp
if [[ "$root" == /tmp/* ]]; then # it is below what was just hidden
  mkdir -p "$root"
  mount --no-canonicalize --bind . "$root"
  cd "$root"
fi
export HOME=/tmp/home DOCKER_HOST=unix:///tmp/no-docker
mkdir "$HOME"
"$@"
