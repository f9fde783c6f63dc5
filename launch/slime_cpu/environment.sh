# shellcheck shell=bash
# Sourced by run_qwen_swe.sh for engine=slime_cpu, after launch/environment.sh: an environment in which SLiME and
# Megatron-LM import without a GPU. Their code comes from SLIME_HOME and MEGATRON_HOME, whose commits the engine names.

# shellcheck disable=SC2034 # read by run_qwen_swe.sh
ENGINE_VENV=.venv-slime

# Before anything is installed: exits with the commands that make what is missing.
require_checkouts() { # ROOT
  PYTHONPATH=$1/src "$(find_python)" -m slime_swe.launch.slime.checkouts || exit 2
}

slime_cpu_stamp() { # ROOT
  printf '%s %s\n' "$TORCH_VERSION" "$(cat "$1/pyproject.toml" "$1"/launch/slime_cpu/requirements*.txt | cksum)"
}

# What pins packages that exclude each other, or CUDA ones that are only imported, is installed without dependencies.
make_engine_environment() { # ROOT VENV
  local root=$1 venv=$2 here=$1/launch/slime_cpu
  require_checkouts "$root"
  if [ "$(cat "$venv/.installed" 2>/dev/null)" = "$(slime_cpu_stamp "$root")" ]; then
    return
  fi
  if [ ! -x "$venv/bin/python" ]; then
    say "Making $venv"
    "$(find_python)" -m venv --clear "$venv"
  fi
  say "Installing what SLiME imports (once; about 3 GB, 5 to 15 minutes) ..."
  "$venv/bin/python" -m pip install --quiet --upgrade pip
  "$venv/bin/python" -m pip install --quiet "torch==$TORCH_VERSION"
  "$venv/bin/python" -m pip install --quiet -r "$here/requirements.txt"
  "$venv/bin/python" -m pip install --quiet --no-deps -r "$here/requirements_without_dependencies.txt"
  "$venv/bin/python" -m pip install --quiet --editable "${root}[embedded]"
  slime_cpu_stamp "$root" >"$venv/.installed"
}
