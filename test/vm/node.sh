#!/usr/bin/env bash
# test/vm/node.sh BUILD-FOLDER: the node's end of a pair of guests: first devices.sh, then farpaged at rdma://10.77.3.1:7461
# with its log in the results folder, until the program's guest has ended. A file `pull` there asks
# that the cable be pulled for as many seconds as it says; it goes away when the cable is back.
set -euo pipefail

build=$1
shared=$FARPAGE_VM_RESULTS

rm -f "$shared"/{node.log,pull} # of a pair before this one
"$(dirname "${BASH_SOURCE[0]}")/devices.sh" node
(umask 077 && echo open-sesame-open-sesame >/run/node.secret)
cat >/run/node.yaml <<-YAML
	listen: "rdma://10.77.3.1:7461"
	pools: [ { name: main, size: 512M } ]
	limits: { grace: 12s }
	auth: { secret_file: /run/node.secret }
YAML
"$build/daemon/farpaged" --config /run/node.yaml 2>"$shared/node.log" &
node=$!
while kill -0 "$node" 2>/dev/null; do
	if [[ -e $shared/pull ]]; then
		ip link set eth0 down
		sleep "$(<"$shared/pull")"
		ip link set eth0 up
		rm "$shared/pull"
	fi
	sleep 0.2
done
wait "$node"
