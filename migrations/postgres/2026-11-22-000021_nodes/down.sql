DROP TABLE atomic_phases_nodes;
