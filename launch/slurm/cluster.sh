# shellcheck shell=bash
# Sourced by the batch scripts: one Ray cluster over all nodes of the SLURM job, and `slime-swe train` as a job on it.
#
#   SLIME_SWE_CACHE      folder of the caches, on a file system that all nodes see (default: .cache in the project)
#   SLIME_SWE_SCRATCH    folder on each node's own disk, of the same name on all (default: SLURM_TMPDIR, TMPDIR or /tmp)
#   SLIME_SWE_CONTAINER  Apptainer image to run in
#   SLIME_SWE_PYTHON     interpreter (default: the container's python3, or .venv's in the project, or python3)
#   SLIME_SWE_BIND       folders for the container, as `apptainer --bind` takes them

STOPPING=120 # seconds that a run gets to stop in, and SLURM to put the job back
TRY_AGAIN=75  # exit code of a run that has saved and stopped

say() { printf '%s\n' "$*" >&2; }

die() {
  say "$*"
  exit 2
}

# Variable -> folder. What is downloaded is kept where all nodes see it; what compilers make, on each node's own disk:
# several nodes that compile the same kernel into one folder break each other's files.
declare -A SHARED=([HF_HOME]=huggingface [PIP_CACHE_DIR]=pip [XDG_CACHE_HOME]=xdg [APPTAINER_CACHEDIR]=apptainer
  [MPLCONFIGDIR]=matplotlib)
declare -A COMPILED=([TRITON_CACHE_DIR]=triton [TORCHINDUCTOR_CACHE_DIR]=inductor [CUDA_CACHE_PATH]=cuda
  [FLASHINFER_WORKSPACE_BASE]=flashinfer [SGLANG_CACHE_DIR]=sglang [SGLANG_DG_CACHE_DIR]=deep_gemm
  [TVM_FFI_CACHE_DIR]=tvm_ffi [TILELANG_CACHE_DIR]=tilelang)

# Where each library keeps its cache: there where the user has exported its variable, else in one of the two folders.
use_caches() { # SHARED SCRATCH
  local name
  mkdir -p "$1" || die "can't make $1: set SLIME_SWE_CACHE to a folder that all nodes can write to"
  scratch=$2/slime-swe-$(id -un)
  export scratch
  for name in "${!SHARED[@]}"; do export "$name=${!name:-$1/${SHARED[$name]}}"; done
  for name in "${!COMPILED[@]}"; do export "$name=${!name:-$scratch/${COMPILED[$name]}}"; done
}

# On each node: make the folders. Where scratch lies, others may write too.
make_caches() {
  local name kind
  (umask 077 && mkdir -p "$scratch") && [ ! -L "$scratch" ] && [ -O "$scratch" ] ||
    die "$scratch can't be made on $(hostname), or is another's: set SLIME_SWE_SCRATCH to a folder on each node's own disk"
  kind=$(stat -f -c %T "$scratch")
  case $kind in
    nfs* | lustre | gpfs | ceph | beegfs | fuse*)
      say "$scratch is on $kind, where nodes break each other's compiled files: set SLIME_SWE_SCRATCH to each node's own disk"
      ;;
  esac
  for name in "${!SHARED[@]}" "${!COMPILED[@]}"; do
    mkdir -p "${!name}" || die "$name=${!name} can't be made on $(hostname)"
  done
}

