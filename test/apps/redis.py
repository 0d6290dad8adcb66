#!/usr/bin/python3
"""redis-server over rdma, with local memory a quarter of its data: it is filled, and every value is
read back and compared byte for byte, by scripts/demo_data.py.

Environment: FARPAGE_BUILD, and that of redisapp.
"""
import os
import subprocess
import sys
import time

import farapp
import redisapp
from redisapp import ADDRESS, NODE, inside

MIB = farapp.MIB
KEYS = 6_000  # of 2 KiB
LOCAL_BYTES = 3 * MIB
FETCHES_AT_LEAST = 2000
DEADLINE_S = 400
DATA = os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "demo_data.py")
REDIS, ASK = redisapp.REDIS, "/usr/bin/redis-cli"
redis_socket = os.path.join(farapp.workdir, "redis.sock")


def ask(*words):
    return subprocess.run([ASK, "-s", redis_socket, *words], capture_output=True, text=True, timeout=60, check=False).stdout


def await_server(server, log):
    until = time.monotonic() + 60
    while ask("PING").strip() != "PONG":
        if server.poll() is not None or time.monotonic() > until:
            sys.exit(f"FAILED: redis-server did not come up:\n{farapp.text_of(log)}")
        time.sleep(0.05)


def data(verb, log):
    begin = time.monotonic()
    done = subprocess.run([sys.executable, DATA, verb, redis_socket, str(KEYS)], capture_output=True, text=True,
                          timeout=DEADLINE_S, check=False)
    farapp.check(done.returncode == 0, f"{verb}: {done.stdout}{done.stderr}{farapp.text_of(log)}")
    print(f"{done.stdout.splitlines()[-1].strip()}, in {time.monotonic() - begin:.1f} s", flush=True)


def drive(url):
    stats, log = (os.path.join(farapp.workdir, name) for name in ("redis.stats", "redis.log"))
    command = [farapp.farpage, "run", "--node", url, "--secret-file", redisapp.secret_file(), "--local-memory", str(LOCAL_BYTES),
               "--deadline", "20s", "--stats-file", stats, "--", REDIS, "--port", "0", "--unixsocket", redis_socket,
               "--dir", farapp.workdir, "--save", "", "--appendonly", "no"]
    with open(log, "wb") as out:
        server = subprocess.Popen(inside("FARPAGE_TEST_PROGRAM_NETNS", command), stdout=out, stderr=out)
    try:
        await_server(server, log)
        data("load", log)
        used = next(int(line.split(":")[1]) for line in ask("INFO", "memory").splitlines()
                    if line.startswith("used_memory_dataset:"))
        data("verify", log)
        ask("SHUTDOWN", "NOSAVE")
        status = server.wait(60)
    finally:
        server.kill()
        server.wait()
    fetched = farapp.fetches(stats)
    print(f"{url}: {used / MIB:.1f} MiB of data, {LOCAL_BYTES // MIB} MiB local, {fetched} fetches")
    farapp.check(status == 0, f"redis-server ended with {status}:\n{farapp.text_of(log)}")
    farapp.check(used >= 4 * LOCAL_BYTES, "there is too little data")
    farapp.check(fetched >= FETCHES_AT_LEAST, "too few fetches: was it far memory?")
    farapp.check(farapp.fetches(stats, "writeback") > 0, "its write-backs were not timed")


def test():
    for program in (REDIS, ASK):
        farapp.need_program(program)
    if NODE:
        drive(NODE)
        return
    if not ADDRESS:
        farapp.skip("no RDMA device: FARPAGE_TEST_RDMA is not set")
    node = redisapp.RdmaNode()
    try:
        drive(node.url)
        farapp.check(node.process.poll() is None, f"the memory node ended:\n{node.text()}")
    finally:
        node.stop()


farapp.main(test)
