-- As migrations/postgres, column by column.
CREATE TABLE IF NOT EXISTS atomic_phases_nodes (
    id          BINARY(16)     NOT NULL PRIMARY KEY,
    name        VARBINARY(400) NOT NULL,
    build       VARBINARY(400) NOT NULL,
    definitions LONGBLOB       NOT NULL,
    started_at  BIGINT         NOT NULL,
    seen_at     BIGINT         NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;
