#!/usr/bin/env bash
# scripts/build.sh FOLDER [MESON-OPTION...]: configures FOLDER on first use, or again with the given
# options, and builds it. FARPAGE_SUITES, if set, names suites: only what their tests need is built.
# In FARPAGE_SUITES, the word `installed` means what `make install` installs.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$1
shift
if [[ ! -f $folder/build.ninja ]]; then
	meson setup "$folder" "$@"
elif (($#)); then
	meson configure "$folder" "$@"
fi
targets=()
if [[ -n ${FARPAGE_SUITES:-} ]]; then
	ninja -C "$folder" build.ninja # so that the lists are of today
	# shellcheck disable=SC2086
	mapfile -t targets < <(/usr/bin/python3 scripts/targets.py "$folder" $FARPAGE_SUITES)
fi
exec ninja -C "$folder" "${targets[@]}"
