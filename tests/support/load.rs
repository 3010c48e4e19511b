//! Clients that book rides, and the judge of the result: the provider's ledgers, which the engine cannot touch,
//! compared with the answers.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinHandle;

use super::rides::{Random, Rides};
use super::until_within;

const USER: &str = "user@example.com";
/// A user whose card is declined.
const DECLINED: &str = "user-bad-source@example.com";

pub type Answer = (u16, Vec<u8>);

/// A client of several servers.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    servers: Arc<RwLock<Vec<String>>>,
    /// How long the client retries before the test fails.
    stuck_after: Duration,
    attempts: Arc<AtomicU64>,
    troubles: Arc<Mutex<Vec<String>>>,
    longest: Arc<Mutex<Duration>>,
    /// How many attempts are under way, by server.
    under_way: Arc<Mutex<HashMap<String, u32>>>,
}

fn paths(servers: &[&str]) -> Vec<String> {
    servers.iter().map(|url| format!("{url}/rides")).collect()
}

impl Client {
    /// `patience`: for one attempt.
    pub fn new(servers: &[&str], patience: Duration, stuck_after: Duration) -> Self {
        let http = reqwest::Client::builder().timeout(patience).build().unwrap();
        let servers = Arc::new(RwLock::new(paths(servers)));
        let (attempts, troubles, longest, under_way) = Default::default();
        Self { http, servers, stuck_after, attempts, troubles, longest, under_way }
    }

    /// From now on, the client uses these servers, as a load balancer does in a deploy. Returns when `without` has
    /// answered all its requests.
    pub async fn ask_only(&self, servers: &[&str], without: &str) {
        *self.servers.write().unwrap() = paths(servers);
        let without = &paths(&[without])[0];
        until_within(self.stuck_after, async || {
            self.under_way.lock().unwrap().get(without).is_none_or(|count| *count == 0)
        })
        .await;
    }

    /// The answers that were not final, after which the client retried.
    pub fn troubles(&self) -> Vec<String> {
        self.troubles.lock().unwrap().clone()
    }

    /// The time of the slowest answer.
    pub fn longest(&self) -> Duration {
        *self.longest.lock().unwrap()
    }

    /// One attempt at one server.
    pub async fn post(&self, server: usize, key: &str) -> Result<Answer, reqwest::Error> {
        self.send(server, USER, key).await
    }

    pub async fn send(
        &self,
        server: usize,
        user: &str,
        key: &str,
    ) -> Result<Answer, reqwest::Error> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let places = ["origin_lat", "origin_lon", "target_lat", "target_lon"];
        let params = places.map(|place| (place, "37.77"));
        let url = {
            let servers = self.servers.read().unwrap();
            *self.under_way.lock().unwrap().entry(servers[server].clone()).or_default() += 1;
            servers[server].clone()
        };
        let request = self.http.post(&url).header("idempotency-key", key);
        let began = Instant::now();
        let answered = async {
            let answer = request.header("authorization", user).form(&params).send().await?;
            Ok((answer.status().as_u16(), answer.bytes().await?.to_vec()))
        };
        let answered = answered.await;
        *self.under_way.lock().unwrap().get_mut(&url).unwrap() -= 1;
        let mut longest = self.longest.lock().unwrap();
        *longest = began.elapsed().max(*longest);
        answered
    }

    /// Retries, at any server, until there is a final answer.
    pub async fn book(&self, key: &str, random: &mut Random) -> Answer {
        self.book_as(USER, key, random).await
    }

    async fn book_as(&self, user: &str, key: &str, random: &mut Random) -> Answer {
        let began = Instant::now();
        loop {
            let servers = self.servers.read().unwrap().len() as u64;
            let server = random.below(servers) as usize;
            let last = self.send(server, user, key).await;
            match last {
                Ok(answer @ (201 | 402, _)) => return answer,
                Ok((409 | 500 | 503, _)) | Err(_) => {}
                Ok((status, body)) => {
                    panic!("{key}: {status} {}", String::from_utf8_lossy(&body))
                }
            }
            let text =
                last.map(|(status, body)| (status, String::from_utf8_lossy(&body).into_owned()));
            self.troubles.lock().unwrap().push(format!("{key}: {text:?}"));
            assert!(began.elapsed() < self.stuck_after, "{key} is stuck: {text:?}");
            tokio::time::sleep(Duration::from_millis(20 + random.below(60))).await;
        }
    }
}

/// A ride for which a client received an answer.
pub struct Booked {
    pub user: &'static str,
    pub key: String,
    pub answer: Answer,
}

impl Booked {
    /// By the user of [`Client::book`].
    pub fn new(key: String, answer: Answer) -> Self {
        Self { user: USER, key, answer }
    }
}

/// Clients at work.
pub struct Load {
    client: Client,
    stop: Arc<AtomicBool>,
    pub booked: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Vec<Booked>>>,
}

