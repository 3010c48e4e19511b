-- As migrations/postgres, column by column.
ALTER TABLE atomic_phases_keys ADD COLUMN trace BLOB;
