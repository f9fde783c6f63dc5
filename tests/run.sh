#!/usr/bin/env bash
# Lint, type-check and test, in an environment of their own (.venv-test). Arguments go to pytest.
#   bash tests/run.sh [--all] [-k NAME] [-m 'not slow'] ...   (--install: the environment alone)
# Tests marked extended are for --all (tests/selection.py). What fails is run once more, alone (tests/second_look.py).
# Where SLIME_HOME and MEGATRON_HOME name checkouts, tests/contract follows in .venv-slime (docs/slime_on_a_cpu.md) with
# one rehearsal, and with --all also its whole runs, each recipe's rehearsal and two fault drills. docs/miles.md says how
# tests/contract_miles run, which skip here.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/environment.sh
source "$root/launch/environment.sh"

make_environment "$root" "$root/.venv-test" cluster,embedded,arc,compare,corpora,diff,docker,factory,humaneval,inspect,remote,sft,trackers,vulnerability,dev
cd "$root"
bin=$root/.venv-test/bin
# Megatron's parallel layers and SGLang's parsers, which the tests compare with: they need none of the dependencies, which
# would bring CUDA along, and few of the files, which are compiled as they are imported.
"$bin/python" -m pip install --quiet --no-deps --no-compile megatron-core==0.16.1 sglang==0.5.15.post1 partial-json-parser==0.2.1.1.post7
[ "${1:-}" != --install ] || exit 0

"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/shellcheck" -x launch/*.sh launch/*/*.sh launch/slurm/*.sbatch sandbox/*.sh sandbox/image/*.sh rewards/swebench/*.sh tests/*.sh tests/sandbox/*.sh .ci/run
"$bin/hadolint" docker/Dockerfile
"$bin/mypy"

# Tests of SLiME's own code; its shims are for processes of their own.
contract_tests() { # WORDS...
  local chosen=(-m "not slow")
  if [ -z "${SLIME_HOME:-}" ] || [ -z "${MEGATRON_HOME:-}" ]; then
    say "tests/contract skipped: SLIME_HOME and MEGATRON_HOME are not both set (docs/slime_on_a_cpu.md)"
    return
  fi
  case "$*" in
    "") ;;
    --all) chosen=(--all) ;;
    *)
      say "tests/contract skipped: only a run without arguments, or with --all alone, has them"
      return
      ;;
  esac
  # shellcheck source=launch/slime_cpu/environment.sh
  source "$root/launch/slime_cpu/environment.sh"
  make_engine_environment "$root" "$root/$ENGINE_VENV"
  "$root/$ENGINE_VENV/bin/python" -m pytest -q -rs "${chosen[@]}" tests/contract
}

# A file's tests stay on one worker, in the order of the files, which has the longest in the middle.
env -u SLIME_HOME -u MEGATRON_HOME \
  "$bin/python" -m tests.second_look -q -rs --numprocesses=logical --maxprocesses=8 --dist=loadgroup --no-loadscope-reorder "$@"
contract_tests "$@"
