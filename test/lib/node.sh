# Shell helpers for scripts that need a memory node and must leave nothing behind. To be sourced by
# bash. Wants $build (the build folder, absolute). Room: test/lib.
# shellcheck shell=bash disable=SC2154,SC2034

workdir=$(mktemp -d "${TMPDIR:-/tmp}/farpage.XXXXXX")
started=()

# stop PID: asks a process that we started to end, and insists after five seconds.
stop() {
	local pid=$1 tenths
	kill -TERM "$pid" 2>/dev/null || return 0
	for ((tenths = 0; tenths < 50; tenths++)); do
		kill -0 "$pid" 2>/dev/null || return 0
		sleep 0.1
	done
	kill -KILL "$pid" 2>/dev/null || true
}

clean_up() {
	local i
	for ((i = ${#started[@]} - 1; i >= 0; i--)); do
		stop "${started[i]}"
	done
	rm -rf "$workdir"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# node_start SIZE: a memory node with SIZE on a free port of loopback; sets node_url and node_pid.
node_start() {
	cat >"$workdir/node.yaml" <<-YAML
		listen: tcp://127.0.0.1:0
		pools:
		  - name: main
		    size: $1
	YAML
	mkfifo "$workdir/ready"
	"$build/daemon/farpaged" --config "$workdir/node.yaml" --ready-fd 3 \
		2>"$workdir/node.log" 3<>"$workdir/ready" &
	node_pid=$!
	started+=("$node_pid")
	if ! read -r -t 10 node_url <>"$workdir/ready"; then
		echo "the memory node did not come up:" >&2
		cat "$workdir/node.log" >&2
		return 1
	fi
	rm "$workdir/ready"
}
