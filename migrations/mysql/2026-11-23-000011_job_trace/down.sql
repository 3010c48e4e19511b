SET @change = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'atomic_phases_staged_jobs' AND column_name = 'trace') = 1,
    'ALTER TABLE atomic_phases_staged_jobs DROP COLUMN trace', 'DO 0');
PREPARE atomic_phases_change FROM @change;
EXECUTE atomic_phases_change;
DEALLOCATE PREPARE atomic_phases_change;
