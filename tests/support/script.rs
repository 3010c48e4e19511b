//! A server over a real socket that follows a script, one connection after the other.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the server does with one request, after it has read the whole of it.
#[derive(Clone, Copy)]
pub enum Step {
    /// Writes these bytes, then closes the connection.
    Say(&'static str),
    /// Writes this head, and then a body for as long as the client reads it.
    Flood(&'static str),
    /// Answers nothing, for longer than any client waits.
    Hang,
}

/// Closes the connection without an answer.
pub const DROP: Step = Step::Say("");

/// A server, and the requests it was sent, byte for byte.
pub struct Server {
    pub url: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves one connection after the other; past the script's end it drops them.
    pub async fn follow(path: &str, script: &'static [Step]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}{path}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let requests = seen.clone();
        tokio::spawn(async move {
            let mut held = Vec::new();
            for step in script.iter().chain(std::iter::repeat(&DROP)) {
                let (mut stream, _) = listener.accept().await.unwrap();
                let request = read_request(&mut stream).await;
                requests.lock().unwrap().push(request);
                match step {
                    Step::Say(text) => stream.write_all(text.as_bytes()).await.unwrap(),
                    Step::Flood(head) => {
                        stream.write_all(head.as_bytes()).await.unwrap();
                        while stream.write_all(&[b'x'; 1000]).await.is_ok() {}
                    }
                    Step::Hang => held.push(stream),
                }
            }
        });
        Self { url, seen }
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

async fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return text;
            }
        }
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "the request was cut off");
    }
}
