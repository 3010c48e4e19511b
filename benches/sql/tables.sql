-- The business tables of every contestant.
CREATE TABLE bench_rides (id text PRIMARY KEY, amount bigint NOT NULL, charge text NOT NULL);
CREATE TABLE bench_audits (id text PRIMARY KEY, action text NOT NULL);
-- The yardstick's own: what no correct implementation can do without, and nothing else.
CREATE TABLE limit_keys (
    scope text NOT NULL, idempotency_key text NOT NULL, fingerprint text NOT NULL,
    recovery_point text NOT NULL, token bigint NOT NULL, locked_until timestamptz,
    created_at timestamptz NOT NULL, params bytea NOT NULL, outputs bytea,
    response_status smallint, response_body bytea, PRIMARY KEY (scope, idempotency_key)
) WITH (fillfactor = 80);
-- By which a worker finds what was abandoned.
CREATE INDEX limit_keys_created ON limit_keys (created_at);
-- The same with what the guarantees need besides: which life of its key a row is, and the answer's headers.
CREATE TABLE guarded_keys (
    scope text NOT NULL, idempotency_key text NOT NULL, request_id text NOT NULL, fingerprint text NOT NULL,
    recovery_point text NOT NULL, token bigint NOT NULL, locked_until timestamptz,
    created_at timestamptz NOT NULL, params bytea NOT NULL, outputs bytea,
    response_status smallint, response_headers bytea, response_body bytea, PRIMARY KEY (scope, idempotency_key)
) WITH (fillfactor = 80);
CREATE INDEX guarded_keys_created ON guarded_keys (created_at);
CREATE TABLE limit_jobs (id bigserial PRIMARY KEY, scope text NOT NULL, name text NOT NULL, args bytea NOT NULL);
