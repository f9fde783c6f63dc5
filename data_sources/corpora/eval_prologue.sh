# shellcheck shell=bash
# Prints, as bash, the exported variables and the functions that an eval script's prologue leads to.
#
# Argument: the repository's folder. Stdin: the prologue. What enters an environment is a builtin, an assignment, a
# function or a sourced file, since no program can change its shell. So bash runs these, and before each command of the
# prologue a DEBUG trap skips what is a program: resets of the repository, installations, builds. A skipped command
# counts as a success. Programs run all the same in a command substitution, and in files that are sourced. Lines that
# fail, `set -e`, `set -u` and `exit` end nothing.
#
# Not covered: a sourced file that sets a DEBUG trap of its own, and a loop that goes on while a program succeeds.
IFS= read -r -d '' __prologue
exec 3>&1 >/dev/null 2>&1 </dev/null
__value="'[^']*'|\"([^\"\\\\]|\\\\.)*\"|\\\\.|\\\$\\([^()]*(\\([^()]*\\)[^()]*)*\\)|\\([^()]*\\)|[^][:space:]'\"\\\\()]"
__assignments="^([A-Za-z_][A-Za-z0-9_]*(\\[[^]]*\\])?\\+?=($__value)*([[:space:]]+|\$))*"

# Whether a command is to be run.
__runs() {
  set +eu
  local sources=${BASH_SOURCE[*]:1} command=$1
  [[ ${sources//environment/} != *[^\ ]* ]] || return 0 # `environment` is where bash says that our own text is
  ((BASH_SUBSHELL == 0)) || [[ ! -p /dev/stdout ]] || return 0
  [[ $command =~ $__assignments ]]
  command=${command:${#BASH_REMATCH}}
  while [[ $command == @(command|builtin)\ [!-]* ]]; do command=${command#* }; done
  command=${command%%[[:space:]]*}
  command=${command#\\}
  case $command in
    '' | '(('*) return 0 ;;
    : | true | echo | printf | exit | logout | exec | kill | trap | wait) return 1 ;; # they end it, or write files
    *) [[ $(type -t "$command") == @(builtin|function|keyword) ]] ;;
  esac
}

# Also where a sourced file has ended the shell.
# shellcheck disable=SC2317 # a trap calls it
__print() {
  trap - DEBUG EXIT
  unset -f __runs __print
  SHLVL=$((SHLVL - 1))
  export -p >&3
  declare -f >&3
}

cd "$1" || exit
set -- # `source FILE` hands a script's own arguments on, and an eval script has none
shopt -s extdebug
trap __print EXIT
trap '__runs "$BASH_COMMAND"' DEBUG
eval "$__prologue"
