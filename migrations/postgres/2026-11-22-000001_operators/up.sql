-- Operators, and logs, name a request by its id. It never changes, so that updates stay HOT.
CREATE INDEX IF NOT EXISTS atomic_phases_keys_request ON atomic_phases_keys (request_id);

-- Staged jobs that are dead letters, the oldest first, and by the id that an operator names them by.
CREATE INDEX IF NOT EXISTS atomic_phases_staged_jobs_dead_oldest ON atomic_phases_staged_jobs (staged_at, job_id)
    WHERE run_after IS NULL;
CREATE INDEX IF NOT EXISTS atomic_phases_staged_jobs_dead_id ON atomic_phases_staged_jobs (job_id)
    WHERE run_after IS NULL;

-- What operators did, and what they were refused: written in the transaction of the act. Holds no key and
-- no value, so that it may outlive the request that it is about.
CREATE TABLE atomic_phases_audit (
    at                 timestamptz NOT NULL DEFAULT clock_timestamp(),
    id                 uuid        NOT NULL,
    actor              text        NOT NULL,
    act                text        NOT NULL,
    -- applied, already or refused.
    outcome            text        NOT NULL,
    refused_because    text,
    -- The operator's own words.
    reason             text        NOT NULL,
    scope              text COLLATE "C",
    request_id         uuid,
    job_id             uuid,
    definition         text,
    definition_version integer,
    status_before      text,
    status_after       text,
    PRIMARY KEY (at, id)
);

CREATE INDEX atomic_phases_audit_request ON atomic_phases_audit (request_id, at);

-- Append-only. What is older than 90 days may be deleted; nothing is ever changed.
CREATE FUNCTION atomic_phases_audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at < clock_timestamp() - interval '90 days' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'atomic_phases_audit is append-only: rows younger than 90 days stay as they are';
END $$;

CREATE TRIGGER atomic_phases_audit_append_only BEFORE UPDATE OR DELETE ON atomic_phases_audit
    FOR EACH ROW EXECUTE FUNCTION atomic_phases_audit_append_only();
CREATE TRIGGER atomic_phases_audit_not_truncated BEFORE TRUNCATE ON atomic_phases_audit
    FOR EACH STATEMENT EXECUTE FUNCTION atomic_phases_audit_append_only();
