-- The processes that run workers: what each can go on with, and when it was last seen. Some dozen rows; one that was
-- not seen for a day is deleted.
CREATE TABLE atomic_phases_nodes (
    id          uuid        PRIMARY KEY,
    -- As the application calls the process and what it runs; empty where it does not.
    name        text        NOT NULL,
    build       text        NOT NULL,
    -- JSON: name, version and phases of each definition.
    definitions text        NOT NULL,
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL
);
