#!/bin/bash
# servicehost.sh FOLDER BUILD SOURCES: becomes systemd, as the first process of namespaces that the
# caller has made (servicehost.py). The root is this machine's, under an overlay in memory. FOLDER
# is where the overlay is put together. BUILD has been built from SOURCES; the root has both, too.
# Nothing here may change the machine: the kernel's settings are read-only, and what could set its
# clock or load modules is not permitted.
set -euo pipefail
top=$1 build=$2 sources=$3
not_permitted=-audit_control,-audit_read,-audit_write,-mac_admin,-sys_boot,-sys_module,-sys_rawio,-sys_time,-syslog

mount --make-rprivate /
mount -t tmpfs -o mode=755 memory "$top"
mkdir "$top/upper" "$top/work" "$top/root"
DESTDIR=$top/upper meson install -C "$build" --no-rebuild --quiet >/dev/null
mount -t overlay -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" overlay "$top/root"
cd "$top/root"
mount -t tmpfs -o mode=1777 tmp tmp
for folder in "$sources" "$build"; do
	mkdir -p ".$folder"
	mount -o bind,ro "$folder" ".$folder"
done

# Only units that somebody starts, and what they need themselves: no unit that distributions or
# packages enable.
rm -rf etc/systemd/system/* usr/lib/systemd/system/*.wants
: >etc/fstab

mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sys sys
mount -t cgroup2 cgroup sys/fs/cgroup
mount -t tmpfs -o mode=755 dev dev
cp -a /dev/{null,zero,full,random,urandom,tty,userfaultfd} dev/
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 pts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t tmpfs -o mode=755 run run
mkdir -p run/systemd/system
cat >run/systemd/system/host.target <<-UNIT
	[Unit]
	DefaultDependencies=no
	Wants=systemd-journald.socket
UNIT
hostname host

pivot_root . mnt
cd /
umount -l /mnt
exec setpriv --bounding-set "$not_permitted" env -i container=farpage PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
	/lib/systemd/systemd --system --unit=host.target --log-target=journal --show-status=no </dev/null
