#!/bin/bash
# The guest's first program once its root is there: sets up the network, runs the command and says
# how it ended, then switches off. The share holds: `settings` and `command` (from the runner),
# `stdout`, `stderr`, `status`, and `started` and `ended` with the uptime, which would show a clock
# that ran away.
share=/run/vm/share
set -a
# shellcheck source=/dev/null
. "$share/settings"
set +a

# From here on nothing may be read from the host any more.
switch_off() {
	echo o >/proc/sysrq-trigger
	exec /run/busybox sleep 60
}

main() {
	local setup now
	exec </dev/null >/dev/console 2>&1
	ulimit -l unlimited -n 65536
	# shellcheck source-path=SCRIPTDIR source=network.sh
	. "$share/network.sh"
	for setup in $FARPAGE_VM_SETUP; do
		"setup_$setup" || { echo "guest: the network '$setup' could not be set up" && switch_off; }
	done
	read -r now _ </proc/uptime
	echo "$now" >"$share/started"
	setsid --wait bash "$share/command" >>"$share/stdout" 2>>"$share/stderr"
	echo $? >"$share/status.new"
	read -r now _ </proc/uptime
	echo "$now" >"$share/ended"
	/run/busybox mv "$share/status.new" "$share/status"
	switch_off
}

main
