#!/usr/bin/env bash
# Leaves FOLDER/bin/apptainer, for the PATH of tests: Debian has Apptainer in sid only, so that it runs in a sid system of
# its own at FOLDER/sid, in which every other folder of this machine is at the place that it has here. Needs root and
# debootstrap.
#   bash tests/sandbox/apptainer_here.sh FOLDER
set -euo pipefail

folder=$(realpath -m "$1")
mkdir -p "$folder/bin"
if [ ! -e "$folder/sid" ]; then
  rm -rf "$folder/half"
  debootstrap --variant=minbase --include=apptainer sid "$folder/half" >"$folder/log" ||
    { tail -n 20 "$folder/log" >&2 && exit 1; }
  touch "$folder/half/etc/hosts" "$folder/half/etc/resolv.conf" # it copies them into what it builds
  mv "$folder/half" "$folder/sid"
fi

cat >"$folder/enter" <<'ENTER'
set -eu
sid=$1
shift
mount --bind "$sid" "$sid"
for place in /*; do
  case $place in /bin | /boot | /etc | /lib* | /sbin | /usr | /var) continue ;; esac
  if [ -d "$place" ] && mkdir -p "$sid$place"; then mount --rbind "$place" "$sid$place"; fi
done
cd "$sid"
PATH=$PATH:/usr/sbin:/sbin
pivot_root . .
umount -l .
cd /
exec /usr/bin/apptainer "$@"
ENTER

# A child of the shell, which stays in the mount namespace that it is in, as Apptainer's own first process does.
cat >"$folder/bin/apptainer" <<WRAPPER
#!/bin/sh
user=
[ "\$(id -u)" = 0 ] || user=--map-root-user
unshare \$user --mount sh "$folder/enter" "$folder/sid" "\$@"
WRAPPER
chmod +x "$folder/bin/apptainer"
"$folder/bin/apptainer" --version >&2
