-- As part of which bulk act an act was done. MySQL has no ADD COLUMN IF NOT EXISTS.
SET @change = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'atomic_phases_audit' AND column_name = 'bulk_id') = 0,
    'ALTER TABLE atomic_phases_audit ADD COLUMN bulk_id BINARY(16)', 'DO 0');
PREPARE atomic_phases_change FROM @change;
EXECUTE atomic_phases_change;
DEALLOCATE PREPARE atomic_phases_change;
