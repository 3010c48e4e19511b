//! A proxy in front of MariaDB that knows the protocol's frames: it cuts a connection right before a chosen
//! command, right after it, or drops its answer.

use std::collections::HashMap;
use std::io::Result;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::proxy::{Cut, port_of};

/// The first byte of a command.
const QUERY: u8 = 3;
const PREPARE: u8 = 22;
const EXECUTE: u8 = 23;

/// The first byte of the server's greeting.
const GREETING: u8 = 10;

#[derive(Clone)]
pub struct MysqlProxy {
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
    commands: AtomicUsize,
    accepted: AtomicUsize,
    ended: AtomicUsize,
    /// The number of a connection, from 1.
    silent: AtomicUsize,
    /// That of each session, in the greeting; 0: the server's own.
    session_number: AtomicU32,
    held: Notify,
}

impl MysqlProxy {
    /// In front of the server that this URL names.
    pub async fn start(url: &str) -> Self {
        let upstream = port_of(url);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let proxy = Self { port, shared: shared.clone() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if shared.refuse.load(Ordering::SeqCst) {
                    continue;
                }
                if let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)).await {
                    client.set_nodelay(true).unwrap();
                    server.set_nodelay(true).unwrap();
                    let number = 1 + shared.accepted.fetch_add(1, Ordering::SeqCst);
                    tokio::spawn(connection(client, server, shared.clone(), number));
                }
            }
        });
        proxy
    }

    /// The same URL, by this proxy.
    pub fn url(&self, url: &str) -> String {
        url.replace(&format!(":{}/", port_of(url)), &format!(":{}/", self.port))
    }

    /// From now on, cuts at the `nth` (from 1) command whose text contains `part`, or begins with what follows a
    /// `^`: [`Cut::Before`], [`Cut::After`], [`Cut::Answer`] or [`Cut::Hold`].
    pub fn arm(&self, part: &str, nth: usize, cut: Cut) {
        *self.shared.armed.lock().unwrap() = Some((part.to_owned(), nth, cut));
    }

    /// Cuts the connection that is held.
    pub fn cut_now(&self) {
        self.shared.held.notify_one();
    }

    /// How often it has cut.
    pub fn fired(&self) -> usize {
        self.shared.fired.load(Ordering::SeqCst)
    }

    /// Each command takes this much longer to arrive.
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

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many of them have ended.
    pub fn ended(&self) -> usize {
        self.shared.ended.load(Ordering::SeqCst)
    }

    /// From now on, nothing passes on the `nth` (from 1) connection, and neither side sees it closed.
    pub fn silence(&self, nth: usize) {
        self.shared.silent.store(nth, Ordering::SeqCst);
    }

    /// From now on, the proxy gives each new session this number, as one does that has sessions of its own.
    pub fn number_sessions(&self, number: i64) {
        self.shared.session_number.store(number.try_into().unwrap(), Ordering::SeqCst);
    }

    /// Commands so far: each is a round trip.
    pub fn commands(&self) -> usize {
        self.shared.commands.load(Ordering::SeqCst)
    }
}

impl Shared {
    /// Does not return for a connection that is silent.
    async fn pass(&self, number: usize) {
        if self.silent.load(Ordering::SeqCst) == number {
            std::future::pending::<()>().await;
        }
    }

    fn passes(&self, text: &str) -> Option<Cut> {
        let mut armed = self.armed.lock().unwrap();
        let (wanted, left, cut) = armed.as_mut()?;
        let is_it = match wanted.strip_prefix('^') {
            Some(start) => text.starts_with(start),
            None => text.contains(wanted.as_str()),
        };
        if !is_it {
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
}

/// What both directions of a connection know.
#[derive(Default)]
struct Session {
    number: usize,
    /// The text that is being prepared, and the prepared texts by their number.
    preparing: Mutex<Option<String>>,
    prepared: Mutex<HashMap<u32, String>>,
    is_mute: AtomicBool,
    was_answered: Notify,
}

async fn connection(client: TcpStream, server: TcpStream, shared: Arc<Shared>, number: usize) {
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let session = Session { number, ..Session::default() };
    // Whichever ends drops all four halves: both sides see a closed connection.
    tokio::select! {
        _ = forward(client_read, server_write, &shared, &session) => {}
        _ = backward(server_read, client_write, &shared, &session) => {}
    }
    shared.ended.fetch_add(1, Ordering::SeqCst);
}

/// A frame: three bytes of length, a number that restarts with each command, and the body.
async fn frame(from: &mut OwnedReadHalf) -> Result<(u8, Vec<u8>, Vec<u8>)> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame).await?;
    let length = usize::from(frame[0]) | usize::from(frame[1]) << 8 | usize::from(frame[2]) << 16;
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    let number = frame[3];
    frame.extend(&body);
    Ok((number, frame, body))
}

