#!/usr/bin/env bash
# test/vm/prepare.sh [6.12|6.1]...: makes what a guest boots from, for each of these stock Debian
# kernels (both if none is named): an uncompressed kernel and an initramfs with the modules that it
# loads, siw.ko among them, which Debian's kernels leave out and their source packages hold. Nothing
# is installed: the packages are downloaded and unpacked in the cache ($FARPAGE_VM_CACHE, or
# build/vm). An image that is up to date is left alone; a new one appears in one step.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

mirror=${FARPAGE_VM_MIRROR:-http://deb.debian.org}

# To mount the root of the host and the shares; then RDMA and the networks under it. rdma_rxe asks
# for crc32 by name.
modules_of_root=(virtio_pci 9p 9pnet_virtio overlay)
modules_of_rdma=(virtio_net virtio_rng veth dummy bridge sch_netem crc32_generic crc32_pclmul
	ib_core ib_uverbs ib_umad rdma_cm rdma_ucm iw_cm rdma_rxe siw)

# The newest ordinary kernel of a series that apt knows: 6.12 -> 6.12.38+deb13-amd64.
newest_kernel() {
	apt-cache pkgnames "linux-image-$1." | sed -n 's/^linux-image-\([0-9.]*[-+0-9a-z.~]*-amd64\)$/\1/p' |
		grep -vE -- '-(cloud|rt)-' | sort --version-sort | tail -n 1
}

version_of() {
	apt-cache show --no-all-versions "$1" | sed -n 's/^Version: //p' | head -n 1
}

# The headers of a kernel come in parts, whose names have differed.
packages_of_kernel() {
	local part=linux-headers-$2
	echo "linux-image-$2" "$part" "linux-source-$1"
	apt-cache depends "$part" | sed -nE 's/^ +Depends: (linux-(headers|kbuild)-.*)$/\1/p'
}

# Where the host's package lists lack a kernel (another release, another distribution) or are too
# old to download by: lists of our own, of Debian 12, which has both series.
use_own_lists() {
	local own=$cache/apt keyring=/usr/share/keyrings/debian-archive-keyring.gpg
	[[ -r $keyring ]] || { say "no package keys of Debian here ($keyring)" && return 1; }
	mkdir -p "$own"/{lists,archives}/partial
	cat >"$own/sources.list" <<-LIST
		deb [arch=amd64 signed-by=$keyring] $mirror/debian bookworm main
		deb [arch=amd64 signed-by=$keyring] $mirror/debian-security bookworm-security main
	LIST
	cat >"$own/apt.conf" <<-CONF
		Dir::Etc::sourcelist "$own/sources.list";
		Dir::Etc::sourceparts "-";
		Dir::State::lists "$own/lists";
		Dir::Cache "$own";
		Dir::Cache::archives "$own/archives";
		APT::Architecture "amd64";
		APT::Sandbox::User "root";
		Acquire::Languages "none";
	CONF
	export APT_CONFIG=$own/apt.conf
	say "reading the package lists of Debian 12"
	apt-get --quiet --quiet update
}

download() {
	local try
	mkdir -p "$cache/packages"
	for try in 1 2; do
		# apt complains when its sandbox user may not write here, and downloads all the
		# same.
		(cd "$cache/packages" && apt-get --quiet --quiet -o Acquire::Retries=3 -o Acquire::http::Timeout=30 \
			-o APT::Sandbox::User=root download "$@" >&2) && return
		sleep $((try * 3))
	done
	return 1
}

unpack() {
	local package
	for package in "$@"; do
		dpkg-deb --extract "$(find "$cache/packages" -name "${package}_*.deb" | sort --version-sort | tail -n 1)" "$new/root"
	done
	# Releases differ in whether /lib is a folder of its own.
	[[ -d $new/root/lib/modules ]] || ln -s usr/lib "$new/root/lib"
}

build_siw() {
	local kernel=$1 series=$2 headers=$new/root/usr/src/linux-headers-$1 files
	# Headers name their parts, and the compiler of their release, by absolute paths.
	sed -i "s#/usr/\(src\|lib\)/linux-#$new/root&#g" "$headers/Makefile"
	find "$new/root/usr/src" -maxdepth 2 -name .kernelvariables -exec sed -i 's/\<gcc-[0-9]*\>/gcc/' {} +
	mkdir "$new/siw"
	tar --extract --xz --file="$new/root/usr/src/linux-source-$series.tar.xz" --directory="$new/siw" \
		--strip-components=5 "linux-source-$series/drivers/infiniband/sw/siw"
	rm "$new/siw/Makefile"
	files=("$new"/siw/*.c)
	files=("${files[@]##*/}")
	printf 'obj-m := siw.o\nsiw-y := %s\n' "${files[*]/%.c/.o}" >"$new/siw/Kbuild"
	make --silent -C "$headers" M="$new/siw" CC=gcc CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= modules >&2
	mkdir -p "$new/root/lib/modules/$kernel/extra"
	mv "$new/siw/siw.ko" "$new/root/lib/modules/$kernel/extra/"
}

# QEMU starts an uncompressed kernel at once; unpacking itself would take an emulated processor
# seconds. Where the packed kernel lies in the file is in the header of the boot protocol (the
# kernel's Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length); its last
# four bytes are the unpacked length.
unpack_kernel() {
	local image=$1 sectors offset length
	sectors=$(od -An -tu1 -j $((0x1f1)) -N1 "$image")
	read -r offset length < <(od -An -tu4 -j $((0x248)) -N8 "$image")
	dd if="$image" of="$new/packed" iflag=skip_bytes,count_bytes bs=1M status=none \
		skip=$(((sectors + 1) * 512 + offset)) count=$((length - 4))
	xz --decompress --stdout "$new/packed" 2>/dev/null || zstd --decompress --stdout "$new/packed" 2>/dev/null
}

# The files of these modules and of those that they need, each after what it needs.
files_of_modules() {
	local kernel=$1
	shift
	depmod -b "$new/root" "$kernel"
	modprobe --config=/dev/null --dirname="$new/root" --set-version="$kernel" --show-depends --all "$@" |
		awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

# Stripped modules lose their signature too: they load faster, and the kernel only says that it is
# tainted.
pack_modules() {
	local list=$1 path name
	: >"$list"
	while read -r path; do
		name=${path##*/}
		name=${name%.xz}
		if [[ ! -e $tree/modules/$name ]]; then
			case $path in
			*.xz) xz --decompress --stdout "$path" ;;
			*) cat "$path" ;;
			esac >"$tree/modules/$name"
			strip --strip-debug "$tree/modules/$name"
			echo "$name" >>"$list"
		fi
	done
}

build_initramfs() {
	local kernel=$1 tree=$new/tree list
	mkdir -p "$tree"/{bin,modules,dev,proc,sys,host,overlay,root}
	cp "$(command -v busybox)" "$tree/bin/"
	install -m 755 "$here/init.sh" "$tree/init"
	list=$(files_of_modules "$kernel" "${modules_of_root[@]}")
	pack_modules "$tree/modules.root" <<<"$list"
	list=$(files_of_modules "$kernel" "${modules_of_rdma[@]}")
	pack_modules "$tree/modules.rdma" <<<"$list"
	(cd "$tree" && find . | busybox cpio -o -H newc 2>/dev/null) | gzip -1
}

build_image() {
	local series=$1 kernel=$2 image=$3 packages
	say "making the guest of Linux $kernel"
	mapfile -t packages < <(packages_of_kernel "$series" "$kernel" | tr ' ' '\n')
	download "${packages[@]}" || return
	new=$cache/making
	rm -rf "$new"
	mkdir -p "$new/root" "$new/image"
	unpack "${packages[@]}"
	build_siw "$kernel" "$series"
	build_initramfs "$kernel" >"$new/image/initramfs"
	unpack_kernel "$new/root/boot/vmlinuz-$kernel" >"$new/image/vmlinux"
	[[ $(head -c 4 "$new/image/vmlinux") == $'\x7fELF' ]] || { say "cannot unpack $kernel" && return 1; }
	echo "$kernel" >"$new/image/kernel"
	mv "$new/image" "$cache/$image"
	rm -rf "$new"
}

# What an image is made of is in its name, so that it is up to date if it is there.
name_of_image() {
	local recipe
	recipe=$(cat "$here/prepare.sh" "$here/init.sh" | sha256sum)
	echo "image-$2-$(version_of "linux-image-$2")-${recipe:0:8}"
}

forget_others() {
	local series=$1 image=$2 other
	for other in "$cache"/image-"$series".*; do
		[[ $other == "$cache/$image" ]] || rm -rf "$other"
	done
}

prepare() {
	local series=$1 kernel image
	kernel=$(newest_kernel "$series")
	[[ -n $kernel ]] || return
	image=$(name_of_image "$series" "$kernel")
	[[ -d $cache/$image ]] || build_image "$series" "$kernel" "$image"
	ln -sfn "$image" "$cache/$series.new"
	mv -T "$cache/$series.new" "$cache/$series"
	forget_others "$series" "$image"
}

prepare_from_own_lists() {
	use_own_lists
	prepare "$1"
}

needed() {
	local program
	for program in qemu-system-x86_64 apt-get apt-cache dpkg-deb make gcc strip depmod modprobe busybox xz zstd flock; do
		command -v "$program" >/dev/null || { say "there is no $program here" && return 1; }
	done
	[[ $(uname -m) == x86_64 ]] || { say "guests are x86_64, this machine is not" && return 1; }
}

main() {
	local series way status
	((${#})) || set -- 6.12 6.1
	needed || exit "$status_unusable"
	mkdir -p "$cache"
	cache=$(cd "$cache" && pwd -P)
	exec {lock}>"$cache/lock"
	flock "$lock"
	for series in "$@"; do
		for way in prepare prepare_from_own_lists; do
			# Not in a condition, where bash would not stop at a step that fails.
			set +e
			(set -e && "$way" "$series")
			status=$?
			set -e
			((status)) || continue 2
		done
		say "no kernel $series could be had"
		exit "$status_unusable"
	done
}

main "$@"
