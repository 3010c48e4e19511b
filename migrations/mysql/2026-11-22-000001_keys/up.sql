-- As migrations/postgres, column by column. One table to a migration, and each may run again: MySQL commits
-- a CREATE immediately, so a process that dies behind it leaves a table that no migration is recorded for.
--
-- Names are bytes: in any character set's own order 'a' equals 'a ', and often 'A'. Times are milliseconds
-- since 1970: they mean the same in any time zone of a session, in 2038, and in sums.
--   SELECT FROM_UNIXTIME(run_after / 1000) FROM atomic_phases_keys
-- No unique key but the primary one: an InnoDB unique key locks the gaps that deleted rows leave.
CREATE TABLE IF NOT EXISTS atomic_phases_keys (
    scope              VARBINARY(255) NOT NULL,
    idempotency_key    VARBINARY(255) NOT NULL,
    request_id         BINARY(16)     NOT NULL,
    definition         VARBINARY(255) NOT NULL,
    definition_version INT            NOT NULL,
    phases             MEDIUMBLOB     NOT NULL,
    fingerprint        VARBINARY(255) NOT NULL,
    status             ENUM('pending', 'in_progress', 'failed_retryable', 'completed', 'unknown', 'dead_letter')
                       CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    recovery_point     VARBINARY(200) NOT NULL CHECK (CHAR_LENGTH(CONVERT(recovery_point USING utf8mb4)) <= 50),
    open_intent        VARBINARY(200)          CHECK (CHAR_LENGTH(CONVERT(open_intent USING utf8mb4)) <= 50),
    lease_token        BIGINT         NOT NULL,
    locked_until       BIGINT,
    run_after          BIGINT,
    attempts           INT            NOT NULL,
    forgiven_attempts  INT            NOT NULL DEFAULT 0,
    reconciles         INT            NOT NULL DEFAULT 0,
    resolution         LONGBLOB,
    reason             BLOB,
    waiting_since      BIGINT,
    advanced_at        BIGINT         NOT NULL,
    created_at         BIGINT         NOT NULL,
    expires_at         BIGINT         NOT NULL,
    params             LONGBLOB       NOT NULL,
    context            LONGBLOB,
    outputs            LONGBLOB,
    response_status    SMALLINT,
    response_headers   LONGBLOB,
    response_body      LONGBLOB,
    PRIMARY KEY (scope, idempotency_key),
    -- Each ends in the primary key by itself.
    KEY atomic_phases_keys_due (run_after),
    KEY atomic_phases_keys_waiting (waiting_since, request_id),
    KEY atomic_phases_keys_expiry (expires_at),
    KEY atomic_phases_keys_request (request_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;
