# What the scripts of test/vm share: where the images are, and how to leave nothing behind. To be
# sourced by bash.
# shellcheck shell=bash disable=SC2034

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FARPAGE_VM_CACHE:-$here/../../build/vm}
PATH=$PATH:/usr/sbin:/sbin

# Statuses of the runners, beside those of the command itself.
status_unusable=77 # no emulator, or no kernel to be had
status_died=125    # the guest ended before its command did
status_timeout=124

say() {
	echo "vm: $*" >&2
}

# temporary_folder: makes one and names it in $work. It goes away with the script; one left by a
# script that was killed outright is recognised by its lock, which nobody holds, and goes away here.
temporary_folder() {
	local old
	for old in "${TMPDIR:-/tmp}"/farpage-vm.*/; do
		[[ -O $old && -f $old/lock ]] || continue
		flock --nonblock "$old/lock" rm -rf "$old" || true
	done
	work=$(mktemp -d "${TMPDIR:-/tmp}/farpage-vm.XXXXXX")
	exec {lock}>"$work/lock"
	flock "$lock"
}
