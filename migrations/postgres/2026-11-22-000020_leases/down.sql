DROP TABLE atomic_phases_leases;
