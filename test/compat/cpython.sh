#!/usr/bin/env bash
# test/compat/cpython.sh: CPython's own test-suite (Debian's libpython3.11-testsuite, unpacked, not
# installed), plain and with far memory, test by test. A language runtime: threads, mmap,
# multiprocessing by fork and by spawn, subprocesses, signals, its allocator. Each process has 3 MiB
# local: a fresh interpreter with the test framework has 12. CPYTHON_TESTS: other tests than those
# below.
# shellcheck source=test/compat/lib.sh
. "$(dirname "$0")/lib.sh"

tests=${CPYTHON_TESTS:-test_threading test_thread test_threadsignals test_threading_local test_mmap test_subprocess
	test_multiprocessing_fork test_multiprocessing_spawn test_multiprocessing_main_handling test_concurrent_futures test_fork1
	test_wait3 test_wait4 test_posix test_os test_signal test_gc test_weakref test_array test_bytes test_memoryview test_list test_dict
	test_set test_deque test_heapq test_sort test_long test_io test_memoryio test_bufio test_fileio test_tempfile test_select
	test_selectors test_socket test_asyncio test_queue test_sched test_zlib test_bz2 test_lzma test_hashlib test_json test_pickle
	test_struct test_sqlite3 test_ctypes test_faulthandler test_resource test_pty test_decimal test_unicode test_re test_shelve
	test_shutil test_zipfile test_tarfile test_logging test_embed test_cmd_line test_exceptions test_generators test_coroutines
	test_multibytecodec}

# An interpreter of its own, with the tests where they belong: some are run with -I, which ignores
# PYTHONPATH.
root=$(fetch_package libpython3.11-testsuite)
home=$COMPAT_DIR/cpython
python=$home/bin/python3.11
mkdir -p "$home/bin" "$home/lib"
cp --update /usr/bin/python3.11 "$home/bin/"
cp -r --update /usr/lib/python3.11 "$home/lib/"
cp -r --update "$root/usr/lib/python3.11/test" "$home/lib/python3.11/"
read -r -a list <<<"$(tr -s ' \t\n' ' ' <<<"$tests")"

# one HOW MODULE: its tests, one a line. A module that ends badly without a test that says so counts
# as one more that failed.
one() {
	local how=$1 module=$2 results=$COMPAT_DIR/cpython-$1/$2 scratch=$COMPAT_DIR/cpython-$1/$2.tmp status=0
	rm -rf "$scratch" "$results.xml"
	mkdir -p "$scratch"
	(cd "$scratch" && LC_ALL=C.UTF-8 TMPDIR=$scratch pass "$how" 3M timeout --kill-after=60 7200 "$python" -m test -j1 --timeout 7000 \
		--junit-xml "$results.xml" "$module") >"$results.log" 2>&1 </dev/null || status=$?
	"$python" - "$module" "$status" "$results.xml" >"$results.results" <<-'EOP'
		import os, sys, xml.etree.ElementTree as tree
		module, status, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
		bad = 0
		for case in tree.parse(path).iter("testcase") if os.path.exists(path) else ():
		    kinds = {child.tag for child in case}
		    how = "err" if kinds & {"failure", "error"} else "skip" if "skipped" in kinds or case.get("result") == "skipped" else "ok"
		    if not case.get("name"):  # the framework leaves out the rest
		        how = "err"
		    bad += how == "err"
		    name = case.get("name") or f"{module}, a test of which parts failed"
		    print(how, " ".join(name.split()))
		if status and not bad:
		    print(f"err {module} ended with {status}")
	EOP
	rm -rf "$scratch"
}

# Plain and far in turn, so that what is there when a run is stopped can be compared. With
# COMPAT_RESUME set, what has results keeps them.
mkdir -p "$COMPAT_DIR/cpython-plain" "$COMPAT_DIR/cpython-far"
for module in "${list[@]}"; do
	for how in plain far; do
		wanted "$how" || continue
		[[ -z ${COMPAT_RESUME:-} || ! -s $COMPAT_DIR/cpython-$how/$module.results ]] || continue
		SECONDS=0
		one "$how" "$module"
		say "CPython, $module, $how: $(cut -d' ' -f1 "$COMPAT_DIR/cpython-$how/$module.results" | sort | uniq -c | xargs), $SECONDS s"
	done
done

for how in plain far; do
	(cd "$COMPAT_DIR/cpython-$how" && cat "${list[@]/%/.results}") >"$COMPAT_DIR/cpython-$how.results"
done
exec "$here/compare.py" "CPython $(version_of python3.11)" "$COMPAT_DIR/cpython-plain.results" "$COMPAT_DIR/cpython-far.results"
