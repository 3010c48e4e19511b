ALTER TABLE atomic_phases_keys DROP COLUMN events, DROP COLUMN events_written;
