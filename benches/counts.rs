//! What a request costs, counted: commits, statements, round trips, bytes of log, HOT updates.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::server::Server;

/// For each request of a serial run.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub commits: f64,
    /// Without `BEGIN`, `COMMIT` and `SET`, which pg_stat_statements does not see here: prepared, they
    /// have no query id.
    pub statements: f64,
    pub trips: f64,
    pub wal: f64,
    /// The part of the updates of the key table that were HOT; not a number where there were none.
    pub hot: f64,
}

/// Counts what `work` does to the server, through a proxy that counts round trips. `work` has to
/// close its connections: a server process reports its updates when it ends.
pub async fn of(server: &Server, requests: u64, keys: &str, work: impl AsyncFnOnce(u16)) -> Counts {
    let proxy = Proxy::start(server.port()).await;
    server.sql("SELECT pg_stat_reset(), pg_stat_statements_reset()").await;
    let hot = format!("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = '{keys}'");
    let xid = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    let wal = "SELECT pg_current_wal_insert_lsn() - '0/0'";
    let (xid_before, wal_before) = (server.number(xid).await, server.number(wal).await);
    work(proxy.port).await;
    let (xid, wal) = (server.number(xid).await - xid_before, server.number(wal).await - wal_before);
    // The looks of this function are among them; they are rounded away.
    let statements = server.number("SELECT sum(calls) FROM pg_stat_statements").await;
    let others = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = 'bench' AND backend_type = 'client backend'";
    while server.number(others).await > 1 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let updates = server.number(&hot).await as f64;
    let hot = server.number(&hot.replace("n_tup_upd", "n_tup_hot_upd")).await as f64 / updates;
    let each = |all: f64| all / requests as f64;
    Counts {
        commits: each(xid as f64),
        statements: each(statements as f64),
        trips: each(proxy.turns() as f64),
        wal: each(wal as f64),
        hot,
    }
}

/// Counts how often the client speaks after the server has.
pub struct Proxy {
    pub port: u16,
    turns: Arc<AtomicU64>,
}

impl Proxy {
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let turns = Arc::new(AtomicU64::new(0));
        let counted = turns.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let spoken = Arc::new(AtomicBool::new(true));
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                let (turns, heard) = (counted.clone(), spoken.clone());
                tokio::spawn(pass(from_client, to_server, move || {
                    if spoken.swap(false, Ordering::SeqCst) {
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                }));
                tokio::spawn(pass(from_server, to_client, move || {
                    heard.store(true, Ordering::SeqCst);
                }));
            }
        });
        Self { port, turns }
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, each: impl Fn()) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        each();
        if to.write_all(&bytes[..length]).await.is_err() {
            break;
        }
    }
}
