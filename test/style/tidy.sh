#!/usr/bin/env bash
# test/style/tidy.sh BUILD-FOLDER: the checks of .clang-tidy over every C file that is built there.
# The compiler's own warnings are the compiler's business (-w).
set -euo pipefail

program=$(command -v clang-tidy-14 || command -v clang-tidy) || { echo "clang-tidy is not installed" && exit 77; }
cd "$1"
commands=$(mktemp -d)
trap 'rm -rf "$commands"' EXIT
sed 's/ -maccumulate-outgoing-args//' compile_commands.json >"$commands/compile_commands.json" # gcc's alone
sed -n 's/.*"file": "\(.*\)".*/\1/p' compile_commands.json | sort -u |
	xargs --max-procs=2 --max-args=8 "$program" -p "$commands" --quiet --warnings-as-errors='*' --extra-arg=-w
