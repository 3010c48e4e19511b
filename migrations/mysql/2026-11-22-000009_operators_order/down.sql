SET @change = IF((SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE()
    AND table_name = 'atomic_phases_keys' AND index_name = 'atomic_phases_keys_newest') > 0,
    'ALTER TABLE atomic_phases_keys DROP KEY atomic_phases_keys_newest,
        DROP KEY atomic_phases_keys_due_listed', 'DO 0');
PREPARE atomic_phases_change FROM @change;
EXECUTE atomic_phases_change;
DEALLOCATE PREPARE atomic_phases_change;
