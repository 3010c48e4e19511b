-- As migrations/postgres, column by column.
CREATE TABLE IF NOT EXISTS atomic_phases_bulk (
    id           BINARY(16)     NOT NULL PRIMARY KEY,
    act          VARBINARY(100) NOT NULL,
    actor        BLOB           NOT NULL,
    reason       BLOB           NOT NULL,
    limits       LONGBLOB       NOT NULL,
    items        INT            NOT NULL,
    started_at   BIGINT         NOT NULL,
    ended_at     BIGINT,
    stopped_by   BLOB,
    lease_token  BIGINT         NOT NULL DEFAULT 0,
    locked_until BIGINT,
    KEY atomic_phases_bulk_started (started_at, id),
    KEY atomic_phases_bulk_open (ended_at, started_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;
