#!/usr/bin/env bash
# test/bench/rdma_latency.sh BUILD [ADDRESS [DEVICE]]: what a remote fault and chained reads cost
# over rdma, beside what the device itself gives, in one run on one machine whose DEVICE (rxe0)
# reaches itself at ADDRESS (10.77.0.1).
#
#   ib_read_lat -s 4096, ib_read_bw -s 4096   the device: perftest, both ends here
#   floor                                     a userfaultfd fault that only copies a page (farpage bench fault)
#   fault                                     Farpage's, the page on a node behind rdma (farpage bench fault)
#   sequential read                           Farpage's, with its own prefetch (farpage bench touch)
#   chained reads                             64 pages a request over one link (farpage bench link)
#
# Measures them in turns and prints the median of each with the least and the greatest; then ratios
# of medians. For each fault mode: fault p50 to (ib_read_lat p50 + 1.15 x the mode's floor p50), the
# target, and to (ib_read_lat p50 + 1.3 x the mode's floor p50); each wanted at most 1. The better
# of sequential and chained reads to ib_read_bw, at least 0.6. For comparison, fault p50 with one
# READ of our link in the place of ib_read_lat: a fault's READ comes after a pause, when a soft
# device's worker sleeps and must be woken; perftest never pauses. Ends with 0; with 1 if reads are
# slower than that or a fault costs twice the bound with 1.3; with 77 where perftest is not
# installed. In a guest: see test/vm/README.md.
set -euo pipefail

build=${1:?the build folder}
address=${2:-10.77.0.1}
device=${3:-rxe0}
iterations=1000 rounds=7 rounds_min=3 patience_s=90
farpage=$build/tools/farpage

say() {
	echo "rdma_latency: $*" >&2
}

# shellcheck disable=SC2317
clean_up() {
	[[ -z $node ]] || kill "$node" 2>/dev/null || true
	[[ -z $node ]] || wait "$node" || true
	rm -rf "$work"
}

start_node() {
	(umask 077 && echo "a secret of this bench alone" >"$work/secret")
	cat >"$work/node.yaml" <<-CONFIG
		listen: rdma://$address:0
		pools: [{ name: main, size: 512M }]
		auth: { secret_file: $work/secret }
		log_level: warning
	CONFIG
	exec {ready}>"$work/url"
	"$build/daemon/farpaged" --config "$work/node.yaml" --ready-fd "$ready" &
	node=$!
	exec {ready}>&-
	for ((i = 0; i < 600; i++)); do
		[[ ! -s $work/url ]] || break
		kill -0 "$node" 2>/dev/null || break
		sleep 0.1
	done
	read -r url <"$work/url" || { say "the node did not come up" && exit 1; }
}

# perftest TOOL COLUMN ITERATIONS: both ends of it, and a column of its one line of results. Its
# server is there when its port is: the client is tried until then.
perftest() {
	local tool=$1 column=$2 n=$3 server status=1
	taskset 1 "$tool" -d "$device" -F -s 4096 -n "$n" >"$work/server" 2>&1 &
	server=$!
	for ((i = 0; i < 50 && status; i++)); do
		kill -0 "$server" 2>/dev/null || break
		status=0
		timeout 60 taskset 1 "$tool" -d "$device" -F -s 4096 -n "$n" "$address" >"$work/client" 2>&1 || status=$?
		((status == 0)) || sleep 0.2
	done
	if ((status)); then
		kill "$server" 2>/dev/null || true
		say "$tool failed:" && tail -n 5 "$work/server" "$work/client" >&2
	fi
	wait "$server" || true
	((status == 0)) || exit 1
	awk -v column="$column" '$1 == 4096 { print $column }' "$work/client"
}

bench() {
	"$farpage" bench "$@" --json --secret-file "$work/secret"
}

# A soft device's work is done by kernel threads: they get a CPU of their own, as a card's
# interrupts would, and programs the other, perftest's too. (An idle CPU of a guest takes as long to
# wake as a READ: boot it with idle=poll.)
separate_workers() {
	[[ -n ${FARPAGE_VM_KERNEL:-} ]] || return 0
	echo 2 >/sys/devices/virtual/workqueue/cpumask
}