impl Session {
    /// The text of a command.
    fn text(&self, body: &[u8]) -> Option<String> {
        let text = || String::from_utf8_lossy(&body[1..]).into_owned();
        match *body.first()? {
            QUERY => Some(text()),
            PREPARE => {
                *self.preparing.lock().unwrap() = Some(text());
                // Not by its text at preparation, because the execution follows.
                Some("PREPARE".to_owned())
            }
            EXECUTE => {
                let number = u32::from_le_bytes(body.get(1..5)?.try_into().ok()?);
                self.prepared.lock().unwrap().get(&number).cloned()
            }
            _ => None,
        }
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    session: &Session,
) -> Result<()> {
    loop {
        let (number, frame, body) = frame(&mut from).await?;
        shared.pass(session.number).await;
        let text = if number == 0 { session.text(&body) } else { None };
        let cut = text.and_then(|text| {
            shared.commands.fetch_add(1, Ordering::SeqCst);
            shared.passes(&text)
        });
        if cut == Some(Cut::Before) {
            return Ok(());
        }
        session.is_mute.fetch_or(cut == Some(Cut::Answer), Ordering::SeqCst);
        let delay = shared.delay_ms.load(Ordering::SeqCst);
        if delay > 0 && number == 0 {
            tokio::time::sleep(Duration::from_millis(delay as u64)).await;
        }
        to.write_all(&frame).await?;
        match cut {
            None => {}
            Some(Cut::After) => return Ok(()),
            Some(Cut::Answer) => {
                session.was_answered.notified().await;
                return Ok(());
            }
            Some(Cut::Hold) => {
                shared.held.notified().await;
                return Ok(());
            }
            Some(other) => panic!("{other:?} is for PostgreSQL"),
        }
    }
}

/// While it is muted, waits for the end of the answer and passes nothing on.
async fn backward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    session: &Session,
) -> Result<()> {
    loop {
        let (number, mut frame, body) = frame(&mut from).await?;
        shared.pass(session.number).await;
        let session_number = shared.session_number.load(Ordering::SeqCst);
        if session_number > 0 && number == 0 && body.first() == Some(&GREETING) {
            renumber(&mut frame, session_number);
        }
        if let Some(text) = session.preparing.lock().unwrap().take()
            && let (Some(0), Some(number)) = (body.first(), body.get(1..5))
        {
            let number = u32::from_le_bytes(number.try_into().unwrap());
            session.prepared.lock().unwrap().insert(number, text);
        }
        if session.is_mute.load(Ordering::SeqCst) {
            if ends(&body) {
                session.was_answered.notify_one();
                std::future::pending::<()>().await;
            }
            continue;
        }
        to.write_all(&frame).await?;
    }
}

/// In a greeting, the number of the session stands behind the server's version, which ends with a zero.
fn renumber(frame: &mut [u8], session_number: u32) {
    let version = 5;
    let ends = frame[version..].iter().position(|byte| *byte == 0).unwrap();
    let at = version + ends + 1;
    frame[at..at + 4].copy_from_slice(&session_number.to_le_bytes());
}

/// Whether the answer to a text without rows ends here: with an error, or with an OK after which no other statement
/// of the text is answered.
fn ends(body: &[u8]) -> bool {
    const MORE_RESULTS: u8 = 8;
    match body {
        [0xff, ..] => true,
        [0, rest @ ..] => {
            // The affected rows and the last id, of one or more bytes each, then the status.
            let width = |first: u8| match first {
                0xfc => 3,
                0xfd => 4,
                0xfe => 9,
                _ => 1,
            };
            let at = width(rest[0]);
            rest[at + width(rest[at])] & MORE_RESULTS == 0
        }
        _ => false,
    }
}
