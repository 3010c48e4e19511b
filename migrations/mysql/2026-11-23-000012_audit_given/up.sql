-- As migrations/postgres, column by column, in one ALTER: all three are there, or none. MySQL has no ADD COLUMN IF NOT
-- EXISTS.
SET @change = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'atomic_phases_audit' AND column_name = 'value_sha256') = 0,
    'ALTER TABLE atomic_phases_audit ADD COLUMN attempt INT, ADD COLUMN value_sha256 BINARY(32),
        ADD COLUMN value_bytes BIGINT', 'DO 0');
PREPARE atomic_phases_change FROM @change;
EXECUTE atomic_phases_change;
DEALLOCATE PREPARE atomic_phases_change;
