-- As migrations/postgres, column by column.
ALTER TABLE atomic_phases_audit ADD COLUMN attempt INTEGER;
ALTER TABLE atomic_phases_audit ADD COLUMN value_sha256 BLOB;
ALTER TABLE atomic_phases_audit ADD COLUMN value_bytes INTEGER;
