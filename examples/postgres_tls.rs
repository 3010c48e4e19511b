//! PostgreSQL over TLS, as managed servers ask for it: a pool of your own, with rustls.
//!
//! ```sh
//! DATABASE_URL=postgres://user:password@db.example.com/app TLS_ROOTS=ca.pem \
//!     cargo run --example postgres_tls
//! ```
//!
//! `TLS_ROOTS` is the file of certificates that your provider publishes for its servers. The server has to
//! prove the name in the URL with one that those have signed, as with libpq's `sslmode=verify-full`.

use std::path::Path;
use std::sync::Arc;

use atomic_phases::Store;
use atomic_phases::diesel_async::pooled_connection::{
    AsyncDieselConnectionManager, ManagerConfig, RecyclingMethod,
};
use atomic_phases::diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use atomic_phases::store::{DeadpoolPool, Postgres};
use diesel::{ConnectionError, ConnectionResult};
use futures_util::FutureExt;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let (url, roots) = (std::env::var("DATABASE_URL")?, std::env::var("TLS_ROOTS")?);
    let store = Postgres::with_pool(pool(&url, Path::new(&roots))?);
    // The first connection: what is wrong with the certificate or the URL is said here.
    store.migrate().await?;
    println!("connected over TLS, and the tables are there");
    Ok(())
}

/// A pool whose connections are all encrypted, to a server that these roots vouch for.
pub fn pool(url: &str, roots: &Path) -> Result<DeadpoolPool, Failure> {
    let tls = tls(roots)?;
    let mut config = ManagerConfig::default();
    // The store finds a dead connection by using it; the default asks `SELECT 1` first, each time.
    config.recycling_method = RecyclingMethod::Fast;
    config.custom_setup = Box::new(move |url| establish(url.to_owned(), tls.clone()).boxed());
    let manager = AsyncDieselConnectionManager::new_with_config(url, config);
    let wait = std::time::Duration::from_secs(5);
    Ok(DeadpoolPool::builder(manager)
        .max_size(16)
        .wait_timeout(Some(wait))
        .create_timeout(Some(wait))
        .recycle_timeout(Some(wait))
        .runtime(deadpool::Runtime::Tokio1)
        .build()?)
}

fn tls(roots: &Path) -> Result<MakeRustlsConnect, Failure> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(roots)? {
        store.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

async fn establish(url: String, tls: MakeRustlsConnect) -> ConnectionResult<AsyncPgConnection> {
    let mut config: tokio_postgres::Config = url
        .parse()
        .map_err(|_| ConnectionError::InvalidConnectionUrl("not a URL of PostgreSQL".into()))?;
    // The default is to go on without, where the server has none.
    config.ssl_mode(SslMode::Require);
    let (client, connection) = config.connect(tls).await.map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        ConnectionError::BadConnection(format!("{error}{}", cause.unwrap_or_default()))
    })?;
    let mut conn = AsyncPgConnection::try_from_client_and_connection(client, connection).await?;
    // As the store's own pool does it: the server looks twice a second whether its client is still there.
    conn.batch_execute("SET client_connection_check_interval = 500")
        .await
        .map_err(ConnectionError::CouldntSetupConfiguration)?;
    Ok(conn)
}
