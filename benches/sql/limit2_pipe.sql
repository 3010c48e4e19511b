-- The same statements as limit2, each transaction in one round trip.
\set k random(1, 9000000000000000000)
\set t random(1, 100)
\startpipeline
BEGIN;
INSERT INTO limit_keys (scope, idempotency_key, fingerprint, recovery_point, token, locked_until, created_at, params, outputs) VALUES ('tenant-' || :t, 'key-' || :k, 'v1-0000000000000000000000000000000000000000000000000000000000000000', 'ride_created', 1, now() + interval '30 s', now(), '{"user": 1,"amount": 2000}', '{"ride":"00000000-0000-0000-0000-000000000000"}') ON CONFLICT DO NOTHING;
INSERT INTO bench_rides VALUES ('ride-' || :k, 2000, '');
INSERT INTO bench_audits VALUES ('audit-' || :k, 'created');
COMMIT;
\endpipeline
\startpipeline
BEGIN;
UPDATE bench_rides SET charge = 'ch_00000000000000000000000000000000' WHERE id = 'ride-' || :k;
INSERT INTO limit_jobs (scope, name, args) VALUES ('tenant-' || :t, 'receipt', '{"amount": 2000}');
UPDATE limit_keys SET recovery_point = 'finished', locked_until = NULL, response_status = 201, response_body = '{"ride":"00000000-0000-0000-0000-000000000000","charge":"ch_00000000000000000000000000000000"}' WHERE scope = 'tenant-' || :t AND idempotency_key = 'key-' || :k AND token = 1 AND recovery_point = 'ride_created';
COMMIT;
\endpipeline
