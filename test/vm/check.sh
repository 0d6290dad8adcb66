#!/usr/bin/env bash
# test/vm/check.sh BUILD-FOLDER [long]: runs what suites.sh lists, in guests; long: all of it. Logs
# and a list of stages, in the form that scripts/summary.py reads, go to BUILD-FOLDER/vm-results;
# what a guest prints is shown when it has ended. Where there is no emulator or no kernel to be had
# it all counts as one skipped test, or in CI as a failed one. FARPAGE_VM_ONLY is a pattern for the
# names of the guests to run.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

build=${1:-build}
long=${2:-}
results=$(realpath -m "$build")/vm-results
stages=$results/stages
at_once=2 # guests
spare_seconds=60

# stage NAME STATUS SECONDS: NAME.json is in the results, or is missed there.
stage() {
	echo "$2:$3:$results/$1.json:vm" >>"$stages"
}

# verdict NAME RESULT TEXT: the log of a stage that is not meson's.
verdict() {
	printf '{"name": "%s", "result": "%s", "stdout": "%s"}\n' "$1" "$2" "$3" >"$results/$1.json"
}

# beside NAME COMMAND...: runs it beside others, and shows what it printed when it has ended.
beside() {
	local name=$1
	shift
	# shellcheck disable=SC2053
	[[ $name == ${FARPAGE_VM_ONLY:-*} ]] || return 0
	while (($(jobs -pr | wc -l) >= at_once)); do
		wait -n || true
	done
	echo "== $name begins"
	{
		local status=0 begin=$SECONDS
		setpriv --pdeathsig TERM "$@" >"$results/$name.output" 2>&1 </dev/null || status=$?
		stage "$name" "$status" "$((SECONDS - begin))"
		{
			echo "== $name ended with $status after $((SECONDS - begin)) s"
			cat "$results/$name.output"
		} | flock "$results" cat
	} &
}

# parse NAME OPTION... --: sets $options, and $seconds that leave a guest time to come up and to
# end.
parse() {
	shift
	seconds=$((600 - spare_seconds))
	while [[ $1 != -- ]]; do
		[[ $1 != --timeout ]] || seconds=$(($2 - spare_seconds))
		options+=("$1")
		shift
	done
}

in_guest() {
	local name=$1 options=() seconds
	parse "$@"
	shift $((${#options[@]} + 2))
	beside "$name" "$here/run.sh" --results "$results" --console "$results/$name.console" "${options[@]}" -- \
		"$here/suite.sh" "$build" "$name" "$seconds" "$@"
}

# Its results are in a folder of their own, where its guests can wait for each other.
in_pair() {
	local name=$1 options=() seconds node_command program_command
	parse "$@"
	shift $((${#options[@]} + 2))
	node_command=$1
	shift
	mkdir -p "$results/$name"
	ln -s "$name/$name.json" "$results/$name.json"
	printf -v program_command ' %q' "$here/suite.sh" "$build" "$name" "$seconds" "$@"
	beside "$name" "$here/pair.sh" --results "$results/$name" "${options[@]}" -- "$node_command" "exec$program_command"
}

# shellcheck disable=SC2317
end_all() {
	local pids
	mapfile -t pids < <(jobs -pr)
	((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true
	wait
}

main() {
	local reason
	rm -rf "$results"
	mkdir -p "$results"
	if ! "$here/prepare.sh" 2>&1 | tee "$results/prepare.txt" >&2; then
		reason=$(tail -n 1 "$results/prepare.txt" | tr -cd '[:alnum:][:space:]:;,._/()-')
		verdict guests "$([[ -n ${CI:-} ]] && echo ERROR || echo SKIP)" "$reason"
		stage guests 0 0
		return
	fi
	trap end_all EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	# shellcheck source-path=SCRIPTDIR source=suites.sh
	. "$here/suites.sh"
	wait
}

main
