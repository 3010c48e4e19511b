-- As migrations/postgres, column by column.
CREATE TABLE atomic_phases_pauses (
    definition TEXT    NOT NULL,
    phase      TEXT    NOT NULL,
    reason     TEXT    NOT NULL,
    paused_by  TEXT    NOT NULL,
    paused_at  INTEGER NOT NULL,
    ends_at    INTEGER,
    PRIMARY KEY (definition, phase)
) STRICT;

ALTER TABLE atomic_phases_audit ADD COLUMN phase TEXT;
