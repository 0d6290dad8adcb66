#!/usr/bin/env bash
# test/compat/jemalloc.sh: jemalloc's own unit and integration tests (Debian's source package),
# plain and with far memory, test by test. An allocator with threads: the tests bring a jemalloc of
# their own, whose extents are far mappings that it purges, splits and remaps.
# shellcheck source=test/compat/lib.sh
. "$(dirname "$0")/lib.sh"

source=$(fetch_source jemalloc)
cd "$source"
if [[ ! -e built ]]; then
	say "building jemalloc's tests"
	./configure --with-jemalloc-prefix=je_ --disable-cxx --disable-doc >"$COMPAT_DIR/jemalloc-build.log" 2>&1 </dev/null
	make -j2 tests_unit tests_integration >>"$COMPAT_DIR/jemalloc-build.log" 2>&1 </dev/null
	touch built
fi

# one PROGRAM: its lines "name: pass", under its own name; a program that is ended counts as one
# more that failed. test.sh gives each the MALLOC_CONF that its test asks for.
one() {
	local name=${1#test/} status=0
	timeout 300 sh test/test.sh "$1" >"$COMPAT_DIR/jemalloc.out" 2>&1 </dev/null || status=$?
	{
		echo "== $name"
		cat "$COMPAT_DIR/jemalloc.out"
	} >&2
	sed -nE "s,^(test_[A-Za-z0-9_]+).*: (pass|skip|fail)$,\2 $name \1,p" "$COMPAT_DIR/jemalloc.out" | sed 's/^pass/ok/; s/^fail/err/'
	if ((status == 124)) || grep -q 'Test harness error' "$COMPAT_DIR/jemalloc.out"; then
		echo "err $name ended with $status"
	fi
}
export -f one
export COMPAT_DIR

for how in plain far; do
	wanted "$how" || continue
	say "jemalloc, $how"
	# shellcheck disable=SC2016
	pass "$how" 4M bash -c 'for program in test/unit/* test/integration/*; do
		[[ -f $program && -x $program ]] && one "$program"; done; true' \
		2>"$COMPAT_DIR/jemalloc-$how.log" >"$COMPAT_DIR/jemalloc-$how.results" || say "ended with $?"
done
exec "$here/compare.py" "jemalloc $(basename "$source" | sed 's/.*-//')" "$COMPAT_DIR/jemalloc-plain.results" "$COMPAT_DIR/jemalloc-far.results"
