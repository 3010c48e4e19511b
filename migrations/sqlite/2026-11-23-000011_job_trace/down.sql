ALTER TABLE atomic_phases_staged_jobs DROP COLUMN trace;
