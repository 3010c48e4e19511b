DROP TABLE IF EXISTS atomic_phases_nodes;
