#!/usr/bin/env bash
# test/vm/victim.sh BUILD-FOLDER: a machine that vanishes: its program leases memory of the node that the file `url` of the
# results folder names, until a file `vanish` there asks that the kernel stop without a word to anybody.
set -euo pipefail

build=$1
shared=$FARPAGE_VM_RESULTS

while [[ ! -e $shared/url ]]; do
	sleep 0.2
done
echo open-sesame-open-sesame >/run/secret
until FARPAGE_SECRET_FILE=/run/secret "$build/tools/farpage" run --local-memory 16M --heap all --node "$(<"$shared/url")" -- \
	/usr/bin/python3 -c 'x = bytearray(b"x") * (64 << 20); import time; time.sleep(3600)'; do
	sleep 1 # the guests are slow at first
done &
while [[ ! -e $shared/vanish ]]; do
	sleep 0.2
done
echo 0 >/proc/sys/kernel/panic # it neither starts again nor ends
echo c >/proc/sysrq-trigger
