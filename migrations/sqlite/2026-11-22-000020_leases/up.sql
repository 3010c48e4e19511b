-- As migrations/postgres, column by column.
CREATE TABLE atomic_phases_leases (
    name       TEXT    NOT NULL PRIMARY KEY,
    holder     BLOB,
    held_until INTEGER NOT NULL
) STRICT;

INSERT INTO atomic_phases_leases (name, held_until) VALUES ('census', 0);
