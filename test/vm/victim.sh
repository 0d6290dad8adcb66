#!/usr/bin/env bash
# test/vm/victim.sh BUILD-FOLDER: a machine that vanishes: a program each leases memory over the
# ways that the file `ways` of the results folder lists, a URL and a secret each, until a file
# `vanish` there asks that the kernel stop without a word to anybody.
set -euo pipefail

build=$1
shared=$FARPAGE_VM_RESULTS

# go URL SECRET: the guests are slow at first, so it may take several attempts.
go() {
	local file=/run/secret.${1//\//}
	(umask 077 && echo "$2" >"$file")
	until FARPAGE_SECRET_FILE=$file "$build/tools/farpage" run --local-memory 16M --heap all --node "$1" -- \
		/usr/bin/python3 -c 'x = bytearray(b"x") * (64 << 20); import time; time.sleep(3600)'; do
		sleep 1
	done
}

while [[ ! -e $shared/ways ]]; do
	sleep 0.2
done
while read -r url secret; do
	go "$url" "$secret" </dev/null &
done <"$shared/ways"
while [[ ! -e $shared/vanish ]]; do
	sleep 0.2
done
echo 0 >/proc/sys/kernel/panic # it neither starts again nor ends
echo c >/proc/sysrq-trigger
