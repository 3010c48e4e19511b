-- Back to one table, with every row.
CREATE TABLE atomic_phases_keys_whole (LIKE atomic_phases_keys INCLUDING ALL) WITH (fillfactor = 80);
INSERT INTO atomic_phases_keys_whole SELECT * FROM atomic_phases_keys;
DROP TABLE atomic_phases_keys;
ALTER TABLE atomic_phases_keys_whole RENAME TO atomic_phases_keys;
DROP FUNCTION atomic_phases_drop_partition(date);
DROP FUNCTION atomic_phases_add_partition(date);
DROP FUNCTION atomic_phases_partition_of(date);
DROP FUNCTION atomic_phases_first_key(timestamptz);
