ALTER TABLE atomic_phases_keys DROP KEY atomic_phases_keys_newest, DROP KEY atomic_phases_keys_due_listed;
