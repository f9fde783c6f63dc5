# shellcheck shell=bash
# Guarded files of a repository, whose paths stand in the file LIST, each with a NUL behind it.
#     put_back keep LIST KEPT       copies those that are there to the folder KEPT
#     put_back restore LIST KEPT    makes of them what they were, and prints the paths that had changed, a NUL behind each
# Between the two a patch is applied, which may have put a link or a file where the folder of a kept file was, or a
# folder in its place. No link that it made is followed.
set -eu
what=$1 list=$2 kept=$3

is_file() { # or a link, in contrast to a folder
  [ -L "$1" ] || { [ -e "$1" ] && [ ! -d "$1" ]; }
}

# Sets `blocked` to the topmost place above the path $1 that a folder would have to be at, and a file or a link is.
find_blocked() {
  local rest=$1 folder=
  blocked=
  while [ "$rest" != "${rest#*/}" ]; do
    folder=$folder${rest%%/*} rest=${rest#*/}
    if is_file "$folder"; then
      blocked=$folder
      return
    fi
    folder=$folder/
  done
}

is_same() {
  if [ -L "$1" ] || [ -L "$2" ]; then
    [ -L "$1" ] && [ -L "$2" ] && [ "$(readlink -- "$1")" = "$(readlink -- "$2")" ]
  else
    [ ! -d "$1" ] && cmp -s -- "$1" "$2"
  fi
}

print_changed() {
  while IFS= read -r -d '' path; do
    find_blocked "$path"
    if is_file "$kept/$path"; then
      if [ -n "$blocked" ]; then
        printf '%s\0' "$blocked"
      elif ! is_same "$path" "$kept/$path"; then
        printf '%s\0' "$path"
      fi
    elif [ -z "$blocked" ] && is_file "$path"; then
      printf '%s\0' "$path"
    fi
  done
}

mkdir -p "$kept"
if [ "$what" = keep ]; then
  while IFS= read -r -d '' path; do
    if is_file "$path"; then cp -a --parents -- "$path" "$kept"; fi
  done <"$list"
else
  print_changed <"$list" >"$list.changed"
  xargs -0 -r rm -rf -- <"$list.changed"
  cp -a "$kept/." .
  cat "$list.changed"
fi
