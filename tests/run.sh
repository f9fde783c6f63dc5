#!/usr/bin/env bash
# Lint, type-check and test, in an environment of their own (.venv-test). Arguments go to pytest.
#   bash tests/run.sh [--all | --share K/8] [-k NAME] [-m 'not slow'] ...   (--install: the environment alone)
# Tests marked matrix are left out and reported, unless --all or --share (tests/selection.py) takes them.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/environment.sh
source "$root/launch/environment.sh"

make_environment "$root" "$root/.venv-test" embedded,cluster,corpora,docker,remote,dev
cd "$root"
bin=$root/.venv-test/bin
# Its dependencies would bring CUDA along, and what the tests use needs none of them.
"$bin/python" -m pip install --quiet --no-deps megatron-core==0.16.1
# 13 MB without their dependencies. The tests of tool calls compare with SGLang's parsers, which need none of those.
"$bin/python" -m pip install --quiet --no-deps sglang==0.5.15.post1 partial-json-parser==0.2.1.1.post7
[ "${1:-}" != --install ] || exit 0

"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/shellcheck" -x launch/*.sh launch/*/*.sh launch/slurm/*.sbatch rollout/sandbox/*.sh rollout/sandbox/image/*.sh rewards/swebench/*.sh tests/run.sh tests/rollout/sandbox/*.sh .ci/run
"$bin/hadolint" docker/Dockerfile
"$bin/mypy"
# A file's tests stay on one worker, in the order of the files, which has the longest in the middle.
exec "$bin/python" -m pytest -q -rs --numprocesses=logical --maxprocesses=8 --dist=loadgroup --no-loadscope-reorder "$@"
