//! A network of one line: a TCP forwarder that can be switched to another server, cut, or silenced like a broken
//! network whose ends notice nothing.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::rides::Random;

/// The direction in which nothing passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
    Both,
}

/// The fate of a connection that was open while the network was silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Data that was sent meanwhile arrives late: TCP had kept it.
    Delivered,
    /// The data is lost, and both ends are reset when the network is back: a firewall forgot the connection.
    Reset,
    /// The data is lost, and neither end ever learns of it.
    HalfOpen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Fair,
    Silent(Direction),
}

/// The line to one server. Dropped, its connections end.
#[derive(Clone)]
pub struct Line {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: AtomicU16,
    /// Of the next connection alone, unless it is 0.
    next_upstream: AtomicU16,
    weather: watch::Sender<Weather>,
    /// Raised to reset every connection that was open before.
    generation: watch::Sender<u64>,
    fates: Mutex<Random>,
    /// The fate of every connection, if it is not drawn at random.
    always: Option<Fate>,
    /// How often bytes were accepted and dropped.
    swallowed: AtomicUsize,
    /// By [`Fate`]: how many connections were open while the network was silent.
    met: [AtomicUsize; 3],
}

impl Line {
    /// A line to this port of this machine. The fates of connections are drawn from the seed.
    pub async fn to(upstream: u16, seed: u64) -> Self {
        Self::open(upstream, seed, None).await
    }

    /// A line to this port on which each connection that meets a silence stays half open for ever.
    pub async fn that_forgets(upstream: u16) -> Self {
        Self::open(upstream, 0, Some(Fate::HalfOpen)).await
    }

    async fn open(upstream: u16, seed: u64, always: Option<Fate>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            upstream: AtomicU16::new(upstream),
            next_upstream: AtomicU16::new(0),
            weather: watch::Sender::new(Weather::Fair),
            generation: watch::Sender::new(0),
            fates: Mutex::new(Random(seed)),
            always,
            swallowed: AtomicUsize::new(0),
            met: Default::default(),
        });
        let line = Self { port, shared: shared.clone() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let shared = shared.clone();
                tokio::spawn(async move { connection(client, &shared).await });
            }
        });
        line
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same URL, by this line.
    pub fn url(&self, url: &str) -> String {
        Self::url_at(url, self.port)
    }

    /// The same URL, at another port.
    pub fn url_at(url: &str, port: u16) -> String {
        let (head, tail) = url.rsplit_once(':').unwrap();
        format!("{head}:{port}{}", tail.trim_start_matches(|c: char| c.is_ascii_digit()))
    }

    /// New connections go there; open ones are reset.
    pub fn turn_over(&self, upstream: u16) {
        self.lead_to(upstream);
        self.cut();
    }

    /// New connections go there; open ones stay as they are.
    pub fn lead_to(&self, upstream: u16) {
        self.shared.upstream.store(upstream, Ordering::SeqCst);
    }

    /// The next connection goes there, and those behind it to the server as before.
    pub fn lead_next_to(&self, upstream: u16) {
        self.shared.next_upstream.store(upstream, Ordering::SeqCst);
    }

    /// Resets every open connection.
    pub fn cut(&self) {
        self.shared.generation.send_modify(|generation| *generation += 1);
    }

    /// From now on nothing passes in that direction, without any error.
    pub fn silence(&self, direction: Direction) {
        self.shared.weather.send_replace(Weather::Silent(direction));
    }

    /// Passes everything again.
    pub fn heal(&self) {
        self.shared.weather.send_replace(Weather::Fair);
    }

    /// How often bytes were taken that arrive nowhere.
    pub fn swallowed(&self) -> usize {
        self.shared.swallowed.load(Ordering::SeqCst)
    }

    /// How many connections met a silence: delivered late, reset after it, left half open.
    pub fn met(&self) -> [usize; 3] {
        [0, 1, 2].map(|fate| self.shared.met[fate].load(Ordering::SeqCst))
    }
}

impl Shared {
    fn fate(&self) -> Fate {
        let fates = [Fate::Delivered, Fate::Reset, Fate::HalfOpen];
        let drawn = fates[self.fates.lock().unwrap().below(3) as usize];
        self.always.unwrap_or(drawn)
    }
}

/// One connection, and its fate if a silence comes.
async fn connection(mut client: TcpStream, shared: &Shared) {
    let mut generation = shared.generation.subscribe();
    // In a silent network, no new client reaches the server.
    let _ = shared.weather.subscribe().wait_for(|weather| *weather == Weather::Fair).await;
    let upstream = match shared.next_upstream.swap(0, Ordering::SeqCst) {
        0 => shared.upstream.load(Ordering::SeqCst),
        next => next,
    };
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", upstream)).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let fate = shared.fate();
    let half_open = AtomicBool::new(false);
    let is_reset = {
        let (client_read, client_write) = client.split();
        let (server_read, server_write) = server.split();
        let one_way = |from, to, direction| pass(from, to, shared, direction, fate, &half_open);
        let to_server = one_way(client_read, server_write, Direction::ToServer);
        let to_client = one_way(server_read, client_write, Direction::ToClient);
        tokio::select! {
            _ = async { tokio::join!(to_server, to_client) } => false,
            () = reset_after_silence(shared, fate, &half_open) => true,
            _ = generation.changed() => true,
        }
    };
    if is_reset {
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// Ends when the network is back after a silence, if that is the connection's fate.
async fn reset_after_silence(shared: &Shared, fate: Fate, half_open: &AtomicBool) {
    let mut weather = shared.weather.subscribe();
    let _ = weather.wait_for(|weather| *weather != Weather::Fair).await;
    shared.met[fate as usize].fetch_add(1, Ordering::SeqCst);
    let _ = weather.wait_for(|weather| *weather == Weather::Fair).await;
    half_open.store(fate == Fate::HalfOpen, Ordering::SeqCst);
    if fate != Fate::Reset {
        std::future::pending().await
    }
}

/// One direction. Ends when its sender ends, and passes the end on, if the network does.
async fn pass(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    shared: &Shared,
    direction: Direction,
    fate: Fate,
    half_open: &AtomicBool,
) {
    let mut weather = shared.weather.subscribe();
    let passes = |weather: &Weather| match weather {
        Weather::Fair => true,
        Weather::Silent(silent) => *silent != Direction::Both && *silent != direction,
    };
    let mut bytes = vec![0; 16 * 1024];
    let mut lost = false;
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        let silent = !passes(&weather.borrow_and_update());
        lost |= silent && fate != Fate::Delivered || half_open.load(Ordering::SeqCst);
        if lost {
            shared.swallowed.fetch_add(1, Ordering::SeqCst);
            // Its sender believes that the data was sent. Nor does one end learn that the other one has closed.
            if read == 0 {
                return std::future::pending().await;
            }
            continue;
        }
        let _ = weather.wait_for(passes).await;
        if read == 0 {
            let _ = to.shutdown().await;
            return;
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
