DROP TABLE IF EXISTS atomic_phases_bulk_items;
