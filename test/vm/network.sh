# The networks of a guest and the RDMA devices on them. To be sourced by bash inside a guest.
# Starting a program takes an emulated processor a good part of a second, hence the batches.
# shellcheck shell=bash

# rxe0 at 10.77.0.1, and siw0 at 10.77.1.1: each reaches itself. (siw does not work on the loopback
# device.)
setup_one-namespace() {
	ip -batch - <<-LINKS
		link add port0 type dummy
		link add port1 type dummy
		link set port0 mtu 9000 up
		link set port1 mtu 9000 up
		addr add 10.77.0.1/24 dev port0
		addr add 10.77.1.1/24 dev port1
	LINKS
	rdma -b - <<-DEVICES
		link add rxe0 type rxe netdev port0
		link add siw0 type siw netdev port1
	DEVICES
}

# Namespaces `node` (siw_node at 10.77.2.1) and `program` (siw_program at 10.77.2.2), joined by a
# cable that ends in eth0 in both. A siw link must be made inside the namespace, and finds itself
# disabled where the cable is not up at both ends by then; the RDMA devices themselves stay shared
# by all.
setup_two-namespaces() {
	ip -batch - <<-LINKS
		netns add node
		netns add program
		link add eth0 mtu 9000 netns node type veth peer name eth0 mtu 9000 netns program
	LINKS
	ip -netns node -batch - <<-LINKS
		link set lo up
		link set eth0 up
		addr add 10.77.2.1/24 dev eth0
	LINKS
	ip -netns program -batch - <<-LINKS
		link set lo up
		link set eth0 up
		addr add 10.77.2.2/24 dev eth0
	LINKS
	ip netns exec node rdma link add siw_node type siw netdev eth0
	ip netns exec program rdma link add siw_program type siw netdev eth0
}

# Between two guests: rxe0 on one cable, at the address that the runner chose, and siw0 on another,
# at 10.77.4 of the same end.
setup_cable() {
	ip -batch - <<-LINKS
		link set eth0 mtu 9000 up
		link set eth1 mtu 9000 up
		addr add $FARPAGE_VM_ADDRESS/24 dev eth0
		addr add 10.77.4.${FARPAGE_VM_ADDRESS##*.}/24 dev eth1
	LINKS
	rdma -b - <<-DEVICES
		link add rxe0 type rxe netdev eth0
		link add siw0 type siw netdev eth1
	DEVICES
}

setup_none() {
	:
}
