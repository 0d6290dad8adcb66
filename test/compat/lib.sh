# shellcheck shell=bash
# What the suites of test/compat share: where they work, how they get sources, how they run plain
# and far. Sourced by each of them.
#
# FARPAGE_BUILD: the build folder (default: build). COMPAT_DIR: where sources and results go
# (default: a folder of this user under /var/tmp). COMPAT_PASSES: which passes to run ("plain far").
# COMPAT_MODE: the fault mode (thread).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
FARPAGE_BUILD=$(cd "${FARPAGE_BUILD:-$here/../../build}" && pwd)
COMPAT_DIR=${COMPAT_DIR:-/var/tmp/farpage-compat-$UID}
COMPAT_PASSES=${COMPAT_PASSES:-plain far}
COMPAT_MODE=${COMPAT_MODE:-thread}
mkdir -p "$COMPAT_DIR"

say() {
	echo "compat: $*" >&2
}

# The system's own sources, with source packages, in an apt configuration of our own: the system's
# stays as it is.
private_apt() {
	local apt=$COMPAT_DIR/apt
	mkdir -p "$apt/lists/partial" "$apt/archives/partial"
	find /etc/apt/sources.list.d -name '*.sources' -exec sed -E 's/^Types:.*/Types: deb deb-src/' {} + >"$apt/all.sources"
	if [[ -s /etc/apt/sources.list ]]; then
		sed -nE 's/^deb ([^#]*)/deb \1\ndeb-src \1/p' /etc/apt/sources.list >"$apt/all.list"
	fi
	mkdir -p "$apt/parts"
	# only the distribution's own: others may have no source packages
	awk 'BEGIN { RS = ""; ORS = "\n\n" } /debian-archive|ubuntu-archive/' "$apt/all.sources" >"$apt/parts/all.sources"
	apt_options=(-o Dir::Etc::SourceList="$apt/all.list" -o Dir::Etc::SourceParts="$apt/parts" -o Dir::State::Lists="$apt/lists"
		-o Dir::Cache::archives="$apt/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root
		-o Acquire::Retries=3)
	touch "$apt/all.list"
	if [[ ! -e $apt/fresh ]]; then
		say "reading the lists of source packages"
		apt-get --quiet --quiet "${apt_options[@]}" update >&2
		touch "$apt/fresh"
	fi
}

# fetch_source PACKAGE [VERSION]: unpacks Debian's source package; prints the folder.
fetch_source() {
	local package=$1 version=${2:-} folder=$COMPAT_DIR/src/$1
	if [[ ! -e $folder/done ]]; then
		private_apt
		rm -rf "$folder"
		mkdir -p "$folder"
		(cd "$folder" && apt-get --quiet --quiet "${apt_options[@]}" source "$package${version:+=$version}") >&2
		touch "$folder/done"
	fi
	find "$folder" -mindepth 1 -maxdepth 1 -type d -print -quit
}

# fetch_package PACKAGE: unpacks a binary package without installing it; prints the folder.
fetch_package() {
	local package=$1 folder=$COMPAT_DIR/deb/$1
	if [[ ! -e $folder/done ]]; then
		private_apt
		rm -rf "$folder"
		mkdir -p "$folder"
		(cd "$folder" && apt-get --quiet --quiet "${apt_options[@]}" download "$package" && dpkg --extract ./*.deb root) >&2
		touch "$folder/done"
	fi
	echo "$folder/root"
}

version_of() {
	dpkg-query --show --showformat='${Version}' "$1"
}

# pass plain|far LOCAL-MEMORY COMMAND...: runs the command, plain or with far memory. Shells let
# what they start in the background ignore SIGINT, which suites want to test.
pass() {
	local how=$1 local_memory=$2
	shift 2
	if [[ $how == plain ]]; then
		env --default-signal "$@"
	else
		env --default-signal "$FARPAGE_BUILD/tools/farpage" run --fault-mode "$COMPAT_MODE" --local-memory "$local_memory" --report -- "$@"
	fi
}

# wanted plain|far: is this pass to be run?
wanted() {
	[[ " $COMPAT_PASSES " == *" $1 "* ]]
}
