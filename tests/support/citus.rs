//! The tests' tables on a Citus cluster (`CITUS_URL`, see [`cluster`](super::cluster)): the engine's tables are
//! distributed by scope; an application's tables, which have no scope, are reference tables.

use std::path::PathBuf;

use super::cluster::{Cluster, citus, node_url, psql, psql_each};

const DISTRIBUTE: &str = "
    SET client_min_messages = warning;
    SET citus.shard_count = 4;
    SELECT create_distributed_table('atomic_phases_keys', 'scope');
    SELECT create_distributed_table('atomic_phases_staged_jobs', 'scope', colocate_with => 'atomic_phases_keys');
    SELECT citus_add_local_table_to_metadata('atomic_phases_audit');
    SELECT create_reference_table(oid) FROM (SELECT oid FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname NOT LIKE 'atomic\\_phases\\_%'
        AND relname NOT LIKE '\\_\\_%' AND NOT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = pg_class.oid)
        ORDER BY oid OFFSET 0) AS of_the_application;
    SELECT run_command_on_workers(format('ALTER DATABASE %I SET %s', current_database(), bound))
        FROM (VALUES ('lock_timeout = ''1s'''), ('idle_in_transaction_session_timeout = ''60s'''),
        ('client_connection_check_interval = ''500ms''')) AS bounds (bound);
";

/// Distributes the existing tables, with their rows.
pub fn distribute(database: &str) {
    psql(database, DISTRIBUTE);
}

/// Distributes the flagship's tables by its own script.
pub fn distribute_rides(database: &str) {
    let script = include_str!("../../examples/rocket_rides/migrations/citus.sql");
    psql_each(
        database,
        &["SET client_min_messages = warning", "SET citus.shard_count = 4", script],
    );
}

/// Creates this trigger on the shards. It may read no distributed table there, so it contains the order of phases.
pub fn watch(database: &str, trigger: &str, phase_order: &str) {
    let values = phase_order.strip_prefix("INSERT INTO phase_order ").expect("an insertion");
    let inline = format!("FROM ({values}) AS phase_order (definition, point, place)");
    let trigger = trigger.replace("FROM phase_order", &inline);
    let (function, trigger) = trigger.split_at(trigger.find("CREATE TRIGGER").expect("a trigger"));
    psql_each(database, &["SET citus.enable_unsafe_triggers = on", function, trigger]);
}

/// The folders of the workers' servers, on this machine.
pub fn workers() -> Vec<PathBuf> {
    let coordinator = citus().expect("a coordinator");
    let nodes = "SELECT nodename || ' ' || nodeport FROM pg_dist_node WHERE noderole = 'primary' AND groupid <> 0";
    let places = psql(&coordinator, nodes);
    let folder = |place: &str| {
        let (host, port) = place.split_once(' ').expect("two words");
        psql(&node_url(&coordinator, host, port), "SHOW data_directory").into()
    };
    places.lines().map(folder).collect()
}

/// Kills a worker node as with its machine, and restarts it.
pub fn kill_and_restart(worker: &std::path::Path) {
    Cluster::kill_9_in(worker);
    Cluster::start_in_place(worker);
}
