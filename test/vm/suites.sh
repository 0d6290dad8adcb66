# What runs in guests: one call for each guest, or pair of guests, the longest first. To be sourced
# by check.sh, which defines the two words:
#
#   in_guest NAME [OPTION-OF-run.sh...] -- MESON-TEST-ARGUMENT...
#   in_pair NAME [OPTION-OF-pair.sh...] -- NODE-COMMAND MESON-TEST-ARGUMENT...    (of the program's guest)
#
# The time limits are for guests that hang: two or three times what a busy machine needs. A guest
# takes seconds to come up: put tests together by kernel, not by subject. Tests that need a guest
# register in test/vm/meson.build, with a suite that nothing runs on the host.
# shellcheck shell=bash disable=SC2154

both_networks=(--setup one-namespace --setup two-namespaces)

# What each run has. One device where a second adds nothing: both carry the same protocol. Of the
# conformance suite over rdma, each device and each way to connect once. On 6.1
# only what its kernel changes: there is no UFFDIO_MOVE, so pages are captured by write-protecting
# and copying them, no poison, no asynchronous write-protection, and an older io_uring.
brief() {
	in_guest 6.12 --kernel 6.12 "${both_networks[@]}" --timeout 1500 -- \
		vm-devices vm-conformance-rdma-siw vm-conformance-rdma+tcp-rxe vm-verbs-{rxe,siw} \
		vm-churn-move-{rxe,siw} vm-churn-inline-rxe vm-bench-rxe vm-opens-siw vm-stolenkey-siw-namespaces

	in_guest 6.12-faults --kernel 6.12 --setup one-namespace --timeout 1200 -- \
		vm-rdmafork-rxe vm-redis-save-rxe vm-killclients-brief-rxe \
		vm-hostile-{garbage,half-open,link-flood,wrong-requests}-rxe vm-faults-rxe

	in_guest 6.1 --kernel 6.1 "${both_networks[@]}" --timeout 900 -- \
		vm-devices vm-verbs-rxe vm-libfarpage-rxe vm-preload-map-rxe vm-churn-protect-rxe

	in_pair 6.12-pair --kernel 6.12 --timeout 900 -- "test/vm/node.sh $build" \
		vm-pair-devices vm-redis-rxe-guests vm-faults-rxe-guests
	in_pair 6.12-vanish --kernel 6.12 --timeout 500 -- "test/vm/victim.sh $build" vm-vanished-guests
}

# Both kernels, over each way and device.
all() {
	local conformance=(conformance-{shm,tcp} vm-conformance-rdma-{rxe,siw})
	local integration=(integration-libfarpage-{shm,tcp}
		vm-{verbs,libfarpage,preload-map,preload-maplock,preload-fds,churn-protect}-{rxe,siw})
	local redis=(vm-redis-{rxe,siw-namespaces})

	in_guest 6.1 --kernel 6.1 "${both_networks[@]}" --timeout 1500 -- \
		vm-devices "${conformance[@]}" "${integration[@]}" "${redis[@]}" vm-preload-heap-siw \
		integration-storenodes integration-preload-{map,fds,rawfork}-tcp-all integration-churn-tcp-protect-64
	in_guest 6.12 --kernel 6.12 "${both_networks[@]}" --timeout 1500 -- \
		vm-devices "${conformance[@]}" "${integration[@]}" "${redis[@]}" vm-preload-heap-rxe \
		vm-conformance-rdma+tcp-rxe vm-churn-move-{rxe,siw} vm-bench-{rxe,siw}
	in_guest 6.12-faults-rxe --kernel 6.12 --setup one-namespace --timeout 1500 -- \
		vm-rdmafork-rxe vm-redis-save-rxe vm-churn-inline-rxe vm-opens-siw vm-faults-rxe
	in_guest 6.12-killclients --kernel 6.12 --setup one-namespace --timeout 1500 -- vm-killclients-rxe \
		vm-hostile-{adopt-flood,churn,garbage,half-open,leases-unread,link-flood,pings-unread,quota}-rxe \
		vm-hostile-{small-leases,status-flood,wrong-requests}-rxe
	in_guest 6.12-faults-siw --kernel 6.12 --setup two-namespaces --timeout 1500 -- vm-faults-siw-namespaces
	in_pair 6.12-pair --kernel 6.12 --timeout 900 -- "test/vm/node.sh $build" \
		vm-pair-devices vm-redis-rxe-guests vm-faults-rxe-guests
	in_pair 6.1-pair --kernel 6.1 --timeout 700 -- "test/vm/node.sh $build" vm-pair-devices vm-redis-rxe-guests
	in_pair 6.12-vanish --kernel 6.12 --timeout 500 -- "test/vm/victim.sh $build" vm-vanished-guests

	# What is compared is measured alone, with processors that do not sleep.
	wait # for the others
	in_guest 6.12-latency --kernel 6.12 --setup one-namespace --append idle=poll --timeout 900 -- vm-rdma-latency
}

if [[ -n $long ]]; then
	all
else
	brief
fi
