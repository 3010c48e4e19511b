ALTER TABLE atomic_phases_keys DROP COLUMN events_written;
ALTER TABLE atomic_phases_keys DROP COLUMN events;
