DROP TABLE atomic_phases_audit;
DROP FUNCTION atomic_phases_audit_append_only();
DROP INDEX atomic_phases_staged_jobs_dead_id;
DROP INDEX atomic_phases_staged_jobs_dead_oldest;
DROP INDEX atomic_phases_keys_request;
