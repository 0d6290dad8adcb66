#!/usr/bin/python3
"""sqlite3 builds an in-memory database of 300 MiB, indexes it and asks it questions."""
import farapp

ROWS = 300_000  # of 1 KiB

SQL = f"""
CREATE TABLE item (id INTEGER PRIMARY KEY, kind INTEGER, name TEXT, body TEXT);
INSERT INTO item
  WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
  SELECT i, i * 7919 % 1009, printf('%08x', i * 2654435761 % 4294967296), printf('%0950d|%d', i * 48271 % 2147483647, i)
  FROM n;
CREATE INDEX by_name ON item (name);
SELECT count(*), sum(kind), sum(length(body)), min(name), max(name) FROM item;
SELECT kind, count(*), max(body) FROM item GROUP BY kind ORDER BY 2 DESC, 1 LIMIT 5;
SELECT count(*) FROM item a JOIN item b ON b.id = a.id * 31 % {ROWS} + 1 WHERE a.id <= 20000 AND b.body > a.body;
UPDATE item SET body = upper(name) || body WHERE kind % 10 = 3;
DELETE FROM item WHERE kind % 10 = 7;
SELECT count(*), sum(length(body)) FROM item;
SELECT id, name FROM item ORDER BY name LIMIT 20;
PRAGMA integrity_check;
"""


def test():
    farapp.compare([farapp.need_program("/usr/bin/sqlite3"), ":memory:", SQL])


farapp.main(test)
