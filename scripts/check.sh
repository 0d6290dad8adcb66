#!/usr/bin/env bash
# scripts/check.sh [--quick|--rdma]: builds with warnings as errors, runs the suites (--quick: those
# that take seconds; --rdma: those that run in guests), and ends with one line that counts
# everything that ran. Two tests run side by side, but for those that are marked to run alone, and
# for the fault suite, whose tests wait for deadlines.
set -euo pipefail
cd "$(dirname "$0")/.."

summary=build/check-summary.txt
stages=()

# run FOLDER PROCESSES SUITE...: one stage; what it came to is read from its log at the end.
run() {
	local folder=$1 processes=$2 status=0 name
	shift 2
	printf -v name '%s-' "$folder" "$@"
	name=${name%-}
	echo "== $folder: $*"
	rm -f "$folder/meson-logs/$name.json"
	"${wrapper[@]}" meson test -C "$folder" --no-rebuild --print-errorlogs --num-processes "$processes" \
		--logbase "$name" "${@/#/--suite=}" </dev/null || status=$?
	stages+=("$status:$folder/meson-logs/$name.json")
}

# ThreadSanitizer needs the address space where it expects it; containers may forbid asking for
# that.
fixed_addresses() {
	local machine
	machine=$(uname -m)
	if setarch "$machine" --addr-no-randomize true 2>/dev/null; then
		wrapper=(setarch "$machine" --addr-no-randomize)
	fi
}

under_sanitizers() {
	export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
	export TSAN_OPTIONS=second_deadlock_stack=1
	scripts/build.sh build-asan -Db_sanitize=address,undefined -Db_lundef=false
	run build-asan 2 unit conformance fuzz
	scripts/build.sh build-tsan -Db_sanitize=thread -Db_lundef=false
	local wrapper=()
	fixed_addresses
	run build-tsan 2 unit conformance
	unset ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
}

# Guests start from images that are made meanwhile, at low priority; test/vm/check.sh waits for
# them.
prepare_guests() {
	mkdir -p build
	setpriv --pdeathsig TERM nice -n 19 test/vm/prepare.sh >build/vm-prepare.txt 2>&1 </dev/null &
}

in_guests() {
	local of_guests
	test/vm/check.sh build
	mapfile -t of_guests <build/vm-results/stages
	stages+=("${of_guests[@]}")
}

wrapper=()
rm -f "$summary"
[[ ${1:-} == --quick ]] || prepare_guests
scripts/build.sh build -Dwerror=true
case ${1:-} in
--quick) run build 2 style unit conformance fuzz ;;
--rdma) in_guests ;;
*)
	run build 2 style unit conformance fuzz
	under_sanitizers
	run build 2 integration
	run build 1 hostile
	run build 1 fault
	run build 2 apps
	in_guests
	;;
esac
/usr/bin/python3 scripts/summary.py "${stages[@]}" | tee "$summary"
