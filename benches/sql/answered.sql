-- The finished keys that select1 reads.
INSERT INTO limit_keys SELECT 'replay', 'key-' || n, 'v1-0000000000000000000000000000000000000000000000000000000000000000', 'finished', 1, NULL, now(), '{"user": 1,"amount": 2000}', NULL, 201, '{"ride":"00000000-0000-0000-0000-000000000000","charge":"ch_00000000000000000000000000000000"}' FROM generate_series(0, 999) n;
