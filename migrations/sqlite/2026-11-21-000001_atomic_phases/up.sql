-- As migrations/postgres, column by column. Times are milliseconds since 1970, by SQLite's clock;
-- request and job ids are 16 bytes.
CREATE TABLE atomic_phases_keys (
    scope              TEXT    NOT NULL,
    idempotency_key    TEXT    NOT NULL,
    request_id         BLOB    NOT NULL,
    definition         TEXT    NOT NULL,
    definition_version INTEGER NOT NULL,
    phases             TEXT    NOT NULL,
    fingerprint        TEXT    NOT NULL,
    status             TEXT    NOT NULL CHECK (status IN
        ('pending', 'in_progress', 'failed_retryable', 'completed', 'unknown', 'dead_letter')),
    recovery_point     TEXT    NOT NULL CHECK (length(recovery_point) <= 50),
    open_intent        TEXT             CHECK (length(open_intent) <= 50),
    lease_token        INTEGER NOT NULL,
    locked_until       INTEGER,
    run_after          INTEGER,
    attempts           INTEGER NOT NULL,
    forgiven_attempts  INTEGER NOT NULL DEFAULT 0,
    reconciles         INTEGER NOT NULL DEFAULT 0,
    resolution         TEXT,
    reason             TEXT,
    waiting_since      INTEGER,
    advanced_at        INTEGER NOT NULL,
    created_at         INTEGER NOT NULL,
    expires_at         INTEGER NOT NULL,
    params             BLOB    NOT NULL,
    context            BLOB,
    outputs            BLOB,
    response_status    INTEGER,
    response_headers   BLOB,
    response_body      BLOB,
    PRIMARY KEY (scope, idempotency_key)
) STRICT;

CREATE INDEX atomic_phases_keys_due ON atomic_phases_keys (run_after, scope, idempotency_key)
    WHERE run_after IS NOT NULL;

CREATE INDEX atomic_phases_keys_waiting ON atomic_phases_keys (waiting_since)
    WHERE waiting_since IS NOT NULL;

CREATE INDEX atomic_phases_keys_expiry ON atomic_phases_keys (expires_at);

CREATE TABLE atomic_phases_staged_jobs (
    scope           TEXT    NOT NULL,
    request_id      BLOB    NOT NULL,
    position        INTEGER NOT NULL,
    job_id          BLOB    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    args            BLOB    NOT NULL,
    staged_at       INTEGER NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    forgiven_attempts INTEGER NOT NULL DEFAULT 0,
    run_after       INTEGER,
    reason          TEXT,
    PRIMARY KEY (scope, request_id, position)
) STRICT;

CREATE INDEX atomic_phases_staged_jobs_due
    ON atomic_phases_staged_jobs (run_after, scope, request_id, position)
    WHERE run_after IS NOT NULL;

CREATE INDEX atomic_phases_staged_jobs_dead ON atomic_phases_staged_jobs (scope, job_id)
    WHERE run_after IS NULL;
