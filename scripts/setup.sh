#!/usr/bin/env bash
# scripts/setup.sh SET...: installs the packages that each SET (build, tests, demo, check, compat,
# vm) needs and that are missing, and says which. Silent if none is missing. Without apt-get it
# lists what to install and stops. With SETUP=no it does nothing.
set -euo pipefail

policy=/usr/sbin/policy-rc.d

# A package that ends in ? is installed where the distribution has it; elsewhere, what wants it
# skips and says why. meson brings python3 along.
packages_of() {
	case $1 in
	build)
		echo gcc libc6-dev meson ninja-build pkgconf
		echo libibverbs-dev libjansson-dev libjemalloc-dev libncurses-dev librdmacm-dev libssl-dev liburing-dev libyaml-dev
		;;
	tests) echo libcmocka-dev ;;
	demo) echo redis-server redis-tools ;;
	check)
		echo groff-base iproute2 jq man-db openssl zsh
		echo sqlite3 stress-ng systemd xz-utils clang-format-14? clang-tidy-14?
		echo gdb make tmux memcached imagemagick-6.q16? luajit? python3-numpy openjdk-17-jdk-headless?
		;;
	compat) # programs, and what it takes to run other projects' test-suites
		echo postgresql nodejs golang-go libtcmalloc-minimal4? libmimalloc2.0? libjemalloc2 dpkg-dev tcl redis-server redis-tools
		;;
	vm)
		echo qemu-system-x86 make gcc binutils busybox-static kmod xz-utils zstd
		echo iproute2 ibverbs-providers ibverbs-utils rdmacm-utils perftest
		;;
	*) echo "setup: there is no set '$1', only build, tests, demo, check, compat and vm" >&2 && return 2 ;;
	esac
}

say() {
	echo "setup: $*" >&2
}

as_root() {
	if ((EUID == 0)); then
		"$@"
	else
		sudo -- "$@"
	fi
}

apt() {
	as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get --yes --quiet --quiet \
		-o Acquire::Retries=3 -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

is_installed() {
	[[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

is_known() {
	apt-cache show --no-all-versions "$1" >/dev/null 2>&1
}

all_known() {
	local package
	for package in "$@"; do
		[[ $package == *\? ]] || is_known "$package" || return
	done
}

# A third-party source that does not answer is no reason to stop: what matters is whether the
# install then works.
refresh_lists() {
	say "refreshing the package lists"
	apt update >/dev/null || say "some package lists could not be refreshed; going on with what there is"
}

# A package that brings a service must not start it, now or at the next boot: redis-server is wanted
# as a program.
forbid_services() {
	[[ -e $policy ]] && return
	trap 'as_root rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
	as_root chmod 755 "$policy"
}

install() {
	local try
	forbid_services
	for try in 1 2 3; do
		apt install --no-install-recommends "$@" >/dev/null && break
		((try < 3)) || { say "apt-get could not install: $*" && return 1; }
		sleep $((try * 5))
		refresh_lists
	done
	if [[ " $* " == *" redis-server "* ]]; then
		as_root update-rc.d redis-server disable >/dev/null || true
	fi
}

missing_of() {
	local package
	for package in "$@"; do
		is_installed "${package%\?}" || echo "$package"
	done
}

# Of the missing packages those that can be had, one a line.
wanted_of() {
	local package
	for package in "$@"; do
		if [[ $package != *\? ]] || is_known "${package%\?}"; then
			echo "${package%\?}"
		fi
	done
}

main() {
	local set names missing wanted
	[[ ${SETUP:-} == no ]] && return
	names=$(for set in "$@"; do packages_of "$set" || exit; done)
	mapfile -t names < <(tr ' ' '\n' <<<"$names")
	if ! command -v apt-get >/dev/null; then
		say "this system has no apt-get. Install what Debian calls: ${names[*]//\?/}"
		say "and run the command again with SETUP=no in front"
		return 1
	fi
	mapfile -t missing < <(missing_of "${names[@]}")
	((${#missing[@]})) || return 0
	all_known "${missing[@]}" || refresh_lists
	mapfile -t wanted < <(wanted_of "${missing[@]}")
	((${#wanted[@]})) || return 0
	if ((EUID != 0)) && ! command -v sudo >/dev/null; then
		say "missing: ${wanted[*]}. Install them as root; there is no sudo here"
		return 1
	fi
	say "installing what is missing for $*: ${wanted[*]}"
	install "${wanted[@]}"
}

main "$@"
