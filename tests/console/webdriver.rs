//! A real Chromium, controlled by the WebDriver protocol: a handful of HTTP calls.
//!
//! Not by a crate: fantoccini 0.22 has neither the browser's log nor Chromium's own commands (the window's size, the
//! color scheme, scripts off), so these calls would be written here all the same, and it brings eight crates; chromiumoxide
//! 0.9 has them, in 111,000 lines of generated bindings and over a WebSocket client.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::support::process::free_port;
use crate::support::until;

/// The JSON member that identifies an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

pub const TAB: char = '\u{e004}';
pub const ENTER: char = '\u{e007}';
pub const SPACE: char = ' ';
pub const DOWN: char = '\u{e015}';

/// One browser. Dropped, it is closed, and its driver is killed by its own id.
pub struct Browser {
    driver: Child,
    address: String,
    session: String,
    http: Client,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub async fn start() -> Self {
        let port = free_port();
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver is not installed: `sh tests/run` installs it");
        let address = format!("127.0.0.1:{port}");
        until(async || TcpStream::connect(&address).is_ok()).await;
        let profile = tempfile::tempdir().unwrap();
        let data = format!("--user-data-dir={}", profile.path().display());
        let options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--force-device-scale-factor=1",
            "--hide-scrollbars",
            // A host that is not this machine, as far as the browser knows.
            "--host-resolver-rules=MAP console.example 127.0.0.1",
            &data,
        ];
        let http = Client::builder().timeout(Duration::from_secs(120)).build().unwrap();
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": { "args": options },
            "goog:loggingPrefs": { "browser": "ALL" },
            // Waits for an element of the page to which a click leads.
            "timeouts": { "implicit": 60_000 },
        } } });
        let answer = http.post(format!("http://{address}/session")).json(&wanted).send().await;
        let answer: Value = answer.unwrap().json().await.unwrap();
        let session = answer["value"]["sessionId"].as_str();
        let session = session.unwrap_or_else(|| panic!("no session: {answer}")).to_owned();
        Self { driver, address, session, http, _profile: profile }
    }

    async fn ask(&self, method: Method, path: &str, body: Value) -> Result<Value, String> {
        let url = format!("http://{}/session/{}/{path}", self.address, self.session);
        let mut call = self.http.request(method.clone(), url);
        if method == Method::POST {
            call = call.json(&body);
        }
        let answer = call.send().await.unwrap();
        let is_good = answer.status().is_success();
        let mut told: Value = answer.json().await.unwrap();
        match is_good {
            true => Ok(told["value"].take()),
            false => Err(told["value"]["message"].to_string()),
        }
    }

    async fn told(&self, path: &str, body: Value) -> Value {
        self.ask(Method::POST, path, body).await.unwrap_or_else(|why| panic!("{path}: {why}"))
    }

    /// A command of Chromium's own protocol.
    pub async fn cdp(&self, command: &str, parameters: Value) -> Value {
        self.told("goog/cdp/execute", json!({ "cmd": command, "params": parameters })).await
    }

    pub async fn open(&self, url: impl ToString) {
        self.told("url", json!({ "url": url.to_string() })).await;
    }

    pub async fn url(&self) -> String {
        self.ask(Method::GET, "url", Value::Null).await.unwrap().as_str().unwrap().to_owned()
    }

    /// What a function's body returns in the page.
    pub async fn eval(&self, body: &str) -> Value {
        self.told("execute/sync", json!({ "script": body, "args": [] })).await
    }

    pub async fn text(&self) -> String {
        self.eval("return document.body.innerText").await.as_str().unwrap().to_owned()
    }

    pub async fn has(&self, text: &str) -> bool {
        self.text().await.contains(text)
    }

    /// Acts on an element once it exists. A page that has just been replaced, by the next one or by a refresh,
    /// takes its elements with it; then the element is searched again.
    async fn act(&self, css: &str, act: &str, body: Value) {
        let began = Instant::now();
        loop {
            let wanted = json!({ "using": "css selector", "value": css });
            let found = self.told("element", wanted).await;
            let element = found[ELEMENT].as_str().unwrap();
            let path = format!("element/{element}/{act}");
            match self.ask(Method::POST, &path, body.clone()).await {
                Ok(_) => return,
                Err(why) if why.contains("stale") && began.elapsed() < Duration::from_secs(60) => {}
                Err(why) => panic!("{act} {css}: {why}"),
            }
        }
    }

    pub async fn click(&self, css: &str) {
        self.act(css, "click", json!({})).await;
    }

    pub async fn fill(&self, css: &str, text: &str) {
        self.act(css, "value", json!({ "text": text })).await;
    }

    /// Presses keys, whatever has the focus.
    pub async fn press(&self, keys: &str) {
        let keys = keys.chars().flat_map(|key| {
            ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }))
        });
        let source = json!({ "type": "key", "id": "keys", "actions": keys.collect::<Vec<_>>() });
        self.told("actions", json!({ "actions": [source] })).await;
    }

    /// What has the focus: its tag, name, value and text.
    pub async fn focused(&self) -> String {
        let of = "const e = document.activeElement; \
                  return [e.tagName, e.id, e.name || '', e.value || '', e.innerText || ''].join(' ')";
        self.eval(of).await.as_str().unwrap().to_owned()
    }

    /// Presses the tab key until this has the focus: it can be reached without a mouse.
    pub async fn tab_to(&self, css: &str) {
        for _ in 0..120 {
            let is_there = format!("return document.activeElement.matches({})", json!(css));
            if self.eval(&is_there).await == true {
                let outline = "const s = getComputedStyle(document.activeElement); \
                               return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2";
                assert_eq!(self.eval(outline).await, true, "the focus on {css} is not seen");
                return;
            }
            self.press(&TAB.to_string()).await;
        }
        panic!("{css} cannot be reached by the tab key on {}", self.url().await);
    }

    pub async fn size(&self, width: u32, height: u32) {
        let screen =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.cdp("Emulation.setDeviceMetricsOverride", screen).await;
    }

    pub async fn scheme(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.cdp("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    pub async fn scripts(&self, on: bool) {
        self.cdp("Emulation.setScriptExecutionDisabled", json!({ "value": !on })).await;
    }

    /// The messages of the browser's console: errors, and violations of the page's policy.
    pub async fn logged(&self) -> Vec<Value> {
        self.told("se/log", json!({ "type": "browser" })).await.as_array().unwrap().clone()
    }

    /// A picture of the window, as PNG.
    pub async fn picture(&self) -> Vec<u8> {
        let shot = self.ask(Method::GET, "screenshot", Value::Null).await.unwrap();
        base64::engine::general_purpose::STANDARD.decode(shot.as_str().unwrap()).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver closes the browser, which outlives it otherwise.
        let ask = format!(
            "DELETE /session/{} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
            self.session, self.address
        );
        if let Ok(mut stream) = TcpStream::connect(&self.address) {
            let _ = stream.write_all(ask.as_bytes());
            // Its answer comes once the browser is closed; the connection stays open.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = stream.read(&mut [0; 1]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
