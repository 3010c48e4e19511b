-- As migrations/postgres, column by column. MySQL has no ADD COLUMN IF NOT EXISTS.
SET @change = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'atomic_phases_keys' AND column_name = 'trace') = 0,
    'ALTER TABLE atomic_phases_keys ADD COLUMN trace VARBINARY(52)', 'DO 0');
PREPARE atomic_phases_change FROM @change;
EXECUTE atomic_phases_change;
DEALLOCATE PREPARE atomic_phases_change;
