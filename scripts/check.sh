#!/usr/bin/env bash
# scripts/check.sh [--quick|--rdma|--long]: builds with warnings as errors, runs the suites
# (--quick: those that take seconds; --rdma: those that run in guests; --long: also what the others
# leave to it), and ends with the time of each and one line that counts everything that ran. Two
# tests run side by side, but for those that are marked to run alone.
set -euo pipefail
cd "$(dirname "$0")/.."

summary=build/check-summary.txt
stages=()
long=() # for test/vm/check.sh
beside=(--no-suite=long)

# run FOLDER SUITE...: one stage; what it came to is read from its log at the end.
run() {
	local folder=$1 status=0 name begin=$SECONDS
	shift
	printf -v name '%s-' "$folder" "$@"
	name=${name%-}
	echo "== $folder: $*"
	rm -f "$folder/meson-logs/$name.json"
	"${wrapper[@]}" meson test -C "$folder" --no-rebuild --print-errorlogs --num-processes 2 --timeout-multiplier 3 \
		--logbase "$name" "${@/#/--suite=}" "${beside[@]}" </dev/null || status=$?
	stages+=("$status:$((SECONDS - begin)):$folder/meson-logs/$name.json")
}

# build FOLDER MESON-OPTION...: ends the check if it fails.
build() {
	local folder=$1 begin=$SECONDS
	scripts/build.sh "$@"
	stages+=("0:$((SECONDS - begin)):building $folder.done")
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
	FARPAGE_SUITES="unit conformance fuzz" build build-asan -Db_sanitize=address,undefined -Db_lundef=false
	run build-asan unit conformance fuzz
	FARPAGE_SUITES="unit conformance" build build-tsan -Db_sanitize=thread -Db_lundef=false
	local wrapper=()
	fixed_addresses
	run build-tsan unit conformance
	unset ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
}

# Guests start from images that are made meanwhile, at low priority; test/vm/check.sh waits for
# them.
prepare_guests() {
	mkdir -p build
	setpriv --pdeathsig TERM nice -n 19 test/vm/prepare.sh >build/vm-prepare.txt 2>&1 </dev/null &
}

in_guests() {
	local of_guests begin=$SECONDS
	test/vm/check.sh build "${long[@]}"
	mapfile -t of_guests <build/vm-results/stages
	stages+=("${of_guests[@]}" "0:$((SECONDS - begin)):all guests.done")
}

# Random tests for longer than the tests of the suites go on, each of another seed.
campaigns() {
	local status=0 begin=$SECONDS
	make --no-print-directory churn mapdice steps MINUTES=2 STEPS=200000 || status=$?
	stages+=("$status:$((SECONDS - begin)):campaigns.done")
}

wrapper=()
rm -f "$summary"
[[ ${1:-} == --quick ]] || prepare_guests
build build -Dwerror=true -Dtests=enabled
case ${1:-} in
--quick) run build style unit conformance fuzz ;;
--rdma) in_guests ;;
*)
	[[ ${1:-} != --long ]] || { long=(long) beside=(); }
	run build style unit conformance
	under_sanitizers
	run build integration docs
	run build hostile
	run build fault
	run build apps
	in_guests
	[[ ${1:-} != --long ]] || campaigns
	;;
esac
/usr/bin/python3 scripts/summary.py "${stages[@]}" | tee "$summary"
