-- What the outputs of a request's phases cost the server, by how they are stored; and parameters and replies of 1 MiB.
-- `psql -X -f benches/sql/outputs.sql` on a database of its own prints the table of docs/bench.md: bytes of log and
-- milliseconds of the server for each request, without the fsync of its commits. Values that do not compress are
-- those behind an encrypting codec.
\set QUIET on
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS outputs_bench CASCADE;
CREATE SCHEMA outputs_bench;
SET search_path = outputs_bench;
SET synchronous_commit = off;
CREATE TABLE requests (id bigserial PRIMARY KEY, point int NOT NULL, params bytea NOT NULL, outputs bytea, reply bytea)
    WITH (fillfactor = 80);
CREATE TABLE outputs (request bigint, phase int, output bytea NOT NULL, PRIMARY KEY (request, phase));
CREATE TABLE results (phases int, size int, kind text, form text, log numeric, ms numeric);

CREATE FUNCTION value_of(size int, kind text) RETURNS bytea LANGUAGE sql VOLATILE AS $$
    SELECT substr(CASE kind
        WHEN 'random' THEN string_agg(decode(md5(random()::text || n), 'hex'), '')
        ELSE string_agg(convert_to(format('{"charge":"ch_%s","amount":%s,"currency":"usd"},',
            left(md5(random()::text || n), 12), (random() * 10000)::int), 'UTF8'), '') END, 1, size)
    FROM generate_series(1, 1 + size / CASE kind WHEN 'random' THEN 16 ELSE 50 END) AS n
$$;

-- A hundred requests of so many phases, each with an output of so many bytes.
CREATE PROCEDURE measure(phases int, size int, kind text, form text, requests int) LANGUAGE plpgsql AS $$
DECLARE
    made bytea[]; so_far bytea; id_of bigint; began timestamptz; at_log pg_lsn; spent interval := '0'; written numeric := 0;
BEGIN
    FOR nth IN 1 .. requests LOOP
        made := ARRAY(SELECT outputs_bench.value_of(size, kind) FROM generate_series(1, phases));
        INSERT INTO outputs_bench.requests (point, params) VALUES (0, '{"user":1,"amount":2000}') RETURNING id INTO id_of;
        COMMIT;
        so_far := '';
        began := clock_timestamp();
        at_log := pg_current_wal_insert_lsn();
        FOR phase IN 1 .. phases LOOP
            CASE form
            WHEN 'rewritten' THEN
                so_far := so_far || made[phase];
                UPDATE outputs_bench.requests SET point = phase, outputs = so_far WHERE id = id_of;
            WHEN 'appended' THEN
                UPDATE outputs_bench.requests SET point = phase, outputs = coalesce(outputs, '') || made[phase]
                    WHERE id = id_of;
            ELSE
                INSERT INTO outputs_bench.outputs VALUES (id_of, phase, made[phase]);
                UPDATE outputs_bench.requests SET point = phase WHERE id = id_of;
            END CASE;
            COMMIT;
        END LOOP;
        spent := spent + (clock_timestamp() - began);
        written := written + (pg_current_wal_insert_lsn() - at_log);
    END LOOP;
    INSERT INTO outputs_bench.results
        VALUES (phases, size, kind, form, written / requests, extract(epoch FROM spent) * 1000 / requests);
    COMMIT;
END $$;

-- A request with parameters and a reply of so many bytes, and one phase between them.
CREATE PROCEDURE whole(size int, requests int) LANGUAGE plpgsql AS $$
DECLARE
    value bytea; id_of bigint; began timestamptz; spent interval[] := ARRAY['0', '0', '0']::interval[];
BEGIN
    FOR nth IN 1 .. requests LOOP
        value := outputs_bench.value_of(size, 'random');
        began := clock_timestamp();
        INSERT INTO outputs_bench.requests (point, params) VALUES (0, value) RETURNING id INTO id_of;
        COMMIT;
        spent[1] := spent[1] + (clock_timestamp() - began);
        began := clock_timestamp();
        UPDATE outputs_bench.requests SET point = 1, outputs = '{"ride":"1"}' WHERE id = id_of;
        COMMIT;
        spent[2] := spent[2] + (clock_timestamp() - began);
        began := clock_timestamp();
        UPDATE outputs_bench.requests SET point = 2, reply = value WHERE id = id_of;
        COMMIT;
        spent[3] := spent[3] + (clock_timestamp() - began);
    END LOOP;
    FOR part IN 1 .. 3 LOOP
        INSERT INTO outputs_bench.results VALUES (0, size, 'random',
            (ARRAY['parameters', 'a commit between', 'reply'])[part], NULL,
            extract(epoch FROM spent[part]) * 1000 / requests);
    END LOOP;
    COMMIT;
END $$;

SELECT format('CALL measure(%s, %s, %L, %L, %s)', phases, size, kind, form, requests)
FROM (VALUES (12, 10240, 50), (12, 1024, 200), (12, 100, 500), (3, 100, 1000)) AS sizes (phases, size, requests),
     (VALUES ('random'), ('json')) AS kinds (kind),
     (VALUES ('rewritten'), ('appended'), ('a row for each phase')) AS forms (form)
\gexec
CALL whole(1048576, 50);
CALL whole(24, 500);

SELECT format('| %s x %s | %s | %s | %s | %s |', phases, size, kind, form, round(log), round(ms, 2)) AS
    "| outputs | values | form | bytes of log | server ms |"
FROM results WHERE phases > 0 ORDER BY phases DESC, size DESC, kind DESC, form DESC;
SELECT format('| %s bytes | %s | %s |', size, form, round(ms, 2)) AS "| size | part | server ms |"
FROM results WHERE phases = 0 ORDER BY size DESC, form DESC;
DROP SCHEMA outputs_bench CASCADE;
