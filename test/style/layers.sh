#!/usr/bin/env bash
# test/style/layers.sh: the rules of the house that the linker does not see. Only transport/verbs*.c
# knows verbs, one file of tools/ knows curses, and one file of uffd/ issues userfaultfd ioctls.
# tools/bench/floor.c measures the latter bare.
set -euo pipefail
cd "$(dirname "$0")/../.."

# only PATTERN ALLOWED...: fails if PATTERN occurs in C of ours outside the allowed files.
only() {
	local pattern=$1 found
	shift
	found=$(grep -rlE --include='*.c' --include='*.h' "$pattern" common transport store uffd preload daemon tools include |
		grep -vxE "$(IFS='|' && echo "$*")" || true)
	[[ -z $found ]] && return
	echo "only $* may say '$pattern', but so do: $found"
	failed=1
}

failed=0
only '#include <(infiniband|rdma)/' 'transport/verbs.*\.[ch]'
only 'ioctl\(.*UFFDIO_' 'uffd/kernel/uffd\.c' 'tools/bench/floor\.c'
only '#include <linux/userfaultfd.h>' 'uffd/kernel/(uffd\.c|abi\.h)' 'tools/bench/floor\.c'
only '#include <(n?curses|term\.h)' 'tools/screen\.c'
# No end without a word: common/end.c speaks first. Otherwise: what a program's own child returns
# (rawfork.c), the C library's end of a program (lastthread.c, by exit), and the other programs of
# ours.
only '(^|[^_[:alnum:]])(_exit|_Exit|quick_exit|abort)\(|[(]SYS_exit' 'common/end\.c' 'preload/process/rawfork\.c' '(daemon|tools)/.*'
# Signals to the process itself: those of the program that are sent once more, or are what the
# kernel would do. None: is it there?
only '(^|[^_[:alnum:]])(raise|kill|tgkill|pthread_kill)\(|SYS_(tgkill|tkill|kill|rt_tgsigqueueinfo)' \
	'uffd/(kernel|agent|fault)/(affinity|agent_sigmask|sigbus|handover)\.c' 'preload/(door|signals|memory)/(signals|sigmask|sigframe|rlimits)\.c' 'common/(statspage|fdlock)\.c' '(daemon|tools)/.*'
exit "$failed"
