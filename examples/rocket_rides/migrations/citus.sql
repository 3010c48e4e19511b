-- The flagship on Citus: once, on the coordinator, behind the first start (which creates the tables), before the first
-- request. Every statement that the engine sends about a request names its scope, so one request is of one shard.
-- Tables that refer to each other are distributed one by one, so that all of it may be one transaction:
SET citus.multi_shard_modify_mode = 'sequential';

SELECT create_distributed_table('atomic_phases_keys', 'scope');
SELECT create_distributed_table('atomic_phases_staged_jobs', 'scope', colocate_with => 'atomic_phases_keys');

-- These have no scope: each node has a copy, and a phase that writes one commits on all nodes, in two phases. An
-- application of many tenants gives its own tables a column `scope text COLLATE "C"`, puts it first in their keys, and
-- distributes them as the jobs are: then a phase is a commit of one node.
SELECT create_reference_table('users');
SELECT create_reference_table('rides');
SELECT create_reference_table('audit_records');

-- What an operator did and its audit row are one commit, in two phases: this one stays on the coordinator.
SELECT citus_add_local_table_to_metadata('atomic_phases_audit');

-- The engine's bounds on waits are settings of the coordinator's session, and do not reach the nodes that wait. These do,
-- in each session that is opened from here on.
SELECT run_command_on_workers(format('ALTER DATABASE %I SET %s', current_database(), bound))
FROM (VALUES ('lock_timeout = ''1s'''), ('idle_in_transaction_session_timeout = ''60s'''),
    ('client_connection_check_interval = ''500ms''')) AS bounds (bound);
