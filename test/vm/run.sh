#!/usr/bin/env bash
# test/vm/run.sh [OPTION...] -- COMMAND [ARG...]: runs a command as root in a guest with RDMA
# devices.
#
#   --kernel 6.12|6.1     a stock Debian kernel of this series (6.12)
#   --cpus N              processors of the guest (2)
#   --memory MIB          its memory; half of it can be files that the guest writes (3072)
#   --timeout SECONDS     from start to end (600)
#   --setup NETWORK       none, one-namespace or two-namespaces: see network.sh; may be given several times (none)
#   --append WORD         one more word on the kernel's command line; may be given several times
#   --results FOLDER      a folder of the host that the guest may write, at /run/vm/results there
#   --console FILE        if the guest dies or its time is up, its whole console is appended to this file
#   --cable END,ADDRESS   for pair.sh: END is listen:PATH or connect:PATH, of UNIX sockets (PATH.rxe, PATH.siw); brings
#                         --setup cable along
#
# The guest's root is the host's, read-only under an overlay of memory: what it writes elsewhere is
# gone when it ends. The command starts in the current folder. Its output is passed on, and its
# status is the status; 124: the time was up; 125: the guest died first; 77: there is no emulator or
# no kernel. A guest that dies before the command starts is started again, once. Of a guest that
# died, what its kernel reported is shown.
# FARPAGE_VM_ACCEL=kvm asks for hardware support instead of emulation.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kernel=6.12 cpus=2 memory=3072 timeout=600 setups=() appended=() results='' console='' cable='' address=''
boot_seconds=120
report_lines=200

usage() {
	sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
	exit 2
}

parse() {
	while (($#)); do
		case $1 in
		--kernel) kernel=$2 ;;
		--cpus) cpus=$2 ;;
		--memory) memory=$2 ;;
		--timeout) timeout=$2 ;;
		--setup) setups+=("$2") ;;
		--results) results=$2 ;;
		--console) console=$2 ;;
		--append) appended+=("$2") ;;
		--cable) cable=${2%,*} address=${2##*,} setups+=(cable) ;;
		--) shift && break ;;
		*) usage ;;
		esac
		shift 2
	done
	(($#)) || usage
	command=("$@")
}

# The folder that runner and guest share: see guest.sh.
fill_share() {
	rm -rf "$work/share"
	mkdir -p "$work/share" "${results:-$work/results}"
	cp "$here/guest.sh" "$here/network.sh" "$work/share/"
	printf '%s=%q\n' HOME /root PATH "$PATH" CI "${CI:-}" FARPAGE_VM_KERNEL "$kernel" FARPAGE_VM_ADDRESS "$address" \
		FARPAGE_VM_SETUP "${setups[*]:-none}" FARPAGE_VM_RESULTS /run/vm/results >"$work/share/settings"
	{
		printf 'cd %q || exit\nexec' "$PWD"
		printf ' %q' "${command[@]}"
	} >"$work/share/command"
	: >"$work/share/stdout"
	: >"$work/share/stderr"
	: >"$work/console"
}

# Emulated, the kernel does without what costs it time and guards nothing here.
# shellcheck disable=SC2054
describe_machine() {
	local append=(console=ttyS0 quiet loglevel=4 panic=-1 audit=0 lsm=capability mitigations=off nokaslr
		randomize_kstack_offset=off init_on_alloc=0 random.trust_cpu=on cryptomgr.notests nowatchdog
		rcupdate.rcu_expedited=1 "${appended[@]}")
	machine=(-nodefaults -no-user-config -nographic -no-reboot -monitor none -serial "file:$work/console"
		-M q35,usb=off,vmport=off,smm=off -smp "$cpus" -m "$memory"
		-kernel "$cache/$kernel/vmlinux" -initrd "$cache/$kernel/initramfs" -device virtio-rng-pci)
	if [[ ${FARPAGE_VM_ACCEL:-tcg} == kvm ]]; then
		machine+=(-accel kvm -cpu host)
	else
		machine+=(-accel "tcg,thread=multi,tb-size=512" -cpu "max,la57=off,pku=off,smap=off,smep=off,umip=off")
		append+=(maxcpus=1 lpj=5000000 tsc=reliable no_timer_check)
		if gcc -O -o "$work/tickrate" "$here/tickrate.c" 2>/dev/null; then
			append+=("tsc_early_khz=$("$work/tickrate")")
		fi
	fi
	machine+=(-append "${append[*]}")
	add_share host / readonly=on,multidevs=remap
	add_share share "$work/share" multidevs=remap
	add_share results "${results:-$work/results}" multidevs=remap
	case $cable in
	listen:*) add_cables on 01 ;;
	connect:*) add_cables off 02 ;;
	esac
}

