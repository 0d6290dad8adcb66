#!/usr/bin/env bash
# test/vm/pair.sh [OPTION...] -- NODE-COMMAND PROGRAM-COMMAND: runs two commands, each with bash in
# a guest of its own. A cable joins the guests: rxe0 at 10.77.3.1 in the first and at 10.77.3.2 in
# the second, on eth0. Another joins siw0 at 10.77.4.1 and 10.77.4.2, on eth1. Both may write the
# results folder, which is also where they can wait for each other.
#
#   --kernel, --memory, --timeout, --results: as run.sh has them; one processor each, as rxe starves
#   with more
#
# Lines of output begin with `node: ` and `program: `. When the program's command has ended, the
# node's has ten seconds to end by itself, then its guest is switched off. The status is that of the
# program's command, or the node's if that one ended first and failed. If a guest dies, both are
# started again, once: rdma_rxe of Linux 6.12 sometimes ends in a kernel panic some seconds after a
# cable was pulled.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

options=(--cpus 1 --memory 2048) kernel=6.12 results=''
linger_seconds=10

usage() {
	sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
	exit 2
}

parse() {
	while (($#)); do
		case $1 in
		--kernel) kernel=$2 ;;
		--memory | --timeout) options+=("$1" "$2") ;;
		--results) results=$2 ;;
		--) shift && break ;;
		*) usage ;;
		esac
		shift 2
	done
	(($# == 2)) || usage
	node_command=$1 program_command=$2
}

# guest NAME END,ADDRESS COMMAND: starts one, sets $guest.
guest() {
	local name=$1 cable=$2 command=$3
	setpriv --pdeathsig TERM "$here/run.sh" --kernel "$kernel" "${options[@]}" --results "$results" \
		--console "$results/$name.console" --cable "$cable" -- bash -c "$command" {lock}>&- > >(sed -u "s/^/$name: /" {lock}>&-) 2> >(sed -u "s/^/$name: /" {lock}>&- >&2) &
	guest=$!
	guests+=("$guest")
}

# The emulator that connects wants the other to listen already.
start_both() {
	rm -f "$work"/cable.*
	guests=()
	guest node "listen:$work/cable,10.77.3.1" "$node_command"
	node=$guest
	while [[ ! -S $work/cable.rxe || ! -S $work/cable.siw ]] && kill -0 "$node" 2>/dev/null; do
		sleep 0.1
	done
	guest program "connect:$work/cable,10.77.3.2" "$program_command"
	program=$guest
}

# status_of PID: waits for it; sets $status.
status_of() {
	status=0
	wait "$1" || status=$?
}

# A node that fails leaves a program that waits for it: both end. So do both when the program has
# ended.
wait_both() {
	local first
	status=0
	wait -n -p first "$node" "$program" || status=$?
	if [[ $first == "$node" ]]; then
		((status == 0)) || { switch_off "$program" && return; }
		status_of "$program"
	else
		local of_program=$status waited
		for ((waited = 0; waited < linger_seconds * 5; waited++)); do
			kill -0 "$node" 2>/dev/null || break
			sleep 0.2
		done
		switch_off "$node"
		status=$of_program
	fi
}

switch_off() {
	kill "$1" 2>/dev/null || true
	wait "$1" || true
}

# shellcheck disable=SC2317
clean_up() {
	((${#guests[@]} == 0)) || kill "${guests[@]}" 2>/dev/null || true
	wait
	rm -rf "$work"
}

main() {
	parse "$@"
	[[ -e $cache/$kernel/vmlinux ]] || "$here/prepare.sh" "$kernel" || exit
	temporary_folder
	trap clean_up EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	[[ -n $results ]] || { results=$work/results && mkdir "$results"; }
	start_both
	wait_both
	if ((status == status_died)); then
		say "a guest died: both once more"
		start_both
		wait_both
	fi
	exit "$status"
}

guests=()
main "$@"
