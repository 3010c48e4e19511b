-- As migrations/postgres, column by column.
CREATE TABLE atomic_phases_nodes (
    id          BLOB    NOT NULL PRIMARY KEY,
    name        TEXT    NOT NULL,
    build       TEXT    NOT NULL,
    definitions TEXT    NOT NULL,
    started_at  INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL
) STRICT;
