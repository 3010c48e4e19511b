ALTER TABLE atomic_phases_audit DROP COLUMN phase;
DROP TABLE atomic_phases_pauses;
