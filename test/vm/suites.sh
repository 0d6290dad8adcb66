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

# Both kernels, over each way. Of the longer integration tests shm and tcp are the host's, whose
# kernel is near enough to 6.12; 6.1 is not: there are more.
conformance=(conformance-{shm,tcp} vm-conformance-rdma-{rxe,siw})
integration=(integration-libfarpage-{shm,tcp} vm-{verbs,libfarpage,preload-map,preload-fds,churn-protect}-{rxe,siw})
redis=(vm-redis-{rxe,siw-namespaces})

# No UFFDIO_MOVE here: pages are captured by write-protecting and copying them.
in_guest 6.1 --kernel 6.1 "${both_networks[@]}" --timeout 1500 -- \
	vm-devices "${conformance[@]}" "${integration[@]}" "${redis[@]}" vm-preload-heap-siw \
	integration-storenodes integration-preload-{map,fds,rawfork}-tcp-all integration-churn-tcp-protect-64

in_guest 6.12 --kernel 6.12 "${both_networks[@]}" --timeout 1500 -- \
	vm-devices "${conformance[@]}" "${integration[@]}" "${redis[@]}" vm-preload-heap-rxe vm-conformance-rdma+tcp-rxe \
	vm-churn-move-{rxe,siw} vm-bench-{rxe,siw}

in_guest 6.12-faults-rxe --kernel 6.12 --setup one-namespace --timeout 1500 -- vm-rdmafork-rxe vm-redis-save-rxe \
	vm-churn-inline-rxe vm-opens-siw vm-faults-rxe

in_guest 6.12-killclients --kernel 6.12 --setup one-namespace --timeout 1500 -- vm-killclients-rxe \
	vm-hostile-{adopt-flood,churn,garbage,half-open,leases-unread,link-flood,pings-unread,quota,small-leases,status-flood}-rxe \
	vm-hostile-wrong-requests-rxe

in_guest 6.12-faults-siw --kernel 6.12 --setup two-namespaces --timeout 1500 -- vm-faults-siw-namespaces

in_pair 6.12-pair --kernel 6.12 --timeout 900 -- "test/vm/node.sh $build" \
	vm-pair-devices vm-redis-rxe-guests vm-faults-rxe-guests
in_pair 6.1-pair --kernel 6.1 --timeout 700 -- "test/vm/node.sh $build" vm-pair-devices vm-redis-rxe-guests
in_pair 6.12-vanish --kernel 6.12 --timeout 500 -- "test/vm/victim.sh $build" vm-vanished-guests

# What is compared is measured alone, with processors that do not sleep.
wait # for the others
in_guest 6.12-latency --kernel 6.12 --setup one-namespace --append idle=poll --timeout 900 -- vm-rdma-latency
