#!/usr/bin/env bash
# test/vm/suite.sh BUILD-FOLDER NAME SECONDS MESON-TEST-ARGUMENT...: for inside a guest: runs tests
# of a build. Their logs, NAME.json and NAME.txt, are written in the results folder; meson completes
# them when it ends, for which it is asked when the seconds are over.
set -euo pipefail

build=$1 name=$2 seconds=$3
shift 3
mount --bind "$FARPAGE_VM_RESULTS" "$build/meson-logs"
# Processors are emulated: what takes a second outside can take several here.
exec timeout --kill-after=20 "$seconds" meson test -C "$build" --no-rebuild --print-errorlogs \
	--timeout-multiplier 5 --num-processes 1 --logbase "$name" "$@"
