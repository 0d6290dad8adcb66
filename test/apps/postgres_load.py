#!/usr/bin/python3
"""postgres_load.py FOLDER small|large: makes a PostgreSQL cluster, runs pgbench on it with several
clients, checks that the books balance, sorts and joins in memory, stops it by force in the middle
of work and looks what recovery makes of it. Prints what does not depend on time.
"""
import glob
import os
import shutil
import subprocess
import sys

FOLDER, LARGE = sys.argv[1], sys.argv[2] == "large"
BIN = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
DATA = os.path.join(FOLDER, "pgdata")
SCALE, CLIENTS, EACH, ROWS = (10, 8, 500, 600_000) if LARGE else (1, 3, 60, 120_000)
SETTINGS = f"""
listen_addresses = ''
unix_socket_directories = '{FOLDER}'
shared_buffers = 64MB
work_mem = 256MB
fsync = off
max_connections = 20
autovacuum = on
log_min_messages = fatal
"""


def run(*words, data=None):
    done = subprocess.run([os.path.join(BIN, words[0]), *words[1:]], input=data, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def ask(text):
    return run("psql", "-X", "-h", FOLDER, "-d", "postgres", "-At", "-v", "ON_ERROR_STOP=1", data=text).strip()


def start():
    run("pg_ctl", "-D", DATA, "-l", os.path.join(FOLDER, "pg.log"), "-w", "-t", "300", "start")


def balance():
    """What pgbench moves from one account to the other must add up."""
    sums = ask("select (select sum(abalance) from pgbench_accounts) = (select sum(tbalance) from pgbench_tellers), "
               "(select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches), "
               "(select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history), "
               "(select count(*) from pgbench_history)")
    print("balance", sums)


def main():
    shutil.rmtree(DATA, ignore_errors=True)
    run("initdb", "-D", DATA, "-A", "trust", "--no-sync", "--locale=C", "--encoding=UTF8")
    with open(os.path.join(DATA, "postgresql.conf"), "a", encoding="ascii") as out:
        out.write(SETTINGS)
    start()
    try:
        run("pgbench", "-h", FOLDER, "-i", "-q", "-s", str(SCALE), "postgres")
        run("pgbench", "-h", FOLDER, "-c", str(CLIENTS), "-j", "2", "-t", str(EACH), "--random-seed=1", "postgres")
        balance()
        print(ask(f"""
            create table words as select i, md5(i::text) || repeat(md5((i * 7)::text), 4) as word from generate_series(1, {ROWS}) i;
            select md5(string_agg(word, ',' order by word desc)) from words where i % 4 = 0;
            select count(*), max(a.word) from words a join words b on a.i = b.i * 31 % {ROWS} + 1 where a.word > b.word;
            create index on words (word); analyze words;
            select i, word from words order by word limit 3;"""))
        run("pg_ctl", "-D", DATA, "-m", "immediate", "-w", "stop")
        start()
        balance()
        print(ask("select count(*), sum(i), md5(min(word)) from words"))
    finally:
        subprocess.run([os.path.join(BIN, "pg_ctl"), "-D", DATA, "-m", "fast", "-w", "stop"], capture_output=True, timeout=300, check=False)
    shutil.rmtree(DATA)


main()