add_share() {
	machine+=(-fsdev "local,id=$1,path=$2,security_model=none,$3" -device "virtio-9p-pci,fsdev=$1,mount_tag=$1")
}

# Two, as each kind of device wants an interface of its own: rdma_cm finds devices by their
# addresses.
add_cables() {
	add_cable rxe "$1" "00:$2"
	add_cable siw "$1" "01:$2"
}

add_cable() {
	machine+=(-netdev "stream,id=$1,server=$2,addr.type=unix,addr.path=${cable#*:}.$1"
		-device "virtio-net-pci,netdev=$1,mac=52:54:00:77:$3,host_mtu=9000,romfile=")
}

# Ends with the guest. Waits for the command to start no longer than for a boot.
watch_boot() {
	local deadline=$((SECONDS + boot_seconds))
	while kill -0 "$emulator" 2>/dev/null && [[ ! -e $work/share/started ]]; do
		((SECONDS < deadline)) || { kill "$emulator" && break; }
		sleep 0.1
	done
	[[ ! -e $work/share/started ]] || boot_took=$(($(date +%s%3N) - started_at))
}

# The emulator ends with us, whatever ends us.
boot() {
	local left=$((timeout - SECONDS)) tails=()
	fill_share
	started_at=$(date +%s%3N)
	setpriv --pdeathsig TERM timeout --kill-after=5 "$((left > 1 ? left : 1))" qemu-system-x86_64 "${machine[@]}" \
		>"$work/emulator" 2>&1 </dev/null {lock}>&- &
	emulator=$!
	tail -n +1 -s 0.1 -f --pid="$emulator" "$work/share/stdout" {lock}>&- &
	tails+=($!)
	tail -n +1 -s 0.1 -f --pid="$emulator" "$work/share/stderr" {lock}>&- >&2 &
	tails+=($!)
	watch_boot
	emulator_status=0
	wait "$emulator" || emulator_status=$?
	wait "${tails[@]}" || true
	emulator=
}

# The kernel's first report says why, and is longer than the end of the console.
show_console() {
	local reports='\bBUG\b|\bOops\b|Kernel panic|Call Trace:|WARNING: CPU|protection fault|rcu.*stall|blocked for more than'
	local plain=$work/console.plain first
	sed 's/\r$//' "$work/console" >"$plain"
	first=$(grep -nEm 1 "$reports" "$plain" | cut -d : -f 1) || true
	if [[ -n $first ]]; then
		say "$1; the console of Linux $kernel, from the kernel's first report on:"
		tail -n "+$first" "$plain" | head -n "$report_lines" >&2
	else
		say "$1; the end of the console of Linux $kernel:"
		tail -n 30 "$plain" >&2
	fi
	say "the emulator ended with $emulator_status; what it said:"
	tail -n 30 "$work/emulator" >&2
	[[ -n $console ]] || return 0
	cat "$plain" >>"$console"
	say "the whole console: $console"
}

finish() {
	local status
	if [[ -s $work/share/status ]]; then
		status=$(<"$work/share/status")
		say "Linux $(<"$cache/$kernel/kernel"): booted in ${boot_took%???}.${boot_took: -3} s," \
			"ended with $status after $SECONDS s (by its own clock $(<"$work/share/ended") s)"
	elif ((emulator_status == 124 || (emulator_status == 137 && SECONDS >= timeout))); then
		show_console "not done within $timeout s"
		status=$status_timeout
	else
		show_console "the guest died"
		status=$status_died
	fi
	exit "$status"
}

# shellcheck disable=SC2317
clean_up() {
	[[ -z $emulator ]] || { kill "$emulator" && wait "$emulator"; } 2>/dev/null || true
	rm -rf "$work"
}

main() {
	local try
	parse "$@"
	command -v qemu-system-x86_64 >/dev/null || { say "there is no qemu-system-x86_64" && exit "$status_unusable"; }
	[[ -e $cache/$kernel/vmlinux ]] || "$here/prepare.sh" "$kernel" || exit
	temporary_folder
	trap clean_up EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	describe_machine
	for try in 1 2; do
		boot
		[[ ! -e $work/share/started && -z $cable ]] || break
		((SECONDS < timeout && try == 1)) || break
		show_console "the guest did not come up, once more"
	done
	finish
}

emulator=
main "$@"
