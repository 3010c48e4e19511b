-- As migrations/postgres, column by column.
CREATE TABLE IF NOT EXISTS atomic_phases_pauses (
    definition VARBINARY(255) NOT NULL,
    phase      VARBINARY(200) NOT NULL,
    reason     BLOB           NOT NULL,
    paused_by  BLOB           NOT NULL,
    paused_at  BIGINT         NOT NULL,
    ends_at    BIGINT,
    PRIMARY KEY (definition, phase)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;
