//! A client that writes raw bytes, so that it can send two header lines, control bytes and cut bodies.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request as it goes over the wire.
#[derive(Clone)]
pub struct Request {
    address: SocketAddr,
    method: &'static str,
    path: String,
    lines: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    chunked: bool,
}

impl Request {
    pub fn new(address: SocketAddr, method: &'static str, path: &str) -> Self {
        let (path, lines, body) = (path.to_owned(), Vec::new(), Vec::new());
        Self { address, method, path, lines, body, chunked: false }.line("x-tenant", "tenant-1")
    }

    /// One more header line.
    pub fn line(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.lines.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    pub fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    pub fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }

    /// Replaces the lines of that name.
    pub fn set(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.lines.retain(|(other, _)| other != name);
        self.line(name, value)
    }

    pub fn without(mut self, name: &str) -> Self {
        self.lines.retain(|(other, _)| other != name);
        self
    }

    pub fn key(self, value: impl AsRef<[u8]>) -> Self {
        self.line("idempotency-key", value)
    }

    pub fn body(mut self, content_type: &str, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self.set("content-type", content_type)
    }

    pub fn json(self, body: impl AsRef<[u8]>) -> Self {
        self.body("application/json", body)
    }

    /// In chunks of three bytes, without a length.
    pub fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out =
            format!("{} {} HTTP/1.1\r\nhost: test\r\n", self.method, self.path).into_bytes();
        out.extend(b"connection: close\r\n");
        for (name, value) in &self.lines {
            out.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        if self.chunked {
            out.extend(b"transfer-encoding: chunked\r\n\r\n");
            for chunk in self.body.chunks(3) {
                out.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                out.extend([chunk, b"\r\n"].concat());
            }
            out.extend(b"0\r\n\r\n");
        } else {
            out.extend(format!("content-length: {}\r\n\r\n", self.body.len()).into_bytes());
            out.extend(&self.body);
        }
        out
    }

    pub async fn send(&self) -> Seen {
        let mut stream = self.open().await;
        // A server may refuse a head before it has read the body.
        let _ = stream.write_all(&self.bytes()).await;
        Seen::parse(&rest(&mut stream).await).expect("an answer")
    }

    /// Sends only the first bytes, closes its side, and waits until the server is done with it.
    pub async fn cut_at(&self, length: usize) -> Option<Seen> {
        let mut stream = self.open().await;
        let _ = stream.write_all(&self.bytes()[..length]).await;
        let _ = stream.shutdown().await;
        Seen::parse(&rest(&mut stream).await)
    }

    /// Sends only the first bytes, and continues to listen.
    pub async fn stop_at(&self, length: usize) -> Seen {
        let mut stream = self.open().await;
        stream.write_all(&self.bytes()[..length]).await.unwrap();
        Seen::parse(&rest(&mut stream).await).expect("an answer")
    }

    /// Sends everything; dropping the stream disconnects.
    pub async fn send_and_leave(&self) -> TcpStream {
        let mut stream = self.open().await;
        stream.write_all(&self.bytes()).await.unwrap();
        stream
    }

    pub fn send_in_background(&self) -> tokio::task::JoinHandle<Seen> {
        let request = self.clone();
        tokio::spawn(async move { request.send().await })
    }

    async fn open(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut out = Vec::new();
    // A reset after the answer ends it as well.
    let _ = stream.read_to_end(&mut out).await;
    out
}

/// A response as it came over the wire.
#[derive(Clone, Debug)]
pub struct Seen {
    pub status: u16,
    pub lines: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Seen {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let head_end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let lines: Vec<(String, String)> = lines
            .map(|line| line.split_once(": ").or(line.split_once(':')).unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let seen = Self { status, lines, body: bytes[head_end + 4..].to_vec() };
        Some(match seen.header("transfer-encoding") {
            Some("chunked") => Self { body: unchunked(&seen.body), ..seen },
            _ => seen,
        })
    }

    /// The one line of that name.
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        let values = self.all(name);
        assert!(values.len() <= 1, "{name} is there {} times", values.len());
        values.first().copied()
    }

    pub fn all(&self, name: &str) -> Vec<&str> {
        self.lines.iter().filter(|(other, _)| other == name).map(|(_, value)| &**value).collect()
    }

    pub fn replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The parts of a replay that equal those of the first answer.
    pub fn kept(&self) -> (u16, Vec<(&str, &str)>, &[u8]) {
        const KEPT: [&str; 9] = [
            "location",
            "content-location",
            "etag",
            "last-modified",
            "link",
            "content-type",
            "content-language",
            "idempotency-key",
            "idempotency-expires",
        ];
        let lines = self.lines.iter().filter(|(name, _)| KEPT.contains(&&**name));
        (self.status, lines.map(|(name, value)| (&**name, &**value)).collect(), &self.body)
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        out.extend(&rest[end + 2..end + 2 + size]);
        rest = &rest[(end + 4 + size).min(rest.len())..];
    }
    out
}
