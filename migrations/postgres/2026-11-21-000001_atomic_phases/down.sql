DROP TABLE atomic_phases_staged_jobs;
DROP TABLE atomic_phases_keys;
DROP TYPE atomic_phases_status;
