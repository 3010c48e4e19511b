-- What an operator gave with a resolution: the attempt whose call had no effect, or the SHA-256 and the length in bytes of
-- the output or of the reply's body. The value itself is not kept.
ALTER TABLE atomic_phases_audit
    ADD COLUMN attempt integer,
    ADD COLUMN value_sha256 bytea,
    ADD COLUMN value_bytes bigint;
