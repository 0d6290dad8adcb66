#!/bin/sh
# scripts/tell_host.sh: tells the running host that files of Farpage were installed or removed. The
# loader learns of the libraries. systemd reads the unit, and makes the user and group farpage and
# the folder of the daemon's socket. udev applies the rule of /dev/userfaultfd. Only root may do all
# this, so for other users the script does nothing.
set -u

# True if our file is in this kind of folder, where systemd looks for such files.
is_installed() {
	for folder in /etc /run /usr/local/lib /usr/lib; do
		[ ! -e "$folder/$1/farpage.conf" ] || return 0
	done
	return 1
}

[ "$(id -u)" = 0 ] || exit 0
ldconfig || exit
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload || exit
# Only our files, because a mistake in a file of others would make these commands fail.
! is_installed sysusers.d || systemd-sysusers farpage.conf || exit
! is_installed tmpfiles.d || systemd-tmpfiles --create farpage.conf || exit
[ -S /run/udev/control ] || exit 0
udevadm control --reload || exit
[ ! -e /dev/userfaultfd ] || udevadm trigger --name-match=userfaultfd # Linux 6.1 brought it
