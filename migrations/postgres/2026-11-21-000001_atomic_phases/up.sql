-- One row for each idempotency key: how far its request came, and its answer.
-- Times are the database's clock. No index but the primary key names a column that changes while
-- a request runs, so that every update stays HOT.
CREATE TABLE atomic_phases_keys (
    scope              text        NOT NULL,
    idempotency_key    text        NOT NULL,
    -- This life of the key: a reused, expired key begins another.
    request_id         uuid        NOT NULL,
    definition         text        NOT NULL,
    definition_version integer     NOT NULL,
    phases_hash        text        NOT NULL,
    fingerprint        text        NOT NULL,
    status             text        NOT NULL CHECK (status IN
        ('pending', 'in_progress', 'failed_retryable', 'completed', 'unknown', 'dead_letter')),
    -- Name of the last committed phase; 'started' before the first, 'finished' after the last.
    recovery_point     varchar(50) NOT NULL,
    -- The at-most-once phase whose call may be under way.
    open_intent        varchar(50),
    -- Fencing token: grows at each acquisition of the lease.
    lease_token        bigint      NOT NULL,
    locked_until       timestamptz,
    -- Back-off of a released or unknown row.
    run_after          timestamptz,
    attempts           integer     NOT NULL,
    -- When the recovery point was committed.
    advanced_at        timestamptz NOT NULL,
    created_at         timestamptz NOT NULL,
    expires_at         timestamptz NOT NULL,
    params             bytea       NOT NULL,
    context            bytea,
    outputs            bytea,
    response_status    smallint,
    response_headers   bytea,
    -- NULL beside a status: the reply was over the cap and was not retained.
    response_body      bytea,
    PRIMARY KEY (scope, idempotency_key)
) WITH (fillfactor = 80);

-- Jobs that a phase staged: a row exists exactly if the phase committed.
CREATE TABLE atomic_phases_staged_jobs (
    scope           text        NOT NULL,
    job_id          uuid        NOT NULL,
    idempotency_key text        NOT NULL,
    request_id      uuid        NOT NULL,
    -- Order of delivery within a request.
    position        bigint      NOT NULL,
    name            text        NOT NULL,
    args            bytea       NOT NULL,
    staged_at       timestamptz NOT NULL,
    PRIMARY KEY (scope, job_id)
);
