ALTER TABLE atomic_phases_audit
    DROP COLUMN value_bytes,
    DROP COLUMN value_sha256,
    DROP COLUMN attempt;
