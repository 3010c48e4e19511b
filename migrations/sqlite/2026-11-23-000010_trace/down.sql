ALTER TABLE atomic_phases_keys DROP COLUMN trace;
