-- Optional: the key table partitioned by day, so that a day of finished keys goes by dropping a table
-- in milliseconds instead of deleting its rows. Run it after the migrations of migrations/postgres; the
-- reaper goes on beside it. See docs/partitioning.md.
--
-- A unique (scope, key) and partitions by time go together only where the key tells the time: clients
-- have to send UUIDs of version 7 (lower case, with hyphens), which sort by their creation. Any other
-- key works too, and stays in the default partition, which only the reaper clears.
--
-- One transaction: in the middle of it the table has no rows, and a request would find its key unused.
BEGIN;
SET LOCAL lock_timeout = '500ms';

-- A foreign key, a view, a trigger, a policy or a publication of yours would be of one partition only, or be lost.
CREATE FUNCTION atomic_phases_stands_alone() RETURNS void LANGUAGE plpgsql AS $$
DECLARE found text;
BEGIN
    SELECT string_agg(DISTINCT pg_describe_object(classid, objid, 0), ', ') INTO found
    FROM pg_depend
    LEFT JOIN pg_constraint ON classid = 'pg_constraint'::regclass AND pg_constraint.oid = objid
    LEFT JOIN pg_trigger ON classid = 'pg_trigger'::regclass AND pg_trigger.oid = objid
    WHERE refclassid = 'pg_class'::regclass AND refobjid = 'atomic_phases_keys'::regclass
    AND (contype = 'f' OR NOT tgisinternal OR classid IN ('pg_policy'::regclass, 'pg_rewrite'::regclass,
        'pg_proc'::regclass, 'pg_publication_rel'::regclass));
    IF found IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'dependent_objects_still_exist',
            MESSAGE = 'not while these belong to atomic_phases_keys or refer to it: ' || found,
            HINT = 'Drop them, run the script again, and create them anew: they would be lost, or be of a part of the rows.';
    END IF;
END $$;

-- The owner of one table, and who may do what with it, become those of another.
CREATE FUNCTION atomic_phases_hand_over(its regclass, other regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    its_owner oid := (SELECT relowner FROM pg_class WHERE oid = its);
    granted record;
BEGIN
    EXECUTE format('ALTER TABLE %s OWNER TO %I', other, pg_get_userbyid(its_owner));
    FOR granted IN
        SELECT relation, privilege_type || coalesce(' (' || quote_ident(attname) || ')', '') AS what,
            CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS role_name,
            CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS others
        FROM (SELECT oid AS relation, NULL AS attname, relacl AS acl FROM pg_class
            UNION ALL SELECT attrelid, attname, attacl FROM pg_attribute) AS acls, aclexplode(acl)
        WHERE relation IN (its, other) AND grantee <> its_owner ORDER BY relation = its
    LOOP
        IF granted.relation = other THEN
            EXECUTE format('REVOKE ALL ON %s FROM %s CASCADE', other, granted.role_name);
        ELSE
            EXECUTE format('GRANT %s ON %s TO %s%s', granted.what, other, granted.role_name, granted.others);
        END IF;
    END LOOP;
END $$;

LOCK TABLE atomic_phases_keys IN ACCESS EXCLUSIVE MODE;
SELECT atomic_phases_stands_alone();
ALTER TABLE atomic_phases_keys RENAME TO atomic_phases_keys_default;

CREATE TABLE atomic_phases_keys (LIKE atomic_phases_keys_default INCLUDING ALL)
    PARTITION BY RANGE (idempotency_key);
SELECT atomic_phases_hand_over('atomic_phases_keys_default', 'atomic_phases_keys');

ALTER TABLE atomic_phases_keys ATTACH PARTITION atomic_phases_keys_default DEFAULT;

-- The indexes have the names that migrations know them by.
DO $$
DECLARE of_both record;
BEGIN
    FOR of_both IN
        SELECT inhparent::regclass AS its, inhrelid::regclass AS of_default, relname AS name
        FROM pg_inherits JOIN pg_index ON indexrelid = inhrelid JOIN pg_class ON pg_class.oid = inhrelid
        WHERE indrelid = 'atomic_phases_keys_default'::regclass
    LOOP
        EXECUTE format('ALTER INDEX %s RENAME TO %I', of_both.of_default, of_both.name || '_default');
        EXECUTE format('ALTER INDEX %s RENAME TO %I', of_both.its, of_both.name);
    END LOOP;
END $$;

-- The least version 7 UUID of a moment, as far as its time goes.
CREATE FUNCTION atomic_phases_first_key(at timestamptz) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT substr(hex, 1, 8) || '-' || substr(hex, 9, 4)
    FROM lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') AS hex
$$;

CREATE FUNCTION atomic_phases_partition_of(day date) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'atomic_phases_keys_' || to_char(day, 'YYYYMMDD')
$$;

-- A day's partition (UTC). PostgreSQL reads the default partition for keys of the day, and refuses if it finds one:
-- of a client whose clock is ahead, say. Those are moved first. Takes the parent's lock for as long as that lasts:
-- SET lock_timeout before, and try again.
CREATE FUNCTION atomic_phases_add_partition(day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    its_name text := atomic_phases_partition_of(day);
    first_key text := atomic_phases_first_key(day::timestamp AT TIME ZONE 'UTC');
    next_key text := atomic_phases_first_key((day + 1)::timestamp AT TIME ZONE 'UTC');
BEGIN
    -- It is there, and in use: it is not locked again.
    IF to_regclass(its_name) IS NOT NULL THEN
        RETURN;
    END IF;
    BEGIN
        EXECUTE format(
            'CREATE TABLE IF NOT EXISTS %I PARTITION OF atomic_phases_keys
             FOR VALUES FROM (%L) TO (%L) WITH (fillfactor = 80)', its_name, first_key, next_key);
    EXCEPTION WHEN check_violation THEN
        LOCK TABLE atomic_phases_keys IN ACCESS EXCLUSIVE MODE;
        EXECUTE format(
            'CREATE TABLE %I (LIKE atomic_phases_keys INCLUDING ALL) WITH (fillfactor = 80)', its_name);
        EXECUTE format(
            'WITH moved AS (DELETE FROM atomic_phases_keys_default
             WHERE idempotency_key >= %L AND idempotency_key < %L RETURNING *)
             INSERT INTO %I SELECT * FROM moved', first_key, next_key, its_name);
        EXECUTE format(
            'ALTER TABLE atomic_phases_keys ATTACH PARTITION %I
             FOR VALUES FROM (%L) TO (%L)', its_name, first_key, next_key);
    END;
    -- Through the parent, only the parent's privileges count; a backup reads the partition by itself, and its owner drops it.
    PERFORM atomic_phases_hand_over('atomic_phases_keys', its_name::regclass);
END $$;

-- Drops a day's partition, and returns how many rows it kept: what is unfinished, or finished and not
-- expired, moves to the default partition (G15). Takes the parent's lock for as long as that lasts:
-- SET lock_timeout before, and try again.
CREATE FUNCTION atomic_phases_drop_partition(day date) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE kept bigint;
BEGIN
    EXECUTE format('ALTER TABLE atomic_phases_keys DETACH PARTITION %I',
        atomic_phases_partition_of(day));
    EXECUTE format(
        'INSERT INTO atomic_phases_keys SELECT * FROM %I
         WHERE status <> ''completed'' OR expires_at > clock_timestamp()',
        atomic_phases_partition_of(day));
    GET DIAGNOSTICS kept = ROW_COUNT;
    EXECUTE format('DROP TABLE %I', atomic_phases_partition_of(day));
    -- Autovacuum never looks at a parent by itself.
    ANALYZE atomic_phases_keys;
    RETURN kept;
END $$;
COMMIT;
