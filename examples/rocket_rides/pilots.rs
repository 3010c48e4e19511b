//! The pilots' API as `rocket_rides provider` serves it: `POST /v1/notifications` tells a pilot, each
//! time anew; `GET /v1/notifications?ride=…` searches. `POST /test/pilot_faults` makes it misbehave.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Form, Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

/// Each ride that a pilot was told, in order; one line each in a file that survives a kill.
struct Told {
    file: File,
    rides: Vec<String>,
    faults: Faults,
    /// How often they were called, with or without an effect so far.
    calls: u64,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Faults {
    delay_before_ms: u64,
    delay_after_ms: u64,
    /// How many connections are dropped after the effect.
    drop_after: u32,
    /// A search for what they were told fails.
    search_fails: bool,
}

#[derive(Deserialize)]
struct About {
    ride: String,
}

#[derive(Deserialize)]
struct Search {
    ride: Option<String>,
}

type Pilots = Arc<Mutex<Told>>;

pub fn router(file: &Path) -> std::io::Result<Router> {
    let file = OpenOptions::new().read(true).append(true).create(true).open(file)?;
    let rides = BufReader::new(&file).lines().collect::<Result<_, _>>()?;
    let told = Arc::new(Mutex::new(Told { file, rides, faults: Faults::default(), calls: 0 }));
    Ok(Router::new()
        .route("/v1/notifications", post(notify).get(search))
        .route("/test/pilot_faults", post(set_faults))
        .route("/test/pilot_calls", get(calls))
        .with_state(told))
}

fn locked(pilots: &Pilots) -> MutexGuard<'_, Told> {
    pilots.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

async fn notify(State(pilots): State<Pilots>, Form(About { ride }): Form<About>) -> Response {
    let faults = {
        let mut told = locked(&pilots);
        let faults = told.faults;
        told.calls += 1;
        told.faults.drop_after = faults.drop_after.saturating_sub(1);
        faults
    };
    tokio::time::sleep(Duration::from_millis(faults.delay_before_ms)).await;
    let number = {
        let mut told = locked(&pilots);
        let line = format!("{}\n", ride.replace('\n', " "));
        if told.file.write_all(line.as_bytes()).and_then(|()| told.file.sync_data()).is_err() {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
        told.rides.push(ride.clone());
        told.rides.len()
    };
    tokio::time::sleep(Duration::from_millis(faults.delay_after_ms)).await;
    if faults.drop_after > 0 {
        // Ends the connection's task, and so the connection, without a word.
        std::panic::resume_unwind(Box::new("dropped as asked for"));
    }
    Json(notification(number, &ride)).into_response()
}

async fn search(State(pilots): State<Pilots>, Query(search): Query<Search>) -> Response {
    let told = locked(&pilots);
    if told.faults.search_fails {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let all = told.rides.iter().enumerate();
    let found = all.filter(|(_, ride)| search.ride.as_ref().is_none_or(|wanted| wanted == *ride));
    let data: Vec<Value> = found.map(|(at, ride)| notification(at + 1, ride)).collect();
    Json(json!({ "object": "list", "data": data })).into_response()
}

fn notification(number: usize, ride: &str) -> Value {
    json!({ "id": format!("ntf_{number:08}"), "object": "notification", "ride": ride })
}

async fn calls(State(pilots): State<Pilots>) -> Json<Value> {
    Json(json!({ "calls": locked(&pilots).calls }))
}

async fn set_faults(State(pilots): State<Pilots>, Json(faults): Json<Faults>) {
    locked(&pilots).faults = faults;
}
