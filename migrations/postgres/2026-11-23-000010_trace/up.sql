-- The trace context of who created the request, and behind it that of who held it last, where they were others; 26
-- bytes each. NULL where nothing is traced.
ALTER TABLE atomic_phases_keys ADD COLUMN trace bytea;
