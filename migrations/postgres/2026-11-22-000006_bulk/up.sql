-- Acts of operators on many requests, done by the workers one request at a time. A few rows a day.
CREATE TABLE atomic_phases_bulk (
    id           uuid        NOT NULL PRIMARY KEY,
    -- retry or erase.
    act          text        NOT NULL,
    actor        text        NOT NULL,
    -- The operator's own words.
    reason       text        NOT NULL,
    -- The scopes that the actor may act on, as JSON: each request is judged by them when its turn comes.
    limits       text        NOT NULL,
    items        integer     NOT NULL,
    started_at   timestamptz NOT NULL,
    -- When the last request was settled, or an operator stopped it.
    ended_at     timestamptz,
    stopped_by   text,
    -- Fencing token of the worker that is at it: grows with each slice.
    lease_token  bigint      NOT NULL DEFAULT 0,
    locked_until timestamptz
);

CREATE INDEX atomic_phases_bulk_started ON atomic_phases_bulk (started_at, id);
-- What workers look for. Empty but while one is under way.
CREATE INDEX atomic_phases_bulk_open ON atomic_phases_bulk (started_at) WHERE ended_at IS NULL;

-- The requests of a bulk act, as they were when it was started.
CREATE TABLE atomic_phases_bulk_items (
    bulk_id    uuid    NOT NULL,
    position   integer NOT NULL,
    request_id uuid    NOT NULL,
    -- The version of the row that the act is about: one that has moved on is left alone.
    seen       text    NOT NULL,
    -- applied, already or refused; NULL until its turn has come.
    outcome    text,
    because    text,
    PRIMARY KEY (bulk_id, position)
);

-- As part of which bulk act an act was done.
ALTER TABLE atomic_phases_audit ADD COLUMN bulk_id uuid;
