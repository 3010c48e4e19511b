-- What one process at a time does for all of them, beside the requests: who does it, and until when. A row is there
-- for each such work, and is updated in place.
CREATE TABLE atomic_phases_leases (
    name       text        NOT NULL PRIMARY KEY,
    holder     uuid,
    held_until timestamptz NOT NULL
);

INSERT INTO atomic_phases_leases (name, held_until) VALUES ('census', 'epoch');
