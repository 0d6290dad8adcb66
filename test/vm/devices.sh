#!/usr/bin/env bash
# test/vm/devices.sh alone|node|program: that the soft RDMA devices of this guest carry data, by
# other people's programs. Alone, over each network of network.sh within a guest; as the node and
# the program of a pair, from one to the other.
set -euo pipefail

count=50

# Waits until a server that connects through rdma_cm listens, or nearly: the state is shown a moment
# before the device takes connections, so that a client may still be rejected once.
await_listener() {
	local try
	for ((try = 0; try < 100; try++)); do
		[[ $(rdma resource show cm_id) != *LISTEN* ]] || return 0
		sleep 0.1
	done
	echo "no server listens" && return 1
}

# insist COMMAND...: a client, tried until its server takes it.
insist() {
	local try
	for ((try = 0; try < 20; try++)); do
		timeout 60 "$@" && return
		sleep 0.5
	done
	return 1
}

# ping ADDRESS [NODE-NAMESPACE PROGRAM-NAMESPACE]: SEND, READ and WRITE there and back, with the
# data compared. Each try has a server of its own.
ping() {
	local server=(rping -s -a "$1") client=(rping -c -V -a "$1" -S 4096 -C "$count") pid try
	if (($# == 3)); then
		server=(ip netns exec "$2" "${server[@]}")
		client=(ip netns exec "$3" "${client[@]}")
	fi
	for ((try = 0; try < 5; try++)); do
		timeout 100 "${server[@]}" -C "$count" -S 4096 &
		pid=$!
		await_listener
		if timeout 20 "${client[@]}"; then
			wait "$pid" || true # the client has compared the data; the server may trip over its own end
			echo "rping: $1 answers"
			return
		fi
		kill "$pid" 2>/dev/null || true # a server that saw a client fail may take no other one
		wait "$pid" || true
	done
	return 1
}

alone() {
	rdma link
	[[ $(rdma link | grep -c 'state ACTIVE') == 4 ]] || { echo "not all four devices are up" && return 1; }
	ping 10.77.0.1
	ping 10.77.1.1
	ping 10.77.2.1 node program
}

# The queue pairs are first connected through rdma_cm, then by hand over TCP. (With -R perftest
# gives up its listener for a moment between two connections, and a client that is too quick is
# rejected for good.)
node() {
	rping -s -a 10.77.3.1 -C "$count" -S 4096
	ib_read_lat -F -d rxe0 -s 4096 -n 500 >/dev/null
}

# The tests that follow want the node that node.sh starts after these devices.
await_node() {
	local try
	for ((try = 0; try < 600; try++)); do
		! grep -q ' serves ' "$FARPAGE_VM_RESULTS/node.log" 2>/dev/null || return 0
		sleep 0.1
	done
	echo "farpaged does not come up in the node's guest" && return 1
}

program() {
	local figures
	insist rping -c -V -a 10.77.3.1 -S 4096 -C "$count"
	figures=$(insist ib_read_lat -F -d rxe0 -s 4096 -n 500 10.77.3.1)
	grep -A 1 '#bytes' <<<"$figures"
	await_node
}

[[ -n ${FARPAGE_VM_KERNEL:-} ]] || { echo "only for a guest: see test/vm/README.md" && exit 77; }
case ${1:-} in
alone | node | program) "$1" ;;
*) echo "usage: devices.sh alone|node|program" >&2 && exit 2 ;;
esac
