//! What is counted, for Prometheus, on a port of its own: who may call the API need not see it.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::net::TcpListener;

use crate::Failure;

/// Seconds: of calls that take milliseconds, and of jobs and requests that may wait for hours.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0];

/// Serves `/metrics`. Comes before the engine is built, which tells the recorder what each metric says.
pub async fn open(address: &str) -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind(address).await?;
    let recorder = PrometheusBuilder::new().with_recommended_naming(true);
    let exposition = recorder.set_buckets(&BUCKETS)?.install_recorder()?;
    let upkeep = exposition.clone();
    tokio::spawn(async move {
        loop {
            // What was measured is moved into its buckets, also while no scrape arrives.
            tokio::time::sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });
    let address = listener.local_addr()?;
    let router = Router::new().route("/metrics", get(async move || exposition.render()));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}
