-- As migrations/postgres, column by column. Nothing here keeps a user with UPDATE and DELETE from changing it:
-- a trigger needs SUPER, or log_bin_trust_function_creators, where there is a binary log. Grant the
-- application SELECT and INSERT on it, and no more.
CREATE TABLE IF NOT EXISTS atomic_phases_audit (
    at                 BIGINT         NOT NULL,
    id                 BINARY(16)     NOT NULL,
    actor              BLOB           NOT NULL,
    act                VARBINARY(100) NOT NULL,
    outcome            VARBINARY(100) NOT NULL,
    refused_because    BLOB,
    reason             BLOB           NOT NULL,
    scope              VARBINARY(255),
    request_id         BINARY(16),
    job_id             BINARY(16),
    definition         VARBINARY(255),
    definition_version INT,
    status_before      VARBINARY(100),
    status_after       VARBINARY(100),
    PRIMARY KEY (at, id),
    KEY atomic_phases_audit_request (request_id, at, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;
