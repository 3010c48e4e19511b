//! A proxy in front of PostgreSQL that knows the protocol's frames: it cuts a connection right before a chosen
//! statement, right after it, or drops its acknowledgement.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atomic_phases::store::Postgres;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::TestDb;
use super::db::url_of;

/// What to do when the armed statement passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It never arrives at the server.
    Before,
    /// The server gets it, and no client waits for the answer.
    After,
    /// The server executes it; its answer is lost.
    Answer,
    /// The server executes it; instead of its answer, the client gets the error that the server ends the
    /// connection.
    Shutdown,
    /// The server gets it; the connection is cut when the test says so, and not before: the server does not learn
    /// that its client has left.
    Hold,
    /// It waits, with everything after it, until the test says so, and then arrives, most likely late.
    Late,
    /// The server gets it; the answer waits until the test says so.
    Stall,
    /// The server refuses it, because it does not know that prepared statement. Nothing is cut.
    Spoil,
}

#[derive(Clone)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    armed: Mutex<Option<(String, usize, Cut)>>,
    fired: AtomicUsize,
    refuse: AtomicBool,
    /// Whether new connections are refused once it has cut.
    refuses_behind: AtomicBool,
    delay_ms: AtomicUsize,
    held: Notify,
    /// How often a client sent something after an answer of its server.
    turns: AtomicUsize,
    /// How many statements clients sent.
    statements: AtomicUsize,
    answer_ms: AtomicUsize,
    /// How many bytes of answers pass in a second; 0: any number.
    bytes_per_second: AtomicUsize,
}

/// The port of the server that a URL names.
pub fn port_of(url: &str) -> u16 {
    url.rsplit_once(':').unwrap().1.split_once('/').unwrap().0.parse().unwrap()
}

/// A prepared database, a store that reaches it through a proxy, and that proxy.
pub async fn proxied() -> (Postgres, Postgres, Proxy) {
    let db = Postgres::fresh().await;
    let url = url_of(&db);
    let proxy = Proxy::start(port_of(&url)).await;
    let store = Postgres::connect(&proxy.url(&url)).await.unwrap();
    (db, store, proxy)
}

impl Proxy {
    pub async fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let proxy = Self { port, shared: shared.clone() };
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                if shared.refuse.load(Ordering::SeqCst) {
                    continue;
                }
                if let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)).await {
                    client.set_nodelay(true).unwrap();
                    server.set_nodelay(true).unwrap();
                    tokio::spawn(connection(client, server, shared.clone()));
                }
            }
        });
        proxy
    }

    pub fn url(&self, url: &str) -> String {
        let (head, tail) = url.rsplit_once(':').unwrap();
        let (_, database) = tail.split_once('/').unwrap();
        format!("{head}:{}/{database}", self.port)
    }

    /// Cuts at the `nth` (from 1) statement, from now on, whose text starts with `sql`.
    pub fn arm(&self, sql: &str, nth: usize, cut: Cut) {
        *self.shared.armed.lock().unwrap() = Some((sql.to_owned(), nth, cut));
    }

    /// How often it has cut.
    pub fn fired(&self) -> usize {
        self.shared.fired.load(Ordering::SeqCst)
    }

    /// Each answer takes this much longer to arrive, those that are on their way, too: of statements that were sent
    /// together, the last one.
    pub fn answer_slowly(&self, millis: usize) {
        self.shared.answer_ms.store(millis, Ordering::SeqCst);
    }

    /// So many bytes of answers pass in a second, on each connection.
    pub fn narrow(&self, bytes_per_second: usize) {
        self.shared.bytes_per_second.store(bytes_per_second, Ordering::SeqCst);
    }

    /// Round trips so far: exact where answers are slow.
    pub fn turns(&self) -> usize {
        self.shared.turns.load(Ordering::SeqCst)
    }

    /// Statements so far, `BEGIN`, `COMMIT` and `SET` among them: each execution of a prepared one,
    /// and each simple query. A statement that is only prepared is not one.
    pub fn statements(&self) -> usize {
        self.shared.statements.load(Ordering::SeqCst)
    }

    /// Releases the delayed statement, or the answer.
    pub fn arrive_now(&self) {
        self.shared.held.notify_one();
    }

    /// Cuts the connection that is held.
    pub fn cut_now(&self) {
        self.shared.held.notify_one();
    }

    /// Each statement takes this much longer to arrive.
    pub fn delay(&self, millis: usize) {
        self.shared.delay_ms.store(millis, Ordering::SeqCst);
    }

    /// From its cut on, new connections are refused.
    pub fn refuse_once_cut(&self) {
        self.shared.refuses_behind.store(true, Ordering::SeqCst);
    }

    /// New connections are refused, or accepted again.
    pub fn refuse(&self, refuse: bool) {
        self.shared.refuse.store(refuse, Ordering::SeqCst);
    }
}

