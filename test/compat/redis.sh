#!/usr/bin/env bash
# test/compat/redis.sh: Redis's own test-suite (Debian's source package, its binaries), plain and with far memory, test by test.
# A server: forks to save, is stopped, killed and restarted; some 60 processes an hour of them. Tcl, the clients and the servers all run
# under Farpage, each process with 2 MiB local: a fresh server has 8. REDIS_UNITS: other units than those below.
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
mapfile -t options < <(tr -s ' \t' '\n' <<<"$units" | sed '/^$/d; s/^/--single\n/')

for how in plain far; do
	wanted "$how" || continue
	say "redis, $how"
	(cd "$source" && TERM=dumb pass "$how" 2M ./runtest --durable --clients 2 --timeout 900 "${options[@]}") \
		>"$COMPAT_DIR/redis-$how.log" 2>&1 </dev/null || say "ended with $?"
	sed -nE 's/\x1b\[[0-9;]*m//g; s/^\[(ok|err|skip|ignore|exception|timeout)\]: (.*)$/\1 \2/p' "$COMPAT_DIR/redis-$how.log" |
		sed -E 's/ \([0-9]+ ms\)$//; s/ in tests\/.*$//' >"$COMPAT_DIR/redis-$how.results"
done
exec "$here/compare.py" "redis-server $(version_of redis-server)" "$COMPAT_DIR/redis-plain.results" "$COMPAT_DIR/redis-far.results"
