#!/usr/bin/env bash
# test/compat/redis.sh: Redis's own test-suite (Debian's source package, its binaries), plain and
# with far memory, test by test. A server: forks to save, is stopped, killed and restarted; some 60
# processes an hour of them. Tcl, the clients and the servers all run under Farpage, each process
# with 2 MiB local: a fresh server has 8. REDIS_UNITS: other units than those below.
# shellcheck source=test/compat/lib.sh
. "$(dirname "$0")/lib.sh"

units=${REDIS_UNITS:-unit/dump unit/auth unit/protocol unit/keyspace unit/scan unit/info unit/type/string unit/type/incr unit/type/list
	unit/type/list-2 unit/type/list-3 unit/type/set unit/type/zset unit/type/hash unit/type/stream unit/type/stream-cgroups unit/sort
	unit/expire unit/other unit/multi unit/quit unit/aofrw unit/acl unit/pubsub unit/slowlog unit/scripting unit/functions
	unit/introspection unit/introspection-2 unit/limits unit/bitops unit/bitfield unit/geo unit/hyperloglog unit/lazyfree unit/wait
	unit/querybuf unit/tracking unit/maxmemory unit/memefficiency unit/shutdown unit/replybufsize integration/aof
	integration/aof-multi-part integration/rdb integration/corrupt-dump integration/convert-zipmap-hash-on-load
	integration/convert-ziplist-hash-on-load integration/convert-ziplist-zset-on-load integration/logging integration/dismiss-mem
	integration/shutdown integration/redis-cli integration/block-repl}

source=$(fetch_source redis)
for name in redis-server redis-cli redis-benchmark redis-check-rdb redis-check-aof redis-sentinel; do
	ln -sf "/usr/bin/$name" "$source/src/$name"
done
read -r -a list <<<"$(tr -s ' \t\n' ' ' <<<"$units")"

# one HOW UNIT: its tests, one a line. A unit that ends badly without a test that says so counts as
# one more that failed.
one() {
	local how=$1 unit=$2 results=$COMPAT_DIR/redis-$1/${2//\//-} status=0
	(cd "$source" && TERM=dumb pass "$how" 2M timeout --kill-after=60 3600 ./runtest --durable --clients 1 --timeout 900 --single "$unit") \
		>"$results.log" 2>&1 </dev/null || status=$?
	sed -nE 's/\x1b\[[0-9;]*m//g; s/^\[(ok|err|skip|ignore|exception|timeout)\]: (.*)$/\1 \2/p' "$results.log" |
		sed -E 's/ \([0-9]+ ms\)$//; s/ in tests\/.*$//' >"$results.results"
	if ((status)) && ! grep -qvE '^(ok|skip|ignore) ' "$results.results"; then
		echo "err $unit ended with $status" >>"$results.results"
	fi
}

# Plain and far in turn, so that what is there when a run is stopped can be compared. With
# COMPAT_RESUME set, what has results keeps them.
mkdir -p "$COMPAT_DIR/redis-plain" "$COMPAT_DIR/redis-far"
for unit in "${list[@]}"; do
	for how in plain far; do
		wanted "$how" || continue
		[[ -z ${COMPAT_RESUME:-} || ! -s $COMPAT_DIR/redis-$how/${unit//\//-}.results ]] || continue
		SECONDS=0
		one "$how" "$unit"
		say "redis, $unit, $how: $(cut -d' ' -f1 "$COMPAT_DIR/redis-$how/${unit//\//-}.results" | sort | uniq -c | xargs), $SECONDS s"
	done
done

for how in plain far; do
	names=("${list[@]//\//-}")
	(cd "$COMPAT_DIR/redis-$how" && cat "${names[@]/%/.results}") >"$COMPAT_DIR/redis-$how.results"
done
exec "$here/compare.py" "redis-server $(version_of redis-server)" "$COMPAT_DIR/redis-plain.results" "$COMPAT_DIR/redis-far.results"
