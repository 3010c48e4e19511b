-- Optional: the key table in sixteen partitions by hash of the scope. See docs/scaling.md. It copies the rows under a
-- lock that all requests wait for, so stop the engines first where there are many.
--
-- One transaction: copied while engines run, a key could be there twice.
BEGIN;
SET LOCAL lock_timeout = '500ms';
ALTER TABLE atomic_phases_keys RENAME TO atomic_phases_keys_whole;

CREATE TABLE atomic_phases_keys
    (LIKE atomic_phases_keys_whole INCLUDING ALL EXCLUDING INDEXES) PARTITION BY HASH (scope);

DO $$
DECLARE
    index record;
BEGIN
    FOR number IN 0..15 LOOP
        EXECUTE format(
            'CREATE TABLE atomic_phases_keys_%s PARTITION OF atomic_phases_keys
             FOR VALUES WITH (MODULUS 16, REMAINDER %s) WITH (fillfactor = 80)', number, number);
    END LOOP;
    INSERT INTO atomic_phases_keys SELECT * FROM atomic_phases_keys_whole;
    -- Each index under its own name, by which migrations know it.
    FOR index IN
        SELECT relname AS name, pg_get_indexdef(indexrelid) AS definition, pg_get_constraintdef(pg_constraint.oid) AS key
        FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid LEFT JOIN pg_constraint ON conindid = indexrelid AND contype = 'p'
        WHERE indrelid = 'atomic_phases_keys_whole'::regclass
    LOOP
        EXECUTE format('ALTER INDEX %I RENAME TO %I', index.name, index.name || '_whole');
        IF index.key IS NOT NULL THEN
            EXECUTE format('ALTER TABLE atomic_phases_keys ADD CONSTRAINT %I %s', index.name, index.key);
        ELSE
            EXECUTE format('CREATE INDEX %I ON atomic_phases_keys %s', index.name,
                substring(index.definition FROM 'USING .*'));
        END IF;
    END LOOP;
END $$;

DROP TABLE atomic_phases_keys_whole;
COMMIT;
