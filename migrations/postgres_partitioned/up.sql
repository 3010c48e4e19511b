-- Optional: the key table partitioned by day, so that a day of finished keys goes by dropping a table
-- in milliseconds instead of deleting its rows. Run it after the migrations of migrations/postgres; the
-- reaper goes on beside it. See docs/partitioning.md.
--
-- A unique (scope, key) and partitions by time go together only where the key tells the time: clients
-- have to send UUIDs of version 7 (lower case, with hyphens), which sort by their creation. Any other
-- key works too, and stays in the default partition, which only the reaper clears.
ALTER TABLE atomic_phases_keys RENAME TO atomic_phases_keys_default;

CREATE TABLE atomic_phases_keys (LIKE atomic_phases_keys_default INCLUDING ALL)
    PARTITION BY RANGE (idempotency_key);

ALTER TABLE atomic_phases_keys ATTACH PARTITION atomic_phases_keys_default DEFAULT;

-- The least version 7 UUID of a moment, as far as its time goes.
CREATE FUNCTION atomic_phases_first_key(at timestamptz) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT substr(hex, 1, 8) || '-' || substr(hex, 9, 4)
    FROM lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') AS hex
$$;

CREATE FUNCTION atomic_phases_partition_of(day date) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'atomic_phases_keys_' || to_char(day, 'YYYYMMDD')
$$;

-- A day's partition (UTC). Add it before the day begins: where the default partition has keys of the
-- day already, PostgreSQL refuses.
CREATE FUNCTION atomic_phases_add_partition(day date) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format(
        'CREATE TABLE IF NOT EXISTS %I PARTITION OF atomic_phases_keys
         FOR VALUES FROM (%L) TO (%L) WITH (fillfactor = 80)',
        atomic_phases_partition_of(day),
        atomic_phases_first_key(day::timestamp AT TIME ZONE 'UTC'),
        atomic_phases_first_key((day + 1)::timestamp AT TIME ZONE 'UTC'));
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
