# Run in mount namespaces of its own: joins the cgroups, mounts the overlay, becomes bubblewrap.
# $1: an empty folder to mount below. $2: bytes of a private tmpfs for what the sandbox writes, or a folder instead.
# $3: options of the overlay. $4: cgroup.procs files, one a line. The rest: the program.
set -e
IFS='
'
for group in $4; do echo 0 >"$group"; done
case $2 in
  /*) mount --bind "$2" "$1" ;;
  *) mount -t tmpfs -o "size=$2,nr_inodes=200k,mode=755" slime-swe "$1" ;;
esac
mkdir -p "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "$3,upperdir=$1/upper,workdir=$1/work" slime-swe "$1/root"
shift 4
exec "$@"
