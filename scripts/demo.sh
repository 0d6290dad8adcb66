#!/usr/bin/env bash
# scripts/demo.sh BUILD-FOLDER: a stock redis-server keeps over 400 MiB of data in 64 MiB of local
# memory, first over shm with a private memory node, then over tcp with one of its own;
# redis-benchmark drives it, every value is read back and compared, and the report and the histogram
# are shown.
set -euo pipefail
cd "$(dirname "$0")/.."

build=$(realpath "$1")
farpage=$build/tools/farpage
local_mib=64
data_mib=400
. test/lib/node.sh
socket=$workdir/redis.sock

fail() {
	echo "demo: FAILED: $*" >&2
	for log in "$workdir"/*.log; do
		[[ -s $log ]] && echo "--- ${log##*/}" >&2 && tail -n 20 "$log" >&2
	done
	exit 1
}

ask() {
	redis-cli -s "$socket" "$@" 2>/dev/null
}

info() {
	ask INFO "$1" | sed -n "s/^$2:\([0-9]*\).*/\1/p"
}

# redis_start NAME NODE-OPTION...
redis_start() {
	local name=$1 tenths
	shift
	"$farpage" run --local-memory "${local_mib}M" "$@" --report -- \
		redis-server --port 0 --unixsocket "$socket" --dir "$workdir" --save '' --appendonly no \
		>"$workdir/redis.log" 2>"$workdir/$name.log" &
	run_pid=$!
	started+=("$run_pid")
	for ((tenths = 0; tenths < 100; tenths++)); do
		[[ $(ask PING) != PONG ]] || return 0
		kill -0 "$run_pid" 2>/dev/null || break
		sleep 0.1
	done
	fail "redis-server did not come up over $name"
}

# The resident far memory is anonymous memory of the process; what shm maps of the node is not.
show_memory() {
	local anon dataset
	anon=$(($(sed -n 's/^RssAnon:\s*\([0-9]*\) kB/\1/p' "/proc/$(info server process_id)/status") / 1024))
	dataset=$(($(info memory used_memory_dataset) / 1024 / 1024))
	echo "  redis-server holds $dataset MiB of data; $anon MiB of its memory are local"
	((dataset >= data_mib)) || fail "the server should hold $data_mib MiB"
	((anon < 2 * local_mib)) || fail "$anon MiB are local, with a budget of $local_mib MiB"
}

# benchmark REQUESTS KEYS COMMAND...
benchmark() {
	redis-benchmark -s "$socket" -c 20 -P 4 --csv -n "$1" -r "$2" "${@:3}" |
		awk -F'"' 'NR > 1 {printf "  redis-benchmark %s: %.0f/s, p50 %s ms, p99 %s ms\n", verb, $4, $10, $14}' verb="$3"
}

drive() {
	/usr/bin/python3 scripts/demo_data.py load "$socket" || fail "loading"
	show_memory
	benchmark 30000 210000 GET far:__rand_int__
	benchmark 50000 20000 SET bench:__rand_int__ "$(/usr/bin/python3 scripts/demo_data.py benchmark-value)"
	/usr/bin/python3 scripts/demo_data.py verify "$socket" || fail "reading back"
	show_memory
}

# demo NAME NODE-OPTION...
demo() {
	local name=$1 status=0 begin=$SECONDS
	echo "== redis-server with $local_mib MiB local, over $name"
	redis_start "$@"
	drive
	ask SHUTDOWN NOSAVE || true
	wait "$run_pid" || status=$?
	((status == 0)) || fail "redis-server ended with $status"
	cat "$workdir/$name.log"
	echo "== over $name: $((SECONDS - begin)) s"
}

demo shm
node_start 1G || fail "no memory node"
demo tcp --node "$node_url"
echo "demo: passed: over shm and over tcp every value came back as it was written"