node=
[[ -n ${FARPAGE_VM_KERNEL:-} ]] || [[ -n ${2:-} ]] || { say "no RDMA device is named" && exit 77; }
command -v ib_read_lat ib_read_bw >/dev/null || { say "ib_read_lat and ib_read_bw (perftest) are not installed" && exit 77; }
work=$(mktemp -d "${TMPDIR:-/tmp}/farpage-rdma-latency.XXXXXX")
trap clean_up EXIT
export FARPAGE_RUNTIME_DIR=$work/runtime

# Columns of perftest 4.5 to 6: bytes, iterations, t_min, t_max, t_typical (the median); ...,
# average MiB/s. What is compared is measured in turns, so that a machine that grows slower does so
# for all.
separate_workers
start_node
for ((round = 1; round <= rounds; round++)); do
	((SECONDS < patience_s || round <= rounds_min)) || break # a machine that others keep busy
	perftest ib_read_lat 5 "$iterations" >"$work/read_lat.$round"
	bench fault --fault-mode both --cpu 0 --transport floor --node "$url" --pages 512 --rounds 1 >"$work/fault.$round"
	perftest ib_read_bw 4 "$iterations" >"$work/read_bw.$round"
	taskset 1 "$farpage" bench link "$url" --op read --sizes 4K,64x4K --depths 1,4 --seconds 0.5 --json \
		--secret-file "$work/secret" >"$work/link.$round"
	bench touch --cpu 0 --transport floor --node "$url" --size 8M --local 2M --rounds 1 >"$work/touch.$round"
done

python3 - "$work" "$((round - 1))" <<'REPORT'
import json
import statistics
import sys

MODES = ("thread", "inline")
work, rounds = sys.argv[1], int(sys.argv[2])
figures = []


def load(name, number):
    with open(f"{work}/{name}.{number}", encoding="utf-8") as text:
        return json.load(text)


def show(name, values, unit):
    print(f"{name:30} {statistics.median(values):8.1f} {unit:6} [{min(values):.1f} {max(values):.1f}]")


def middle(key):
    return statistics.median(f[key] for f in figures)


def ratio(name, value, holds, bound):
    print(f"{name}: {value:.2f}, wanted {bound}: {'yes' if holds else 'NO'}")


for number in range(1, rounds + 1):
    p50 = {(c["over"] == "floor", c["fault_mode"]): c["p50_us"]["median"] for c in load("fault", number)["contenders"]}
    cells = load("link", number)["ways"][0]["cells"]
    figures.append({
        "lat": load("read_lat", number),
        "one": next(cell["p50_us"] for cell in cells if (cell["request_bytes"], cell["depth"]) == (4096, 1)),
        **{f"floor {mode}": p50[True, mode] for mode in MODES},
        **{f"fault {mode}": p50[False, mode] for mode in MODES},
        "bw": load("read_bw", number),
        "touch": 4096e6 / 2**20 / load("touch", number)["contenders"][1]["sequential_read_us_per_page"]["median"],
        "chain": max(cell["gib_per_second"] for cell in cells) * 1024,
    })
for key, name, unit in (
    ("lat", "ib_read_lat -s 4096, p50", "µs"), ("one", "one READ of 4 KiB, p50", "µs"),
    *((f"floor {mode}", f"floor, {mode}, p50", "µs") for mode in MODES),
    *((f"fault {mode}", f"fault over rdma, {mode}, p50", "µs") for mode in MODES),
    ("bw", "ib_read_bw -s 4096", "MiB/s"),
    ("touch", "sequential read, prefetched", "MiB/s"), ("chain", "chained reads", "MiB/s"),
):
    show(name, [f[key] for f in figures], unit)
worst = 0
for mode in MODES:
    fault = middle(f"fault {mode}")
    for share in (1.15, 1.3):
        allowed = middle("lat") + share * middle(f"floor {mode}")
        ratio(f"fault, {mode} / (ib_read_lat + {share} x floor = {allowed:.1f} µs)", fault / allowed, fault <= allowed, "at most 1")
    worst = max(worst, fault / allowed)
    paused = middle("one") + 1.3 * middle(f"floor {mode}")
    print(f"    to (one READ after a pause + 1.3 x floor = {paused:.1f} µs): {fault / paused:.2f}")
reads = max(middle("touch"), middle("chain")) / middle("bw")
ratio("the better reads / ib_read_bw", reads, reads >= 0.6, "at least 0.60")
sys.exit(0 if worst <= 2 and reads >= 0.6 else 1)
REPORT
