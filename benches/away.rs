//! A server as far away as one on another machine: a proxy, in a process of its own, that holds back what goes through it.
//!
//! With client and server on one machine, a round trip costs only processor time. Elsewhere it costs the time on its way,
//! too: that is what fewer round trips save.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// The proxy in front of a server. It ends with this.
pub struct Away {
    proxy: Child,
    port: u16,
}

impl Away {
    /// In front of the server at `port`: what is sent arrives after `delay`, in either direction.
    pub fn from(port: u16, delay: Duration) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--alone", "away", "--port", &port.to_string()]);
        command.args(["--away", &delay.as_micros().to_string()]);
        // In whatever way this process ends: the proxy's standard input closes then.
        let mut proxy = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut told = String::new();
        BufReader::new(proxy.stdout.take().unwrap()).read_line(&mut told).unwrap();
        Self { proxy, port: told.trim().parse().unwrap() }
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

/// The proxy itself; prints its port.
pub fn alone(server: u16, delay: Duration) {
    thread::spawn(|| {
        let _ = std::io::read_to_string(std::io::stdin());
        std::process::exit(0);
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    for client in listener.incoming() {
        let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
        let (client, server) = (Arc::new(client.unwrap()), Arc::new(server));
        forward(client.clone(), server.clone(), delay);
        forward(server, client, delay);
    }
}

/// On two threads: what is sent meanwhile is on its way, too.
fn forward(from: Arc<TcpStream>, to: Arc<TcpStream>, delay: Duration) {
    to.set_nodelay(true).unwrap();
    let (sent, on_the_way) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = (&*from).read(&mut buffer) {
            let arrives = Instant::now() + delay;
            if sent.send((arrives, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (arrives, bytes) in on_the_way {
            thread::sleep(arrives.saturating_duration_since(Instant::now()));
            if (&*to).write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}
