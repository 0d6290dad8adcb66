#!/usr/bin/env bash
# test/style/headers.sh: each header compiles alone, seeing no more than its folder may use.
set -euo pipefail
cd "$(dirname "$0")/../.."

declare -A may_use=(
	[include/farpage]=""
	[common]="common"
	[transport]="common transport"
	[store]="common transport store"
	[daemon]="common transport daemon"
	[tools]="common transport uffd/agent tools"
	[tools/bench]="common transport tools tools/bench"
)

uffd="common transport store $(echo uffd/{kernel,pager,core,space,fault,evict,agent})"
for room in uffd/*/; do may_use[${room%/}]=$uffd; done
for room in preload/*/; do may_use[${room%/}]="$uffd $(echo preload/*/)"; done

failed=0
for folder in "${!may_use[@]}"; do
	read -r -a folders <<<"${may_use[$folder]}"
	for header in "$folder"/*.h; do
		[[ -e $header ]] || continue
		echo "#include \"$header\"" |
			"${CC:-cc}" -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -fsyntax-only -x c -Iinclude \
				"${folders[@]/#/-I}" -iquote . - || failed=1
	done
done
exit "$failed"
