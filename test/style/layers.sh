#!/usr/bin/env bash
# test/style/layers.sh: the rules of the house that the linker does not see. Only transport/verbs*.c knows verbs, and one
# file of uffd/ issues userfaultfd ioctls; tools/floor.c measures them bare.
set -euo pipefail
cd "$(dirname "$0")/../.."

# only PATTERN ALLOWED...: fails if PATTERN occurs in C of ours outside the allowed files.
only() {
	local pattern=$1 found
	shift
	found=$(grep -rlE --include='*.c' --include='*.h' "$pattern" common transport store uffd daemon tools include |
		grep -vxE "$(IFS='|' && echo "$*")" || true)
	[[ -z $found ]] && return
	echo "only $* may say '$pattern', but so do: $found"
	failed=1
}

failed=0
only '#include <(infiniband|rdma)/' 'transport/verbs.*\.[ch]'
only 'ioctl\(.*UFFDIO_' 'uffd/uffd\.c' 'tools/floor\.c'
only '#include <linux/userfaultfd.h>' 'uffd/(uffd\.c|abi\.h)' 'tools/floor\.c'
exit "$failed"
