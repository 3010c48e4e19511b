-- Which phase an act was about. MySQL has no ADD COLUMN IF NOT EXISTS.
SET @change = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'atomic_phases_audit' AND column_name = 'phase') = 0,
    'ALTER TABLE atomic_phases_audit ADD COLUMN phase VARBINARY(200)', 'DO 0');
PREPARE atomic_phases_change FROM @change;
EXECUTE atomic_phases_change;
DEALLOCATE PREPARE atomic_phases_change;
