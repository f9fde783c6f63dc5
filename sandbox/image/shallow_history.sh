# shellcheck shell=bash
# Run once in an image, in the repository's folder: cuts off its later history. What the current commit and its ancestors
# hold stays, with the tags that name one of them, the repository's own configuration and what it excludes. Other commits,
# branches, tags, remotes, stashes, reflogs, hooks, submodules' histories and dangling objects go.
# Ends with 3 where there is no history.
set -eu
[ -e .git ] || exit 3
HOME=$(mktemp -d)
export HOME
printf '[safe]\n\tdirectory = *\n[init]\n\tdefaultBranch = main\n' >"$HOME/.gitconfig"

# The entries that neither lead to what goes nor say how objects are stored. A name without a value is true.
copy_configuration() {
  local entry value
  while IFS= read -r -d '' entry; do
    value=${entry#*$'\n'}
    [ "$value" != "$entry" ] || value=true
    case ${entry%%$'\n'*} in
      remote.* | branch.* | submodule.* | extensions.* | include.* | includeif.* | core.repositoryformatversion) ;;
      core.bare | core.worktree | core.hookspath) ;;
      *) git -C "$1" config --add "${entry%%$'\n'*}" "$value" ;;
    esac
  done < <(git config --local --list -z)
}

if git rev-parse -q --verify HEAD >/dev/null; then
  branch=$(git symbolic-ref -q --short HEAD || true)
  new=$HOME/new
  git init -q "$new"
  git tag --merged HEAD | sed 's|.*|refs/tags/&:refs/tags/&|' |
    xargs git -C "$new" fetch -q --no-tags --update-shallow "file://$PWD" HEAD
  commit=$(git rev-parse HEAD)
  if [ -n "$branch" ]; then
    git -C "$new" symbolic-ref HEAD "refs/heads/$branch"
    git -C "$new" update-ref "refs/heads/$branch" "$commit"
  else
    git -C "$new" update-ref --no-deref HEAD "$commit"
  fi
  copy_configuration "$new"
  info=$(git rev-parse --git-path info)
  for file in exclude attributes sparse-checkout; do
    [ ! -f "$info/$file" ] || cp "$info/$file" "$new/.git/info/$file"
  done
  rm -rf "$new/.git/FETCH_HEAD" "$new/.git/logs" "$new/.git/hooks"
  rm -rf .git
  mv "$new/.git" .git
  git -c core.logAllRefUpdates=false reset -q
  rm -f .git/ORIG_HEAD
else
  rm -rf .git # no commit, or no git to make sense of what there is
fi
find . -mindepth 2 -name .git -type f -exec rm -f {} + # of submodules, whose history was in the same folder
rm -rf "$HOME"
