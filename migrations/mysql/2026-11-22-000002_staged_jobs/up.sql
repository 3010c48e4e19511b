-- As migrations/postgres, column by column. `run_after` is NULL in a dead letter.
CREATE TABLE IF NOT EXISTS atomic_phases_staged_jobs (
    scope             VARBINARY(255) NOT NULL,
    request_id        BINARY(16)     NOT NULL,
    position          BIGINT         NOT NULL,
    job_id            BINARY(16)     NOT NULL,
    idempotency_key   VARBINARY(255) NOT NULL,
    name              VARBINARY(100) NOT NULL,
    args              LONGBLOB       NOT NULL,
    staged_at         BIGINT         NOT NULL,
    attempts          INT            NOT NULL DEFAULT 0,
    forgiven_attempts INT            NOT NULL DEFAULT 0,
    run_after         BIGINT,
    reason            BLOB,
    PRIMARY KEY (scope, request_id, position),
    KEY atomic_phases_staged_jobs_due (run_after),
    KEY atomic_phases_staged_jobs_dead (run_after, scope, job_id),
    KEY atomic_phases_staged_jobs_dead_oldest (run_after, staged_at, job_id),
    KEY atomic_phases_staged_jobs_id (job_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;
