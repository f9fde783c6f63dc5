#!/usr/bin/env bash
# Train a coding agent: find or make an environment, pick a recipe for this machine, then `slime-swe train`.
#   bash launch/run_qwen_swe.sh [recipe=NAME] [key=value ...] [--resume] [--json]
# Where SLiME is installed (its container image), the interpreter that has it is used and nothing is installed; elsewhere
# .venv is made once. PYTHON names another interpreter (3.11 or newer) for either. An engine with a script
# launch/NAME/environment.sh has an environment of its own, as slime_cpu does (docs/slime_on_a_cpu.md).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/environment.sh
source "$root/launch/environment.sh"

# It fits 8 GPUs of 80 GB, and its untrained model can act: of those that fit, it is the one with published scores, 32.6 %
# of SWE-bench Verified before training and 37.8 % after (recipes/qwen3_5_4b.py).
GPU_RECIPE=qwen3_5_4b

names_recipe() {
  local argument
  for argument in "$@"; do
    case $argument in
      recipe=* | --resume | -h | --help) return 0 ;;
    esac
  done
  return 1
}

# The script of an engine that has an environment of its own; nothing for the others.
environment_of_engine() { # WORDS...
  local argument script=
  for argument in "$@"; do
    case $argument in engine=*) script=$root/launch/${argument#engine=}/environment.sh ;; esac
  done
  [ ! -f "$script" ] || printf '%s\n' "$script"
}

count_gpus() {
  local listed
  listed=$(command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null) || listed=
  grep -c '^GPU' <<<"$listed" || true
}

pick_recipe() { # GPUS, HAS_SLIME
  if [ "$1" -ge 8 ] && [ -n "$2" ]; then
    say "$1 GPUs and SLiME found. No recipe named: $GPU_RECIPE runs."
    picked=("recipe=$GPU_RECIPE")
    return
  fi
  picked=(recipe=tiny_cpu)
  if [ "$1" -ge 8 ]; then
    say "$1 GPUs found, but not SLiME: the recipes for them need its container image (docs/clusters.md)."
    say "No recipe named: tiny_cpu runs."
  elif [ "$1" -gt 0 ]; then
    say "Fewer than 8 GPUs found. No recipe named: tiny_cpu runs, on the CPU."
  else
    say "No GPU found. No recipe named: tiny_cpu runs."
  fi
}

slime_python=
own_environment=$(environment_of_engine "$@")
if [ -n "$own_environment" ]; then
  # shellcheck source=launch/slime_cpu/environment.sh
  source "$own_environment"
  make_engine_environment "$root" "$root/$ENGINE_VENV"
  slime_swe=("$root/$ENGINE_VENV/bin/slime-swe")
elif slime_python=$(find_slime_python); then
  require_light_packages "$root" "$slime_python"
  export PYTHONPATH=$root/src${PYTHONPATH:+:$PYTHONPATH}
  slime_swe=("$slime_python" -m slime_swe.launch.cli)
else
  make_environment "$root" "$root/.venv" embedded,compare
  slime_swe=("$root/.venv/bin/slime-swe")
fi

if ! command -v bwrap >/dev/null; then
  say "bubblewrap is missing: the agent's commands will run without isolation from your files and network."
  say "To have it: sudo apt-get install bubblewrap"
fi

picked=()
if ! names_recipe "$@"; then
  pick_recipe "$(count_gpus)" "$slime_python"
  say "Recipes and what they want (choose with recipe=NAME):"
  "${slime_swe[@]}" recipes >&2
fi

exec "${slime_swe[@]}" train "${picked[@]}" "$@"
