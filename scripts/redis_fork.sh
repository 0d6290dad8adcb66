#!/usr/bin/env bash
# scripts/redis_fork.sh BUILD-FOLDER ROUNDS: redis-server saves itself while it is written to, and a
# plain one loads what was saved (test/apps/redis_save.py), over shm, over tcp, and over rdma in a
# guest with a soft device.
set -euo pipefail
cd "$(dirname "$0")/.."

FARPAGE_BUILD=$(realpath "$1")
PYTHONPATH=$PWD/test/lib
PYTHONDONTWRITEBYTECODE=1
export FARPAGE_BUILD PYTHONPATH PYTHONDONTWRITEBYTECODE
rounds=$2

for transport in shm tcp; do
	echo "== over $transport"
	/usr/bin/python3 test/apps/redis_save.py "$transport" "$rounds"
done
echo "== over rdma, in a guest"
test/vm/run.sh --kernel 6.12 --setup one-namespace --timeout 1500 -- \
	env FARPAGE_TEST_RDMA=10.77.0.1 FARPAGE_BUILD="$FARPAGE_BUILD" PYTHONPATH="$PYTHONPATH" \
	/usr/bin/python3 test/apps/redis_save.py rdma "$rounds"
