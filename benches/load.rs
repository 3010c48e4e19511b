//! A closed loop: so many concurrent requests, each of which is followed by the next when it ends.

use std::future::Future;
use std::time::{Duration, Instant};

/// What one run of a contestant came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub per_second: f64,
    /// Milliseconds.
    pub p50: f64,
    pub p99: f64,
    /// Microseconds of processor time for each request.
    pub client_cpu: f64,
    pub server_cpu: f64,
}

/// Processor time of this process so far, in seconds.
pub fn own_cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Repeats `work` for so long, after a warm-up of a quarter of that.
pub async fn for_a_while<W, F>(
    concurrent: usize,
    length: Duration,
    server_cpu: &dyn Fn() -> f64,
    work: W,
) -> Figures
where
    W: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = ()> + Send,
{
    one_run(concurrent, length / 4, work.clone()).await;
    let (client, server) = (own_cpu(), server_cpu());
    let began = Instant::now();
    let latencies = one_run(concurrent, length, work).await;
    let (client, server) = (own_cpu() - client, server_cpu() - server);
    figures(latencies, began.elapsed().as_secs_f64(), client, server)
}

async fn one_run<W, F>(concurrent: usize, length: Duration, work: W) -> Vec<f64>
where
    W: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let until = Instant::now() + length;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..concurrent {
        let work = work.clone();
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            while Instant::now() < until {
                let began = Instant::now();
                work().await;
                latencies.push(began.elapsed().as_secs_f64() * 1e3);
            }
            latencies
        });
    }
    tasks.join_all().await.concat()
}

pub fn figures(mut latencies: Vec<f64>, seconds: f64, client: f64, server: f64) -> Figures {
    latencies.sort_by(f64::total_cmp);
    let requests = latencies.len().max(1) as f64;
    let at = |part: f64| {
        let place = (requests * part) as usize;
        latencies.get(place.min(latencies.len().saturating_sub(1))).copied().unwrap_or_default()
    };
    Figures {
        per_second: requests / seconds,
        p50: at(0.5),
        p99: at(0.99),
        client_cpu: client / requests * 1e6,
        server_cpu: server / requests * 1e6,
    }
}
