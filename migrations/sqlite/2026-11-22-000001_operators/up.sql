-- As migrations/postgres, column by column.
CREATE INDEX IF NOT EXISTS atomic_phases_keys_request ON atomic_phases_keys (request_id);

CREATE INDEX IF NOT EXISTS atomic_phases_staged_jobs_dead_oldest ON atomic_phases_staged_jobs (staged_at, job_id)
    WHERE run_after IS NULL;
CREATE INDEX IF NOT EXISTS atomic_phases_staged_jobs_dead_id ON atomic_phases_staged_jobs (job_id)
    WHERE run_after IS NULL;

CREATE TABLE atomic_phases_audit (
    at                 INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)),
    id                 BLOB    NOT NULL,
    actor              TEXT    NOT NULL,
    act                TEXT    NOT NULL,
    outcome            TEXT    NOT NULL,
    refused_because    TEXT,
    reason             TEXT    NOT NULL,
    scope              TEXT,
    request_id         BLOB,
    job_id             BLOB,
    definition         TEXT,
    definition_version INTEGER,
    status_before      TEXT,
    status_after       TEXT,
    PRIMARY KEY (at, id)
) STRICT;

CREATE INDEX atomic_phases_audit_request ON atomic_phases_audit (request_id, at);

CREATE TRIGGER atomic_phases_audit_not_changed BEFORE UPDATE ON atomic_phases_audit
BEGIN
    SELECT RAISE(ABORT, 'atomic_phases_audit is append-only');
END;
CREATE TRIGGER atomic_phases_audit_not_deleted BEFORE DELETE ON atomic_phases_audit
    WHEN OLD.at >= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) - 7776000000
BEGIN
    SELECT RAISE(ABORT, 'atomic_phases_audit is append-only: rows younger than 90 days stay as they are');
END;
