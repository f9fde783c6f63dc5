# shellcheck shell=bash
# The first process (PID 1) of a sandbox made from an image: runs one command at a time, for the host.
#
# Arguments: how each command is limited (flags of `ulimit`), and the repository's folder. The host writes to our stdin
#     TOKEN KIND SIZE BLOCKS\n  SIZE bytes of a command  BLOCKS * 10240 bytes that it reads as its stdin
# and reads from our stdout "TOKEN:start\n", all that the command printed, and "TOKEN:end EXIT-STATUS KILLED\n", by which
# time every process but this one is dead. KIND: `run`, `feed` (a command with a stdin), `setup` (in this very shell, so
# that commands inherit what it sets). SIGUSR1 kills what is running. The end of our stdin is our own end.
#
# Commands are forks of this shell: variables in __ are unset for them. A command of the same user can still reach into
# this process, where the kernel lets it; see docs/sandboxes.md for what comes of that.

exec 3<&0 </dev/null 2>/dev/null
unset BASH_EXECUTION_STRING
umask 022
__limits=$1 __folder=$2
set --
set -m # each command is a process group of its own, and SIGINT is not ignored in it
[[ -d $__folder ]] || mkdir -p -- "$__folder"
__killed=0
trap '__killed=1; kill -KILL -1' USR1

# In a fork: what a fresh shell would have.
__begin() {
  trap - USR1
  set +m
  echo 1000 >/proc/self/oom_score_adj # so that out of memory is never the end of this shell
  # shellcheck disable=SC2086 # they are flags
  ulimit $__limits
  ulimit -n 4096 || ulimit -n hard # open files; the next three the kernel counts for each user of the machine:
  ulimit -i 1024                   # pending signals,
  ulimit -l 1024                   # locked KiB,
  ulimit -q 131072                 # bytes in message queues
  cd "$__folder" || cd /
  unset OLDPWD __token __kind __size __blocks __limits __folder __killed __code
  unset -f __begin __forget_proxies
  exec 2>&1
}

# No proxy can be reached, and the loopback that commands do have would be asked for through it.
__forget_proxies() {
  local __name
  for __name in $(compgen -e); do
    [[ ${__name,,} != *_proxy ]] || unset "$__name"
  done
}

__forget_proxies
printf 'ready\n'
while read -r __token __kind __size __blocks <&3; do
  IFS= LC_ALL=C read -r -N "$__size" __command <&3 || exit
  printf '%s:start\n' "$__token"
  __killed=0
  case $__kind in
    run)
      (
        __begin
        exec 3<&-
        eval "unset __command; $__command"
      ) &
      wait "$!"
      __code=$?
      ;;
    feed) # the rest of the input is read even where the command does not, or the next one would begin in it
      (
        dd ibs=10240 count="$__blocks" iflag=fullblock obs=1M <&3 | (
          __begin
          exec 3<&-
          (eval "unset __command; $__command")
          __code=$?
          cat >/dev/null
          exit "$__code"
        )
      ) &
      wait "$!"
      __code=$?
      ;;
    setup)
      exec 4>&2 2>&1
      eval "$__command"
      __code=$?
      exec 2>&4 4>&-
      __forget_proxies
      set +abefhkntuvxBCEHPT -m -B -h
      ;;
  esac
  until ! kill -KILL -1; do :; done # until none is left, not even to be reaped
  printf '%s:end %d %d\n' "$__token" "$__code" "$__killed"
done
