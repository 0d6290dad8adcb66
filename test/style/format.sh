#!/usr/bin/env bash
# test/style/format.sh --check|--fix: the form of our C, as .clang-format describes it. Majors of
# clang-format differ in what they make of the same description, so that only the one it was written
# for counts.
set -euo pipefail
cd "$(dirname "$0")/../.."

major=14
program=$(command -v "clang-format-$major" || command -v clang-format) || program=
if [[ -z $program || $("$program" --version) != *"version $major."* ]]; then
	echo "clang-format $major is not installed"
	exit 77
fi
mapfile -t files < <(find common transport store uffd preload daemon tools include test -name '*.[ch]')
case ${1:-} in
--check) "$program" --dry-run --Werror "${files[@]}" ;;
--fix)
	PYTHONDONTWRITEBYTECODE=1 python3 test/style/prose.py --fix
	"$program" -i "${files[@]}"
	;;
*) echo "usage: format.sh --check|--fix" >&2 && exit 2 ;;
esac