impl Load {
    /// Each client books one ride after the other; one of ten is declined. `booked` has the number so far.
    pub fn start(client: Client, clients: u64, seed: u64) -> Self {
        let (stop, booked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients = (0..clients)
            .map(|number| {
                let (stop, booked, client) = (stop.clone(), booked.clone(), client.clone());
                let mut random = Random(seed.wrapping_mul(1000) + number);
                tokio::spawn(async move {
                    let mut rides = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let key = format!("c{number}-{}", rides.len());
                        let user = if rides.len() % 10 == 9 { DECLINED } else { USER };
                        let answer = client.book_as(user, &key, &mut random).await;
                        booked.fetch_add(1, Ordering::Relaxed);
                        rides.push(Booked { user, key, answer });
                    }
                    rides
                })
            })
            .collect();
        Self { client, stop, booked, clients }
    }

    /// Waits until this many more rides are booked, so that there is load.
    pub async fn goes_on(&self, rides: u64) {
        let wanted = self.booked.load(Ordering::Relaxed) + rides;
        until_within(self.client.stuck_after, async || {
            assert!(!self.clients.iter().any(JoinHandle::is_finished), "a client gave up");
            self.booked.load(Ordering::Relaxed) >= wanted
        })
        .await;
    }

    /// Lets each client get its last answer.
    pub async fn stop(self) -> Vec<Booked> {
        self.stop.store(true, Ordering::Relaxed);
        let mut booked = Vec::new();
        for client in self.clients {
            booked.extend(client.await.unwrap());
        }
        booked
    }
}

/// The provider's ledgers, compared with the answers.
#[derive(Debug)]
pub struct Ledger {
    pub requests: usize,
    pub attempts: u64,
    pub charges: usize,
    pub notifications: usize,
    /// Charges beyond one of a ride.
    pub charged_twice: usize,
    /// Notifications beyond one of a ride.
    pub told_twice: usize,
    /// Rides that a client's answer promised, without their charge or notification.
    pub lost: usize,
    /// Charges or notifications of a ride that no answer promised.
    pub phantom: usize,
    /// Requests whose last answer was another than their first.
    pub changed: usize,
    /// Requests whose answer has another request's ride.
    pub shared: usize,
}

impl Ledger {
    /// Retries every ride once more, and compares the answers.
    pub async fn of(rides: &Rides, client: &Client, booked: &[Booked]) -> Self {
        let mut random = Random(0);
        let (mut changed, mut promised) = (0, Vec::new());
        for Booked { user, key, answer } in booked {
            let again = client.book_as(user, key, &mut random).await;
            changed += usize::from(again != *answer);
            assert_eq!(again.0, if *user == DECLINED { 402 } else { 201 }, "{key}");
            if again.0 == 201 {
                let ride: Value = serde_json::from_slice(&again.1).unwrap();
                promised.push((text(&ride["id"]), text(&ride["charge"])));
            }
        }
        let charges = rides.charges().await;
        let told = rides.notifications().await;
        let charged: Vec<String> = charges.iter().map(|c| text(&c["metadata"]["ride"])).collect();
        let charge_ids: HashSet<String> =
            charges.iter().map(|charge| text(&charge["id"])).collect();
        let promised_rides: HashSet<&String> = promised.iter().map(|(ride, _)| ride).collect();
        let beyond_one =
            |rides: &[String]| rides.len() - rides.iter().collect::<HashSet<_>>().len();
        let phantoms = |rides: &[String]| {
            rides.iter().filter(|ride| !promised_rides.contains(ride)).collect::<HashSet<_>>().len()
        };
        let lost = |(ride, charge): &&(String, String)| {
            !charge_ids.contains(charge) || !told.contains(ride) || !charged.contains(ride)
        };
        Self {
            requests: booked.len(),
            attempts: client.attempts.load(Ordering::Relaxed),
            charges: charges.len(),
            notifications: told.len(),
            charged_twice: beyond_one(&charged),
            told_twice: beyond_one(&told),
            lost: promised.iter().filter(lost).count(),
            phantom: phantoms(&charged) + phantoms(&told),
            changed,
            shared: promised.len() - promised_rides.len(),
        }
    }

    /// Asserts that no effect is made twice, lost, or without a request, and that no answer changes.
    #[track_caller]
    pub fn assert_exact(&self) {
        let Self { charged_twice, told_twice, lost, phantom, changed, shared, .. } = *self;
        let wrong = (charged_twice, told_twice, lost, phantom, changed, shared);
        assert_eq!(wrong, (0, 0, 0, 0, 0, 0), "{self}");
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "requests {}, attempts {}, charges {}, notifications {}, charged twice {}, told twice {}, \
             lost {}, without a request {}, answers changed {}, answers shared {}",
            self.requests,
            self.attempts,
            self.charges,
            self.notifications,
            self.charged_twice,
            self.told_twice,
            self.lost,
            self.phantom,
            self.changed,
            self.shared,
        )
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The number of charges and of notifications of each ride.
pub async fn effects(rides: &Rides) -> HashMap<String, (u32, u32)> {
    let mut effects: HashMap<String, (u32, u32)> = HashMap::new();
    for charge in rides.charges().await {
        effects.entry(text(&charge["metadata"]["ride"])).or_default().0 += 1;
    }
    for ride in rides.notifications().await {
        effects.entry(ride).or_default().1 += 1;
    }
    effects
}
