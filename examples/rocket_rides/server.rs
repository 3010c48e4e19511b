//! Serves a router with the two limits that `axum::serve` does not set: how long the head of a request may
//! take, and how long connections may take to end. Without them one client that sends half a request, and
//! then nothing, keeps a server from ever stopping.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

/// Also how long a connection may be idle between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);

/// Serves until `stop` ends, then waits for the connections, `drain` at most. Returns how many were left.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()>,
    drain: Duration,
) -> usize {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let connections = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                // Out of file descriptors, most likely: some are given back soon.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = http.serve_connection(TokioIo::new(stream), service);
        // What ends a connection otherwise than well is its client's doing.
        tokio::spawn(connections.watch(connection));
    }
    drop(listener);
    let open = connections.count();
    match tokio::time::timeout(drain, connections.shutdown()).await {
        Ok(()) => 0,
        Err(_) => open,
    }
}
