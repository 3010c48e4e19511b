DROP TABLE IF EXISTS atomic_phases_staged_jobs;
