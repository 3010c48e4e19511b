-- As migrations/postgres, column by column.
ALTER TABLE atomic_phases_keys ADD COLUMN events TEXT;
ALTER TABLE atomic_phases_keys ADD COLUMN events_written INTEGER;
