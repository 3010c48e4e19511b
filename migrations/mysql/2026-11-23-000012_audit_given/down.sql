SET @change = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'atomic_phases_audit' AND column_name = 'value_sha256') = 1,
    'ALTER TABLE atomic_phases_audit DROP COLUMN value_bytes, DROP COLUMN value_sha256,
        DROP COLUMN attempt', 'DO 0');
PREPARE atomic_phases_change FROM @change;
EXECUTE atomic_phases_change;
DEALLOCATE PREPARE atomic_phases_change;
