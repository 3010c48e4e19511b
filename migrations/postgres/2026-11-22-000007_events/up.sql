-- What became of a request off its usual way: the latest of it, a line each, and how often there was something to
-- write. Written by the update that changes the row; NULL where it ran through.
ALTER TABLE atomic_phases_keys ADD COLUMN events text, ADD COLUMN events_written integer;