impl Shared {
    fn passes(&self, sql: &str) -> Option<Cut> {
        let mut armed = self.armed.lock().unwrap();
        let (wanted, left, cut) = armed.as_mut()?;
        if !sql.starts_with(wanted.as_str()) {
            return None;
        }
        *left -= 1;
        let cut = *cut;
        if *left > 0 {
            return None;
        }
        *armed = None;
        if self.refuses_behind.load(Ordering::SeqCst) {
            self.refuse.store(true, Ordering::SeqCst);
        }
        self.fired.fetch_add(1, Ordering::SeqCst);
        Some(cut)
    }

    /// For as long as an answer takes, which the test may change meanwhile.
    async fn wait_to_answer(&self) {
        let came = Instant::now();
        loop {
            let slowly = Duration::from_millis(self.answer_ms.load(Ordering::SeqCst) as u64);
            let left = slowly.saturating_sub(came.elapsed());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(Duration::from_millis(20))).await;
        }
    }
}

/// One client's connection.
#[derive(Default)]
struct Passing {
    /// Until which frame of the server's nothing is passed on; 0: all is.
    mute: AtomicU8,
    /// Whether the client gets an error behind it.
    ending: AtomicBool,
    /// Whether the server's side stays open when the client has left.
    held: AtomicBool,
    /// Whether the next answer waits until the test says so.
    stalled: AtomicBool,
    answered: Notify,
    heard: Heard,
}

/// The answers that the client has received to its requests: what it sends after the last of them is another round
/// trip.
struct Heard {
    all: AtomicBool,
    /// Sent with an end (the start-up, `Sync`, or a simple query) and not answered.
    owed: AtomicUsize,
}

impl Default for Heard {
    fn default() -> Self {
        Self { all: AtomicBool::new(true), owed: AtomicUsize::new(1) }
    }
}

async fn connection(client: TcpStream, server: TcpStream, shared: Arc<Shared>) {
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let passing = Passing::default();
    let forward = forward(client_read, server_write, &shared, &passing);
    let backward = backward(server_read, client_write, &shared, &passing);
    // Whichever ends drops all four halves: both sides see a closed connection.
    tokio::select! {
        _ = forward => {}
        _ = backward => {}
    }
}

