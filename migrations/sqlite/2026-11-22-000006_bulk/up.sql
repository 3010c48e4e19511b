-- As migrations/postgres, column by column.
CREATE TABLE atomic_phases_bulk (
    id           BLOB    NOT NULL PRIMARY KEY,
    act          TEXT    NOT NULL,
    actor        TEXT    NOT NULL,
    reason       TEXT    NOT NULL,
    limits       TEXT    NOT NULL,
    items        INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    ended_at     INTEGER,
    stopped_by   TEXT,
    lease_token  INTEGER NOT NULL DEFAULT 0,
    locked_until INTEGER
) STRICT;

CREATE INDEX atomic_phases_bulk_started ON atomic_phases_bulk (started_at, id);
CREATE INDEX atomic_phases_bulk_open ON atomic_phases_bulk (started_at) WHERE ended_at IS NULL;

CREATE TABLE atomic_phases_bulk_items (
    bulk_id    BLOB    NOT NULL,
    position   INTEGER NOT NULL,
    request_id BLOB    NOT NULL,
    seen       TEXT    NOT NULL,
    outcome    TEXT,
    because    TEXT,
    PRIMARY KEY (bulk_id, position)
) STRICT;

ALTER TABLE atomic_phases_audit ADD COLUMN bulk_id BLOB;
