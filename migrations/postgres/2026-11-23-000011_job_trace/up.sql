-- The trace context of the phase that staged the job. NULL where nothing is traced.
ALTER TABLE atomic_phases_staged_jobs ADD COLUMN trace bytea;