/// Client to server, frame by frame.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    passing: &Passing,
) -> std::io::Result<()> {
    // The start-up message has no type byte.
    let length = from.read_u32().await?;
    let mut body = vec![0; length as usize - 4];
    from.read_exact(&mut body).await?;
    to.write_all(&[&length.to_be_bytes()[..], &body].concat()).await?;
    let mut names: std::collections::HashMap<String, String> = Default::default();
    let mut cutting = None;
    loop {
        let kind = from.read_u8().await?;
        let length = from.read_u32().await?;
        let mut body = vec![0; length as usize - 4];
        from.read_exact(&mut body).await?;
        if passing.heard.all.swap(false, Ordering::SeqCst) {
            shared.turns.fetch_add(1, Ordering::SeqCst);
        }
        if kind == b'E' || kind == b'Q' {
            shared.statements.fetch_add(1, Ordering::SeqCst);
        }
        if kind == b'S' || kind == b'Q' {
            passing.heard.owed.fetch_add(1, Ordering::SeqCst);
        }
        let words: Vec<String> = body
            .split(|b| *b == 0)
            .take(2)
            .map(|w| String::from_utf8_lossy(w).into_owned())
            .collect();
        let sql = match kind {
            b'P' => {
                names.insert(words[0].clone(), words[1].clone());
                None
            }
            b'B' => names.get(&words[1]).cloned(),
            b'Q' => Some(words[0].clone()),
            _ => None,
        };
        if let Some((sql, cut)) = sql.and_then(|sql| shared.passes(&sql).map(|cut| (sql, cut))) {
            match cut {
                Cut::Before => return Ok(()),
                Cut::After | Cut::Hold => {}
                Cut::Late => shared.held.notified().await,
                Cut::Stall => passing.stalled.store(true, Ordering::SeqCst),
                // A single statement is a transaction by itself: the next answer is that of its commit.
                Cut::Answer | Cut::Shutdown
                    if sql.starts_with("WITH atomic_phases_") || sql.starts_with("WITH ended") =>
                {
                    passing.mute.store(b'Z', Ordering::SeqCst);
                }
                Cut::Answer | Cut::Shutdown => passing.mute.store(b'C', Ordering::SeqCst),
                Cut::Spoil => body[words[0].len() + 1] = b'x',
            }
            passing.ending.store(cut == Cut::Shutdown, Ordering::SeqCst);
            passing.held.store(cut == Cut::Hold, Ordering::SeqCst);
            let is_cut = !matches!(cut, Cut::Spoil | Cut::Late | Cut::Stall);
            cutting = is_cut.then_some(cut);
        }
        let delay = shared.delay_ms.load(Ordering::SeqCst);
        if delay > 0 && kind == b'S' {
            tokio::time::sleep(Duration::from_millis(delay as u64)).await;
        }
        to.write_all(&[&[kind][..], &length.to_be_bytes(), &body].concat()).await?;
        // Sync (or a simple query) completes the statement.
        if cutting.is_some() && (kind == b'S' || kind == b'Q') {
            to.flush().await?;
            match cutting {
                Some(Cut::Answer | Cut::Shutdown) => passing.answered.notified().await,
                Some(Cut::Hold) => shared.held.notified().await,
                _ => {}
            }
            return Ok(());
        }
    }
}

/// Server to client; while muted, it waits for the end of the statement and passes nothing on.
async fn backward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    passing: &Passing,
) -> std::io::Result<()> {
    loop {
        let kind = from.read_u8().await?;
        let length = from.read_u32().await?;
        let mut body = vec![0; length as usize - 4];
        from.read_exact(&mut body).await?;
        let narrow = shared.bytes_per_second.load(Ordering::SeqCst);
        if narrow > 0 {
            tokio::time::sleep(Duration::from_secs_f64(body.len() as f64 / narrow as f64)).await;
        }
        let until = passing.mute.load(Ordering::SeqCst);
        if until > 0 {
            // CommandComplete of the COMMIT or of the update; or ReadyForQuery.
            let ends = body.starts_with(b"COMMIT") || body.starts_with(b"UPDATE");
            if kind == until && (kind == b'Z' || ends) {
                if passing.ending.load(Ordering::SeqCst) {
                    let told = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0";
                    let length = (told.len() as u32 + 4).to_be_bytes();
                    to.write_all(&[&b"E"[..], &length, told].concat()).await?;
                    to.flush().await?;
                }
                passing.answered.notify_one();
                std::future::pending::<()>().await;
            }
            continue;
        }
        // An answer that comes before the client has sent all that it has to send would make two
        // round trips of one.
        if kind == b'Z' {
            if passing.heard.owed.load(Ordering::SeqCst) == 1 {
                shared.wait_to_answer().await;
            }
            if passing.stalled.swap(false, Ordering::SeqCst) {
                shared.held.notified().await;
            }
        }
        if kind == b'Z' && passing.heard.owed.fetch_sub(1, Ordering::SeqCst) == 1 {
            passing.heard.all.store(true, Ordering::SeqCst);
        }
        let passed = to.write_all(&[&[kind][..], &length.to_be_bytes(), &body].concat()).await;
        if !passing.held.load(Ordering::SeqCst) {
            passed?;
        }
    }
}
