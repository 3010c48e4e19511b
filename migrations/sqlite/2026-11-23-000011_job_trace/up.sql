-- As migrations/postgres, column by column.
ALTER TABLE atomic_phases_staged_jobs ADD COLUMN trace BLOB;
