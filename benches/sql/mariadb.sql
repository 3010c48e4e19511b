-- The business tables of every contestant.
CREATE TABLE bench_rides (id VARCHAR(64) PRIMARY KEY, amount BIGINT NOT NULL, charge VARCHAR(64) NOT NULL) ENGINE = InnoDB;
CREATE TABLE bench_audits (id VARCHAR(64) PRIMARY KEY, action VARCHAR(64) NOT NULL) ENGINE = InnoDB;
-- The yardstick's own: what no correct implementation can do without, and nothing else.
CREATE TABLE limit_keys (
    scope VARBINARY(255) NOT NULL, idempotency_key VARBINARY(255) NOT NULL, fingerprint VARBINARY(255) NOT NULL,
    recovery_point VARBINARY(200) NOT NULL, token BIGINT NOT NULL, locked_until BIGINT,
    created_at BIGINT NOT NULL, params LONGBLOB NOT NULL, outputs LONGBLOB,
    response_status SMALLINT, response_body LONGBLOB, PRIMARY KEY (scope, idempotency_key),
    -- By which a worker finds what was abandoned.
    KEY limit_keys_created (created_at)
) ENGINE = InnoDB;
-- With what the guarantees G1 to G8 need in a row.
CREATE TABLE guarded_keys (
    scope VARBINARY(255) NOT NULL, idempotency_key VARBINARY(255) NOT NULL, request_id BINARY(16) NOT NULL,
    fingerprint VARBINARY(255) NOT NULL, recovery_point VARBINARY(200) NOT NULL, token BIGINT NOT NULL,
    locked_until BIGINT, created_at BIGINT NOT NULL, params LONGBLOB NOT NULL, outputs LONGBLOB,
    response_status SMALLINT, response_headers LONGBLOB, response_body LONGBLOB,
    PRIMARY KEY (scope, idempotency_key), KEY guarded_keys_created (created_at)
) ENGINE = InnoDB;
CREATE TABLE limit_jobs (
    id BIGINT AUTO_INCREMENT PRIMARY KEY, scope VARBINARY(255) NOT NULL, name VARBINARY(100) NOT NULL, args LONGBLOB NOT NULL
) ENGINE = InnoDB;
