-- Back to one table, with every row: that which is the default partition, and the days' rows are copied into it.
BEGIN;
SET LOCAL lock_timeout = '500ms';
-- Its indexes have the names again that migrations know them by.
DO $$
DECLARE of_both record;
BEGIN
    LOCK TABLE atomic_phases_keys IN ACCESS EXCLUSIVE MODE;
    PERFORM atomic_phases_stands_alone();
    PERFORM atomic_phases_hand_over('atomic_phases_keys', 'atomic_phases_keys_default');
    FOR of_both IN
        SELECT inhparent::regclass AS its, inhrelid::regclass AS of_default, relname AS name
        FROM pg_inherits JOIN pg_index ON indexrelid = inhrelid JOIN pg_class ON pg_class.oid = inhparent
        WHERE indrelid = 'atomic_phases_keys_default'::regclass
    LOOP
        EXECUTE format('ALTER INDEX %s RENAME TO %I', of_both.its, of_both.name || '_days');
        EXECUTE format('ALTER INDEX %s RENAME TO %I', of_both.of_default, of_both.name);
    END LOOP;
END $$;
ALTER TABLE atomic_phases_keys DETACH PARTITION atomic_phases_keys_default;
INSERT INTO atomic_phases_keys_default SELECT * FROM atomic_phases_keys;
DROP TABLE atomic_phases_keys;
ALTER TABLE atomic_phases_keys_default RENAME TO atomic_phases_keys;
DROP FUNCTION atomic_phases_drop_partition(date);
DROP FUNCTION atomic_phases_add_partition(date);
DROP FUNCTION atomic_phases_partition_of(date);
DROP FUNCTION atomic_phases_first_key(timestamptz);
DROP FUNCTION atomic_phases_hand_over(regclass, regclass);
DROP FUNCTION atomic_phases_stands_alone();
COMMIT;
