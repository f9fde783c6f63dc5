#!/usr/bin/env bash
# Train a coding agent: make .venv once, pick a recipe for this machine, then `slime-swe train`.
#   bash launch/run_qwen_swe.sh [recipe=NAME] [key=value ...] [--resume] [--json]
# PYTHON names another interpreter (3.11 or newer) to make the environment with.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/environment.sh
source "$root/launch/environment.sh"

names_recipe() {
  local argument
  for argument in "$@"; do
    case $argument in
      recipe=* | --resume | -h | --help) return 0 ;;
    esac
  done
  return 1
}

make_environment "$root" "$root/.venv" embedded

if ! command -v bwrap >/dev/null; then
  say "bubblewrap is missing: the agent's commands will run without isolation from your files and network."
  say "To have it: sudo apt-get install bubblewrap"
fi

picked=()
if ! names_recipe "$@"; then
  picked=(recipe=tiny_cpu)
  if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
    say "GPU found. No recipe named: tiny_cpu runs, on the GPU where PyTorch can use it."
  else
    say "No GPU found. No recipe named: tiny_cpu runs."
  fi
  say "Recipes and what they want (choose with recipe=NAME):"
  "$root/.venv/bin/slime-swe" recipes >&2
fi

exec "$root/.venv/bin/slime-swe" train "${picked[@]}" "$@"
