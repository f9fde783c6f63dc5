#!/usr/bin/env bash
# Build the Apptainer image of docker/Dockerfile's image.
#   bash launch/apptainer/build.sh [OUTPUT.sif]                              from the Docker daemon of this machine
#   FROM=registry.example.org/slime-swe:1 bash launch/apptainer/build.sh     from a registry
#   FROM=/path/slime-swe.tar bash launch/apptainer/build.sh                  from what `docker save` wrote
# TMPDIR needs room for the unpacked image, about three times the size of the packed one.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
output=${1:-$root/slime-swe.sif}
source=${FROM:-slime-swe:latest}

die() {
  printf '%s\n' "$*" >&2
  exit 2
}

command -v apptainer >/dev/null || die "apptainer is missing: https://apptainer.org/docs/admin/main/installation.html"
[ ! -e "$output" ] || die "$output exists already: give another name, or remove it"

if [ -z "${FROM:-}" ]; then
  command -v docker >/dev/null || die "docker is missing: name a registry or an archive with FROM=..."
  docker image inspect "$source" >/dev/null 2>&1 ||
    die "there is no image $source: docker build -f docker/Dockerfile -t slime-swe $root"
  bootstrap=docker-daemon
elif [ -f "$source" ]; then
  bootstrap=docker-archive
else
  bootstrap=docker
fi

exec apptainer build --build-arg "bootstrap=$bootstrap" --build-arg "from=$source" "$output" \
  "$root/launch/apptainer/container.def"
