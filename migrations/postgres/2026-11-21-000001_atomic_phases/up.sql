-- What becomes of a request. A type and not a CHECK, which PostgreSQL reads anew from its stored form at
-- each write.
CREATE TYPE atomic_phases_status AS ENUM
    ('pending', 'in_progress', 'failed_retryable', 'completed', 'unknown', 'dead_letter');

-- One row for each idempotency key: how far its request came, and its answer.
-- Times are the database's clock. No index names a column that changes while a request runs its
-- usual way, so that its updates stay HOT.
CREATE TABLE atomic_phases_keys (
    scope              text COLLATE "C" NOT NULL,
    idempotency_key    text COLLATE "C" NOT NULL,
    -- This life of the key: a reused, expired key begins another.
    request_id         uuid        NOT NULL,
    definition         text        NOT NULL,
    definition_version integer     NOT NULL,
    -- The phases that the row is run under: names, effect classes, provider keys, time limits of calls.
    -- Set at each acquisition of the lease; see src/definition/phase_list.rs.
    phases             text        NOT NULL,
    fingerprint        text        NOT NULL,
    status             atomic_phases_status NOT NULL,
    -- Name of the last committed phase; 'started' before the first, 'finished' after the last.
    recovery_point     varchar(50) NOT NULL,
    -- The at-most-once phase whose call may be under way.
    open_intent        varchar(50),
    -- Fencing token: grows at each acquisition of the lease.
    lease_token        bigint      NOT NULL,
    locked_until       timestamptz,
    -- When a worker has to look at the row: the end of a back-off, or of the lease of a request that
    -- was taken over or is slow. NULL while no worker has to: finished, dead letter, or so young that
    -- its holder is most likely alive.
    run_after          timestamptz,
    -- Acquisitions of the lease, and how many of them an operator's word has forgiven.
    attempts           integer     NOT NULL,
    forgiven_attempts  integer     NOT NULL DEFAULT 0,
    -- How often an unknown outcome was looked into, since it became unknown.
    reconciles         integer     NOT NULL DEFAULT 0,
    -- The last word of a reconcile function, a webhook or an operator about an unknown outcome.
    resolution         text,
    -- Why the last attempt ended before the request did: words of the library or of the phase.
    reason             text,
    -- Since when the row waits for a reconcile function or an operator: unknown or dead letter.
    waiting_since      timestamptz,
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
    -- With the expiry, so that a scope's quota is counted without a look at the rows.
    PRIMARY KEY (scope, idempotency_key) INCLUDE (expires_at)
) WITH (fillfactor = 80);

-- What the completer and the reconciler look for. Empty as long as nothing goes wrong: a request that
-- runs its usual way never enters it. The key columns make each place in it unique, so that a search
-- goes on exactly behind the last.
CREATE INDEX atomic_phases_keys_due ON atomic_phases_keys (run_after, scope, idempotency_key)
    WHERE run_after IS NOT NULL;

-- Unknown rows and dead letters, the longest waiting first. A request that runs its usual way never
-- enters it.
CREATE INDEX atomic_phases_keys_waiting ON atomic_phases_keys (waiting_since)
    WHERE waiting_since IS NOT NULL;

-- What the reaper looks for. It also orders rows of one retention by creation, which is how the
-- completer finds a request whose holder died young.
CREATE INDEX atomic_phases_keys_expiry ON atomic_phases_keys (expires_at);

-- Jobs that a phase staged: a row exists exactly if the phase committed.
CREATE TABLE atomic_phases_staged_jobs (
    scope           text COLLATE "C" NOT NULL,
    request_id      uuid        NOT NULL,
    -- Order of delivery within a request.
    position        bigint      NOT NULL,
    -- Stable identity, for de-duplication where the job is delivered.
    job_id          uuid        NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    name            text        NOT NULL,
    args            bytea       NOT NULL,
    staged_at       timestamptz NOT NULL,
    -- Fencing token of a delivery: grows at each attempt.
    attempts        integer     NOT NULL DEFAULT 0,
    -- As many of them an operator has forgiven: they do not count against the cap.
    forgiven_attempts integer   NOT NULL DEFAULT 0,
    -- When to deliver it next. NULL: a dead letter, which waits for an operator.
    -- The end of 9999: once the job before it in its request is out of the way.
    run_after       timestamptz,
    -- Why the last delivery failed: words of the library or of the handler. NULL while a delivery is
    -- under way.
    reason          text,
    PRIMARY KEY (scope, request_id, position)
);

CREATE INDEX atomic_phases_staged_jobs_due
    ON atomic_phases_staged_jobs (run_after, scope, request_id, position)
    WHERE run_after IS NOT NULL;

-- Dead letters, by the name that an operator knows them by.
CREATE INDEX atomic_phases_staged_jobs_dead ON atomic_phases_staged_jobs (scope, job_id)
    WHERE run_after IS NULL;
