-- As migrations/postgres, column by column.
CREATE TABLE IF NOT EXISTS atomic_phases_bulk_items (
    bulk_id    BINARY(16)     NOT NULL,
    position   INT            NOT NULL,
    request_id BINARY(16)     NOT NULL,
    seen       VARBINARY(100) NOT NULL,
    outcome    VARBINARY(100),
    because    BLOB,
    PRIMARY KEY (bulk_id, position)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;
