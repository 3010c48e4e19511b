-- The least SQL of a replay: the stored answer by its key.
\set k random(0, 999)
SELECT fingerprint, recovery_point, response_status, response_body FROM limit_keys WHERE scope = 'replay' AND idempotency_key = 'key-' || :k;