# What a container must see, beside the project.
cache_folders() {
  local name
  printf '%s' "$SLIME_SWE_CACHE,$scratch"
  for name in "${!SHARED[@]}" "${!COMPILED[@]}"; do
    case ${!name}/ in "$SLIME_SWE_CACHE"/* | "$scratch"/*) ;; *) printf ',%s' "${!name}" ;; esac
  done
}

# The command that runs Python in this job, in `python`.
choose_python() { # ROOT
  python=()
  if [ -n "${SLIME_SWE_CONTAINER:-}" ]; then
    [ -e "$SLIME_SWE_CONTAINER" ] || die "SLIME_SWE_CONTAINER=$SLIME_SWE_CONTAINER does not exist: launch/apptainer/build.sh makes it"
    python=(apptainer exec --nv --bind "$1,$(cache_folders),/tmp${SLIME_SWE_BIND:+,$SLIME_SWE_BIND}" --pwd "$1" "$SLIME_SWE_CONTAINER")
  fi
  if [ -n "${SLIME_SWE_PYTHON:-}" ]; then
    python+=("$SLIME_SWE_PYTHON")
  elif [ ${#python[@]} -eq 0 ] && [ -x "$1/.venv/bin/python" ]; then
    python+=("$1/.venv/bin/python")
  else
    python+=(python3)
  fi
  export PYTHONPATH=$1/src${PYTHONPATH:+:$PYTHONPATH}
  "${python[@]}" -c 'import slime_swe.launch.cli' ||
    die "${python[*]} can't import this project: make .venv (bash launch/run_qwen_swe.sh --help), or set SLIME_SWE_PYTHON or SLIME_SWE_CONTAINER"
}

value_of() { # KEY DEFAULT ARGUMENTS...: the value of the last KEY=value among the arguments
  local key=$1 value=$2 word
  shift 2
  for word in "$@"; do
    case $word in "$key="*) value=${word#*=} ;; esac
  done
  printf '%s\n' "$value"
}

# The arguments of `slime-swe`, in `arguments`, and the run's folder in `folder`. The run is named after the SLURM job, so that it is found again when SLURM
# starts the job anew; it then goes on where it was.
choose_arguments() { # ARGUMENTS...
  local name ends
  name=$(value_of run.name "slurm-$SLURM_JOB_ID" "$@")
  folder=$(value_of run.dir runs "$@")/$name
  arguments=(train "$@" "run.name=$name")
  if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ -e "$folder/recipe.yaml" ]; then
    say "SLURM has restarted this job: going on with $folder"
    arguments+=(--resume)
  fi
  ends=$(end_time)
  [ -z "$ends" ] || arguments+=("--ends-at=$ends")
}

# The exit code of a child, however many signals are handled meanwhile.
await() { # PID
  local code
  while :; do
    signalled=
    code=0
    wait "$1" || code=$?
    [ -n "$signalled" ] || return "$code"
  done
}

stop_job() { # REASON
  signalled=1
  say "$1: the run is asked to stop"
  kill -TERM "$job" 2>/dev/null || true
}

# Seconds of Unix time by which a run must have ended: SLURM's own, less what stopping takes. Nothing where there is none.
end_time() {
  local shown
  shown=$(scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null | grep -o ' EndTime=[^ ]*') || return 0
  shown=$(date --date="${shown#*=}" +%s 2>/dev/null) || return 0 # "Unknown" without a limit
  printf '%s\n' "$((shown - STOPPING))"
}

# The run saves when its step ends, and stops. Where that comes too late it is stopped as it is. No `local` and no `return`
# here, as bash would lose the variables of the function that the signal has come in.
save_and_stop() { # REASON
  if [ -e "$folder/recipe.yaml" ] && printf '0\n' >"$folder/stop_by"; then
    signalled=1
    say "$1: the run is asked to save when its step ends, and to stop"
    stop_at "$(end_time)" >/dev/null 2>&1 &
  else
    stop_job "$1"
  fi
}

stop_at() { # SECONDS of Unix time, if any
  [ -n "$1" ] || return 0
  while [ "$(date +%s)" -lt "$1" ]; do
    sleep 1
    kill -0 "$job" || return 0
  done
  kill -TERM "$job"
}

train_on_cluster() { # ROOT ARGUMENTS...
  local root=$1 rendezvous code=0 requeue='' folder
  shift
  : "${SLURM_JOB_ID:?is not set: submit this script with sbatch}"
  cd "$root" || die "can't go to $root"
  export SLIME_SWE_CACHE=${SLIME_SWE_CACHE:-$root/.cache}
  use_caches "$SLIME_SWE_CACHE" "${SLIME_SWE_SCRATCH:-${SLURM_TMPDIR:-${TMPDIR:-/tmp}}}"
  make_caches
  choose_python "$root"
  choose_arguments "$@"
  rendezvous=$SLIME_SWE_CACHE/slurm/$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
  mkdir -p "$rendezvous"

  # Each node gives all that it has, however much that is: a number of CPUs per task would be the same for all of them.
  # shellcheck disable=SC2016 # it expands on the nodes
  env -u SLURM_CPUS_PER_TASK -u SRUN_CPUS_PER_TASK \
    srun --kill-on-bad-exit=1 --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpu-bind=none \
    bash -c 'source "$1" && make_caches && exec "${@:2}"' bash "$root/launch/slurm/cluster.sh" \
    "${python[@]}" -m slime_swe.launch.ray.slurm node "$rendezvous" &
  nodes=$!
  "${python[@]}" -m slime_swe.launch.ray.slurm submit "$rendezvous" --nodes "$SLURM_JOB_NUM_NODES" --srun "$nodes" -- "${arguments[@]}" &
  job=$!
  trap 'requeue=1; save_and_stop "SLURM needs these nodes back, or their time is up"' USR1
  trap 'stop_job "SLURM ends this job"' TERM
  await "$job" || code=$?
  : >"$rendezvous/done" # the nodes end when they see it
  wait "$nodes" || true

  if [ "$code" = "$TRY_AGAIN" ] || { [ -n "$requeue" ] && [ "$code" = 130 ]; }; then
    say "back into the queue"
    scontrol requeue "$SLURM_JOB_ID" ||
      die "could not be put back into the queue; to go on: sbatch ... $(printf '%q ' "${arguments[@]:1}") --resume"
  fi
  return "$code"
}
