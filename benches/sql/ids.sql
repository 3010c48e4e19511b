-- What the index of requests' ids costs in a table of two million rows, behind a checkpoint: random ids (version 4), and ids
-- by time (version 7). `psql -X -f benches/sql/ids.sql` by a superuser, on a database of its own, prints bytes of log for each
-- row and the size of the index.
\set QUIET on
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS ids_bench CASCADE;
CREATE SCHEMA ids_bench;
SET search_path = ids_bench;
CREATE TABLE random (id uuid);
CREATE TABLE by_time (id uuid);
CREATE INDEX ON random (id);
CREATE INDEX ON by_time (id);
CREATE FUNCTION by_time(ms bigint) RETURNS uuid LANGUAGE sql AS $$
    SELECT (lpad(to_hex(ms), 12, '0') || '7' || substr(md5(random()::text), 1, 3) || 'a' || substr(md5(random()::text), 1, 15))::uuid
$$;
INSERT INTO random SELECT gen_random_uuid() FROM generate_series(1, 2000000);
INSERT INTO by_time SELECT by_time(1700000000000 + n / 2) FROM generate_series(1, 2000000) AS n;
CHECKPOINT;
SELECT pg_current_wal_lsn() AS random \gset
INSERT INTO random SELECT gen_random_uuid() FROM generate_series(1, 20000);
SELECT pg_current_wal_lsn() AS by_time \gset
INSERT INTO by_time SELECT by_time(1700001000000 + n / 2) FROM generate_series(1, 20000) AS n;
SELECT ids, round(pg_wal_lsn_diff(ended, began) / 20000) AS log_bytes, pg_size_pretty(pg_indexes_size(ids)) AS index
FROM (VALUES ('random'::regclass, :'random'::pg_lsn, :'by_time'::pg_lsn), ('by_time', :'by_time', pg_current_wal_lsn()))
    AS measured (ids, began, ended);
DROP SCHEMA ids_bench CASCADE;
