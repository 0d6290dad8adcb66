#!/usr/bin/env bash
# scripts/build.sh FOLDER [MESON-OPTION...]: configures FOLDER on first use, or again with the given
# options, and builds it.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$1
shift
if [[ ! -f $folder/build.ninja ]]; then
	meson setup "$folder" "$@"
elif (($#)); then
	meson configure "$folder" "$@"
fi
exec ninja -C "$folder"
