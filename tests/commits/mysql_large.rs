//! The size of a command and of a row on MariaDB.

use atomic_phases::engine::FailureCause;
use atomic_phases::ops::{Actor, Filter, Permissions, Scopes};
use atomic_phases::phase::ForeignError;
use atomic_phases::store::Mysql;
use atomic_phases::worker::Completer;
use atomic_phases::{Batch, Engine, ForeignCall, PhaseResult, Reply, atomic_phases};
use serde::{Deserialize, Serialize};

use crate::support::db::{open_my, open_my_without_blocks, prepare_my};
use crate::support::mariadb::{Server, mysqld};
use crate::support::work::config;
use crate::support::*;

/// Parameters, and then an output, each below a packet.
#[derive(Clone, Serialize, Deserialize)]
struct Large {
    params: String,
    output: usize,
}

#[derive(Serialize, Deserialize)]
struct Begun;

#[derive(Serialize, Deserialize)]
struct Grown(String);

#[atomic_phases(name = "large", version = 1, app = App)]
impl Large {
    #[phase(commit)]
    async fn begun(&self, _batch: &mut Batch<'_, Mysql>) -> PhaseResult<Begun> {
        Ok(Begun)
    }

    #[phase(commit)]
    async fn grown(&self, _batch: &mut Batch<'_, Mysql>) -> PhaseResult<Grown> {
        Ok(Grown("y".repeat(self.output)))
    }

    #[phase(foreign(idempotent))]
    async fn charged(&self, call: ForeignCall, app: &App) -> PhaseResult<(), ForeignError> {
        call.make(async |key| {
            app.provider.call(key.as_str(), "large").await;
            Ok::<_, ForeignError>(())
        })
        .await?;
        match app.provider.calls().len() {
            1 => Err(ForeignError::retryable("asked for")),
            _ => Ok(()),
        }
    }

    #[phase]
    async fn answered(&self, _batch: &mut Batch<'_, Mysql>, grown: &Grown) -> PhaseResult<Reply> {
        Ok(Reply::text(200, grown.0.len().to_string()))
    }
}

/// Y12: each value was written by a command of its own, and a read returns all of them: the server sends a row of
/// any size, and the client accepts it.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_row_that_is_larger_than_a_packet_goes_on() {
    let start = || {
        let server = Server::start(&["--max-allowed-packet=1M"]);
        let url = server.new_database();
        (server, url)
    };
    let (_server, url) = tokio::task::spawn_blocking(start).await.unwrap();
    let db = prepare_my(&url).await;
    for (name, by_a_worker) in [("by-a-retry", false), ("by-the-completer", true)] {
        let app = App::default();
        let engine =
            Engine::builder(db.clone()).app(app.clone()).register::<Large>().build().unwrap();
        // A MySQL gets values as digits in a text, and so none that is larger than half of a packet.
        let output = if mysqld().is_some() { 400_000 } else { 900_000 };
        let large = || Large { params: "x".repeat(200_000), output };
        failed(engine.call(&scope(), &key(name), large()).await);
        db.let_time_pass().await;
        if by_a_worker {
            let look = Completer::new(&engine, config()).run_once().await.unwrap();
            assert_eq!(look.finished, 1, "{look:?}");
        }
        let told = finished(engine.call(&scope(), &key(name), large()).await);
        assert_eq!(told.reply.bytes(), output.to_string().as_bytes());
        assert_eq!(app.provider.effects(), 1);
        let admin = Actor::new("ada", Permissions::admin(), Scopes::All).unwrap();
        let all = engine.ops(admin).list(Filter::new()).await.unwrap();
        assert_eq!(all.rows.len(), 1 + usize::from(by_a_worker));
    }
}

/// A URL that allows smaller packets than the server: what is larger fails its phase, as on a server that allows no
/// more. It is not taken for a lost connection, on which the phase would run again.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_url_that_allows_smaller_packets_than_the_server_is_obeyed() {
    let db = Mysql::fresh().await;
    for store in ["blocks", "texts"] {
        let url = format!("{}?max_allowed_packet=65536", db.__url());
        let open = match store {
            "blocks" => open_my(&url, 2).await,
            _ => open_my_without_blocks(&url, 2).await,
        };
        let builder = Engine::builder(open).app(App::default()).register::<Large>();
        let engine = builder.build().unwrap();
        let large = Large { params: String::new(), output: 100_000 };
        match failed(engine.call(&scope(), &key(store), large).await) {
            FailureCause::Database { kind, .. } => {
                assert_eq!(
                    kind, "larger than max_allowed_packet, the server's or the URL's",
                    "{store}"
                );
            }
            other => panic!("{store}: {other:?}"),
        }
    }
}
