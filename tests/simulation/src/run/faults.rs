//! What happens to a run beside its calls: nodes that freeze, die, drain and are deployed, and a database that is away.

use std::time::Duration;

use atomic_phases::ops::{Actor, Permissions, Scopes};
use atomic_phases::{IdempotencyKey, Scope};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::{DATABASE, Host, RunState};
use crate::judge;
use crate::plan::{Build, Event, HEALED, Stop, What};

impl RunState {
    pub(super) async fn event(self, event: Event) {
        sleep(Duration::from_millis(event.at)).await;
        self.trace.note(|| format!("event: {:?} for {} ms", event.what, event.lasts));
        let name = format!("{:?}", event.what);
        let name = name.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
        self.covers(format!("event: {name}"));
        let lasts = Duration::from_millis(event.lasts);
        match event.what {
            What::Freeze(index) => self.freeze(index, lasts).await,
            What::Kill(index) => self.kill(index, lasts).await,
            What::Drain(index) => self.drain(index).await,
            What::Deploy(index, build) => {
                self.builds.lock().unwrap()[index] = build;
                self.drain(index).await;
            }
            What::DatabaseAway => self.take_database_away(lasts).await,
            What::FailOver { losing } => {
                // The tables existed before.
                let mut watched = self.watched.lock().unwrap();
                let lost = losing.min(watched.commits);
                watched.commits -= lost;
                drop(watched);
                self.database.fail_over_losing(lost);
            }
            What::ClockJump(by) => self.database.set_clock_forward(Duration::from_millis(by)),
            What::ClockBack(by) => self.database.set_clock_back(Duration::from_millis(by)),
            What::Pause(index) => self.pause(index, lasts).await,
            What::Erase { node, scope, key } => self.erase(node, scope, key).await,
        }
    }

    /// Of the fares' call. It may be paused already.
    async fn pause(&self, index: usize, length: Duration) {
        let pausing = {
            let hosts = self.hosts.lock().unwrap();
            hosts[index].as_ref().map(|host| {
                let actor = Actor::new("ada", Permissions::admin(), Scopes::All).unwrap();
                let ops = host.engine.ops(actor);
                host.node.spawn(async move {
                    ops.pause("fare", "paid", Some(length), "the provider is away").await
                })
            })
        };
        let paused = match pausing {
            Some(pausing) => pausing.await.ok(),
            None => None,
        };
        self.trace.note(|| format!("event: pausing comes to {paused:?}"));
    }

    /// Retries until the key is erased, or must not be erased because it is not settled.
    pub(super) async fn erase(&self, index: usize, scope: u8, key: u8) {
        for _ in 0..20 {
            let erasing = {
                let hosts = self.hosts.lock().unwrap();
                hosts[index].as_ref().map(|host| {
                    let engine = host.engine.clone();
                    let scope = Scope::new(judge::scope_name(scope)).unwrap();
                    let key = IdempotencyKey::new(judge::key_name(key)).unwrap();
                    host.node.spawn(async move { engine.erase(&scope, &key).await })
                })
            };
            let erased = match erasing {
                Some(erasing) => erasing.await.ok(),
                None => None,
            };
            self.trace.note(|| format!("event: erasing comes to {erased:?}"));
            if let Some(Ok(())) = erased {
                return self.watched.lock().unwrap().was_erased(scope, key, self.trace.elapsed());
            }
            if self.trace.elapsed() >= HEALED {
                return;
            }
            sleep(Duration::from_secs(3)).await;
        }
    }

    pub(super) async fn take_database_away(&self, lasts: Duration) {
        self.covers("stop: database".to_owned());
        self.trace.note(|| "event: the database is away".to_owned());
        self.database.stop();
        sleep(self.until_healed(lasts).min(Duration::from_secs(10))).await;
        self.database.start();
        self.trace.note(|| "event: the database is back".to_owned());
    }

    pub(super) fn until_healed(&self, lasts: Duration) -> Duration {
        lasts.min(HEALED.saturating_sub(self.trace.elapsed()))
    }

    /// Applies the faults of statements and of calls to nodes.
    pub(super) async fn stop_nodes(self, mut stopped: mpsc::UnboundedReceiver<(String, Stop)>) {
        while let Some((name, stop)) = stopped.recv().await {
            let state = self.clone();
            tokio::spawn(async move {
                sleep(Duration::from_millis(stop.after)).await;
                if name == DATABASE {
                    return state.take_database_away(Duration::from_millis(stop.lasts)).await;
                }
                let is_it = |host: &Option<Host>| {
                    host.as_ref().is_some_and(|host| host.node.name() == name)
                };
                let index = state.hosts.lock().unwrap().iter().position(is_it);
                let Some(index) = index.filter(|_| state.trace.elapsed() < HEALED) else { return };
                let lasts = Duration::from_millis(stop.lasts);
                match stop.kill {
                    true => state.kill(index, lasts).await,
                    false => state.freeze(index, lasts).await,
                }
            });
        }
    }

    pub(super) async fn freeze(&self, index: usize, lasts: Duration) {
        let node = {
            let hosts = self.hosts.lock().unwrap();
            let Some(host) = &hosts[index] else { return };
            host.node.clone()
        };
        self.covers("stop: freeze".to_owned());
        self.trace.note(|| format!("event: {} stands still for {lasts:?}", node.name()));
        node.freeze();
        sleep(self.until_healed(lasts)).await;
        node.thaw();
        self.trace.note(|| format!("event: {} goes on", node.name()));
    }

    pub(super) async fn kill(&self, index: usize, lasts: Duration) {
        let Some(host) = self.hosts.lock().unwrap()[index].take() else { return };
        self.covers("stop: kill".to_owned());
        self.trace.note(|| format!("event: {} dies for {lasts:?}", host.node.name()));
        host.node.kill();
        sleep(self.until_healed(lasts)).await;
        self.start(index);
    }

    pub(super) async fn drain(&self, index: usize) {
        let Some(Host { node, engine, .. }) = self.hosts.lock().unwrap()[index].take() else {
            return;
        };
        self.covers("stop: drain".to_owned());
        let drain = node.spawn(async move { engine.shutdown(Duration::from_secs(15)).await });
        let _ = tokio::time::timeout(Duration::from_secs(20), drain).await;
        node.kill();
        self.start(index);
    }

    /// Completes an unfinished rollout.
    pub(super) async fn deploy_everywhere(self) {
        sleep(HEALED).await;
        self.builds.lock().unwrap().fill(Build::Both);
        for index in 0..self.plan.nodes {
            self.drain(index).await;
        }
    }
}
