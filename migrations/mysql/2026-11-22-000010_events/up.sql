-- As migrations/postgres, column by column. Bytes: what is kept of it may begin within a character. MySQL has no ADD COLUMN
-- IF NOT EXISTS.
SET @change = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'atomic_phases_keys' AND column_name = 'events') = 0,
    'ALTER TABLE atomic_phases_keys ADD COLUMN events BLOB, ADD COLUMN events_written INT', 'DO 0');
PREPARE atomic_phases_change FROM @change;
EXECUTE atomic_phases_change;
DEALLOCATE PREPARE atomic_phases_change;
