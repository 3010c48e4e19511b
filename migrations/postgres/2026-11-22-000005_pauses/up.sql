-- Foreign phases that an operator has paused: no engine begins one. A few rows at most.
CREATE TABLE atomic_phases_pauses (
    definition text        NOT NULL,
    phase      text        NOT NULL,
    -- The operator's own words, and who it was.
    reason     text        NOT NULL,
    paused_by  text        NOT NULL,
    paused_at  timestamptz NOT NULL,
    -- NULL: until an operator ends it.
    ends_at    timestamptz,
    PRIMARY KEY (definition, phase)
);

-- Which phase an act was about.
ALTER TABLE atomic_phases_audit ADD COLUMN phase text;
