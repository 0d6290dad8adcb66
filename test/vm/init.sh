#!/bin/busybox sh
# shellcheck shell=dash
# The initramfs's first program: mounts the host's root read-only under an overlay of memory, loads
# the modules, and hands over to guest.sh, which the runner has put in the share.
/bin/busybox --install -s /bin
export PATH=/bin

give_up() {
	echo "guest: $*" >/dev/console
	dmesg | tail -n 20 >/dev/console
	poweroff -f
}

load() {
	local name
	while read -r name; do
		insmod "/modules/$name" || echo "guest: $name does not load" >/dev/console
	done <"$1"
}

over_9p=trans=virtio,version=9p2000.L,msize=1048576
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
load /modules.root
mount -t 9p -o "$over_9p,cache=loose,ro" host /host || give_up "no root from the host"
mount -t tmpfs -o size=75% memory /overlay
mkdir /overlay/upper /overlay/work
mount -t overlay -o lowerdir=/host,upperdir=/overlay/upper,workdir=/overlay/work overlay /root || give_up "no overlay"
load /modules.rdma

# A module asked for by name later would start modprobe, at a second a time, to find nothing.
echo >/proc/sys/kernel/modprobe
for cpu in /sys/devices/system/cpu/cpu[1-9]*/online; do
	[ ! -e "$cpu" ] || echo 1 >"$cpu"
done
mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
mount -t cgroup2 cgroup /root/sys/fs/cgroup
mount -t debugfs debug /root/sys/kernel/debug
mount -t devtmpfs dev /root/dev
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts pts /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t tmpfs run /root/run
cp /bin/busybox /root/run/
mkdir -p /root/run/vm/share /root/run/vm/results
mount -t 9p -o "$over_9p,cache=none" share /root/run/vm/share || give_up "no share"
mount -t 9p -o "$over_9p,cache=none" results /root/run/vm/results 2>/dev/null
hostname guest
ip link set lo up
exec switch_root /root /bin/bash /run/vm/share/guest.sh
