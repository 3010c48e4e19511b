//! What a replay records.

use crate::support::*;
use atomic_phases::store::Postgres;
use metrics_exporter_prometheus::PrometheusBuilder;

/// `what_is_recorded_of_a_replay_allocates_nothing`, next to the code, checks that these allocate nothing without a
/// recorder.
#[tokio::test]
async fn two_things_are_recorded_of_a_replay() {
    let db = <Postgres as TestDb>::fresh().await;
    let engine = engine(&db, &App::default());
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let recorder = PrometheusBuilder::new().build_recorder();
    {
        let _recorded = metrics::set_default_local_recorder(&recorder);
        let replay = engine.call(&scope(), &key("k"), book(20)).__call_in_place().await;
        assert!(finished(replay).replayed);
    }
    let exposition = recorder.handle().render();
    let lines = exposition.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut counts: Vec<&str> =
        lines.filter(|line| !line.contains("quantile=") && !line.contains("_sum")).collect();
    counts.sort_unstable();
    assert_eq!(
        counts,
        [
            r#"api_idempotency_reserve_replay_count{definition="book"} 1"#,
            "atomic_phases_pool_wait_count 1",
            r#"atomic_phases_requests{definition="book",outcome="replayed"} 1"#,
        ]
    );
}
