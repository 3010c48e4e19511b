-- As migrations/postgres, column by column.
CREATE TABLE IF NOT EXISTS atomic_phases_leases (
    name       VARBINARY(100) NOT NULL PRIMARY KEY,
    holder     BINARY(16),
    held_until BIGINT         NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;

INSERT IGNORE INTO atomic_phases_leases (name, held_until) VALUES ('census', 0);
