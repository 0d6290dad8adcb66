#!/usr/bin/env bash
# test/compat/run.sh BUILD [ROW|SUITE...]: every program of test/apps at its large size, then other
# projects' suites, plain and with far memory. Ends with 1 if one of them differs. COMPAT_MODE: the
# fault mode.
set -euo pipefail
cd "$(dirname "$0")/../.."

export FARPAGE_BUILD=$1 COMPAT_MODE=${COMPAT_MODE:-thread} PYTHONPATH=$PWD/test/lib PYTHONDONTWRITEBYTECODE=1
FARPAGE_BUILD=$(cd "$1" && pwd)
shift
programs=(convert gcc java memcached node numpy postgres)
large=(sort dicts stress)
suites=(redis cpython jemalloc)
(($#)) || set -- "${programs[@]}" "${large[@]}" "${suites[@]}"

failed=0
for name in "$@"; do
	echo "== $name"
	if [[ -x test/compat/$name.sh ]]; then
		"test/compat/$name.sh" || failed=1
		continue
	fi
	status=0
	if [[ " ${large[*]} " == *" $name "* ]]; then
		/usr/bin/python3 "test/apps/$name.py" large || status=$?
	else
		/usr/bin/python3 test/apps/programs.py "$name" large "$COMPAT_MODE" || status=$?
	fi
	((status == 0 || status == 77)) || failed=1
done
exit "$failed"
