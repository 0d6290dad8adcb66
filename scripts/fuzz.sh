#!/usr/bin/env bash
# scripts/fuzz.sh TARGET SECONDS: lets libFuzzer look for inputs that break a target of test/fuzz,
# under the sanitizers. What it finds on the way stays in build-fuzz/corpus/TARGET; an input that
# breaks something is build-fuzz/TARGET-*.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$1 seconds=$2
build=build-fuzz
[[ -e test/fuzz/fuzz_$target.c ]] || { echo "no such target: $target (test/fuzz/fuzz_*.c)" >&2; exit 2; }
command -v clang >/dev/null || { echo "this needs clang (apt install clang)" >&2; exit 2; }
[[ -e $build/build.ninja ]] || CC=clang meson setup "$build" -Db_sanitize=address,undefined -Db_lundef=false \
	-Dc_args=-fsanitize=fuzzer-no-link >/dev/null
ninja -C "$build" "test/fuzz/find_$target"
mkdir -p "$build/corpus/$target"
UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 "$build/test/fuzz/find_$target" -max_total_time="$seconds" -max_len=4096 \
	-timeout=60 -print_final_stats=1 -artifact_prefix="$build/$target-" "$build/corpus/$target" "test/fuzz/$target"
