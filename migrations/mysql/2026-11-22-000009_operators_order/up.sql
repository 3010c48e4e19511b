-- The order of operators' lists. PostgreSQL sorts rows of one moment as it goes; MySQL would sort all that are behind
-- a place before it returns the first.
SET @change = IF((SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE()
    AND table_name = 'atomic_phases_keys' AND index_name = 'atomic_phases_keys_newest') = 0,
    'ALTER TABLE atomic_phases_keys ADD KEY atomic_phases_keys_newest (expires_at, request_id),
        ADD KEY atomic_phases_keys_due_listed (run_after, request_id)', 'DO 0');
PREPARE atomic_phases_change FROM @change;
EXECUTE atomic_phases_change;
DEALLOCATE PREPARE atomic_phases_change;
