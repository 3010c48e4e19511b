ALTER TABLE atomic_phases_audit DROP COLUMN bulk_id;
DROP TABLE atomic_phases_bulk_items;
DROP TABLE atomic_phases_bulk;
