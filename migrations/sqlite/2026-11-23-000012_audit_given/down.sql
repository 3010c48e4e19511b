ALTER TABLE atomic_phases_audit DROP COLUMN value_bytes;
ALTER TABLE atomic_phases_audit DROP COLUMN value_sha256;
ALTER TABLE atomic_phases_audit DROP COLUMN attempt;
