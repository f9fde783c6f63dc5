# shellcheck shell=bash
# What SWE-ReX's `execute` runs in a remote sandbox: starts a command, waits for it, or kills it.
#
# Arguments: STATE NAME LOOKS KEEP FOLDER LIMITS HEAD TAIL COMMAND (base64). What has a NAME is started once, however often
# it is asked for. LOOKS: how often to look for its end, a hundredth of a second apart; 0 kills it. KEEP: sessions of
# processes that are none of a command's. LIMITS: flags of `ulimit`. Prints `running`; or the exit status and the bytes of
# output that are missing, then the first HEAD and the last TAIL bytes in base64. STATE/NAME.stdin may hold an input.
state=$1 name=$2 looks=$3 keep=$4 folder=$5 limits=$6 head=$7 tail=$8 command=$9
place=$state/$name

# Kill every process but those of these sessions and the zombies: stopped first, so that none can fork meanwhile.
sweep() {
  local signal pass found file line fields
  for signal in STOP KILL; do
    for ((found = 1, pass = 0; found && pass < 100; pass++)); do
      found=0
      for file in /proc/[0-9]*/stat; do
        line=
        IFS= read -r -d '' line <"$file"
        # shellcheck disable=SC2206 # they are words: the state, the parent, the group, the session
        fields=(${line##*) })
        [[ ${fields[0]} == [ZX] || $signal${fields[0]} == STOPT || " $* " == *" ${fields[3]} "* ]] && continue
        file=${file%/stat}
        kill -s "$signal" "${file##*/}" && found=1
      done
      ((found)) && sleep 0.01
    done
  done
}

# In a session of its own: the command, and what cuts its output.
run() {
  mkfifo "$place/output"
  {
    head -c "$head" >"$place/head"
    { tee /dev/fd/3 | tail -c "$tail" >"$place/tail"; } 3>&1 | wc -c >"$place/rest"
  } <"$place/output" &
  local cut=$!
  exec 4>"$place/output"
  (
    cd "$folder" || cd /
    # shellcheck disable=SC2086 # they are flags
    ulimit $limits
    unset OLDPWD
    export LANG="${LANG:-C.UTF-8}" HOME="${HOME:-/root}" PYTHONHASHSEED=0
    [[ -e $place.stdin ]] && exec <"$place.stdin"
    exec setsid bash --noprofile --norc -c "$(base64 -d <<<"$command")" >&4 2>&1 4>&-
  ) &
  wait "$!"
  local code=$?
  sweep "$keep" "$$"
  exec 4>&-
  wait "$cut"
  echo "$code" >"$place/code"
}

is_running() {
  local line=
  IFS= read -r -d '' line <"/proc/${runner:-none}/stat"
  [[ $line && ${line##*) } != [ZX]* ]]
}

exec 2>/dev/null
if [[ $0 == runner ]]; then
  run
  exit
fi
if mkdir "$place"; then
  for old in "$state"/run-*; do
    [[ $old == "$place"* ]] || rm -rf "$old"
  done
  setsid bash --noprofile --norc -c "$BASH_EXECUTION_STRING" runner "$@" </dev/null >/dev/null 2>&1 &
  echo "$!" >"$place/runner"
fi
read -r runner <"$place/runner"
((looks > 0)) || sweep "$keep" "$runner"
for ((look = 0; look < (looks > 0 ? looks : 500); look++)); do
  is_running || break
  sleep 0.01
done
if is_running && ((looks > 0)); then
  echo running
  exit
fi
sweep "$keep" # what ran the command may have been stopped or killed
read -r code <"$place/code"
read -r rest <"$place/rest"
echo "${code:-137} $((rest > tail ? rest - tail : 0))"
base64 -w0 "$place/head"
echo
base64 -w0 "$place/tail"
