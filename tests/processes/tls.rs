//! The example's pool with a server that accepts encrypted connections only.

#[allow(dead_code, missing_docs)]
#[path = "../../examples/postgres_tls.rs"]
mod postgres_tls;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::cluster::Cluster;
use crate::support::db::{open_pg, prepare_pg};
use crate::support::*;
use atomic_phases::store::Postgres;

#[derive(diesel::QueryableByName)]
struct Ssl {
    #[diesel(sql_type = diesel::sql_types::Bool)]
    ssl: bool,
}

/// Whether this connection is encrypted.
async fn is_encrypted(db: &Postgres) -> bool {
    // Imported here only, because its `execute()` applies to every type.
    use diesel_async::RunQueryDsl;
    let query = diesel::sql_query("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()");
    query.get_result::<Ssl>(&mut *db.pool().get().await.unwrap()).await.unwrap().ssl
}

/// Ends all connections except its own.
async fn end_connections(db: &Postgres) {
    use diesel_async::RunQueryDsl;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE pid <> pg_backend_pid() AND datname = current_database()";
    diesel::sql_query(end).execute(&mut *db.pool().get().await.unwrap()).await.unwrap();
}

fn openssl(dir: &Path, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(dir).output();
    let output = output.expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// An authority of this name, and a certificate by it for 127.0.0.1.
fn certificates(dir: &Path, name: &str) -> PathBuf {
    openssl(
        dir,
        &format!(
            "req -x509 -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.crt -subj /CN={name} -days 2"
        ),
    );
    openssl(dir, "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=server");
    std::fs::write(dir.join("san"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    openssl(
        dir,
        &format!(
            "x509 -req -in server.csr -CA {name}.crt -CAkey {name}.key -CAcreateserial -days 2 -extfile san -out server.crt"
        ),
    );
    dir.join(format!("{name}.crt"))
}

/// From now on the server speaks TLS, and nothing else over TCP.
fn encrypts_only(cluster: &Cluster, dir: &Path) {
    let data = cluster.data();
    for file in ["server.crt", "server.key"] {
        // Keeps owner and mode of the folder's own files: the server refuses a key that others may read.
        let to = data.join(file);
        let own = data.join("postgresql.conf");
        let (from, to, own) =
            (dir.join(file), to.to_str().unwrap().to_owned(), own.to_str().unwrap().to_owned());
        std::fs::copy(from, &to).unwrap();
        assert!(Command::new("chmod").args(["600", &to]).status().unwrap().success());
        assert!(Command::new("chown").args(["--reference", &own, &to]).status().unwrap().success());
    }
    std::fs::write(
        data.join("pg_hba.conf"),
        "local all all trust\nhostssl all all 127.0.0.1/32 trust\n",
    )
    .unwrap();
    cluster.change("ssl = on\nssl_cert_file = 'server.crt'\nssl_key_file = 'server.key'\n");
}

/// The same on MariaDB, by the URL alone.
#[cfg(feature = "mysql-tls")]
#[tokio::test(flavor = "multi_thread")]
async fn a_url_with_an_authority_runs_requests_on_a_mariadb_that_only_takes_tls() {
    use crate::support::db::{open_my, prepare_my};
    use crate::support::mariadb::{Server, mysqld};
    use atomic_phases::store::Mysql;

    let dir = tempfile::tempdir().unwrap();
    let roots = certificates(dir.path(), "authority");
    // The server's user reads them.
    for (mode, path) in [("755", "."), ("644", "server.key")] {
        let path = dir.path().join(path);
        assert!(Command::new("chmod").arg(mode).arg(path).status().unwrap().success());
    }
    let file = |option: &str, file: &str| format!("--{option}={}", dir.path().join(file).display());
    let (certificate, its_key) = (file("ssl-cert", "server.crt"), file("ssl-key", "server.key"));
    let server = tokio::task::block_in_place(|| Server::start(&[&certificate, &its_key]));
    let url = tokio::task::block_in_place(|| server.new_database());
    prepare_my(&url).await;
    server.ask("SET GLOBAL require_secure_transport = 1");

    let refused = async |url: &str| match Mysql::connect(url).await {
        Ok(_) => panic!("connected"),
        Err(error) => error.to_string(),
    };
    // Unencrypted, without the right authority, and with another one. (MariaDB reports only that access is denied;
    // MySQL has a code of its own.)
    let in_the_clear = refused(&url).await;
    assert!(["1045", "3159"].iter().any(|code| in_the_clear.contains(code)), "{in_the_clear}");
    let encrypted = format!("{url}?require_ssl=true");
    assert!(refused(&encrypted).await.contains("ertificate"), "{}", refused(&encrypted).await);
    let other = tempfile::tempdir().unwrap();
    let stranger = certificates(other.path(), "stranger");
    let strange = format!("{url}?ssl_ca={}", stranger.display());
    assert!(refused(&strange).await.contains("ertificate"), "{}", refused(&strange).await);

    let store = open_my(&format!("{url}?ssl_ca={}", roots.display()), 2).await;
    let app = App::default();
    let engine = engine(&store, &app);
    let first = finished(engine.call(&scope(), &key("k"), book(20)).await);
    let again = finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!((first.reply, again.replayed, app.provider.effects()), (again.reply, true, 1));
    let cipher = match mysqld() {
        None => {
            "SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'Ssl_cipher'"
        }
        Some(_) => {
            "SELECT variable_value FROM performance_schema.session_status WHERE variable_name = 'Ssl_cipher'"
        }
    };
    assert_ne!(store.text(cipher).await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_with_rustls_runs_requests_on_a_server_that_only_takes_tls() {
    let dir = tempfile::tempdir().unwrap();
    let roots = certificates(dir.path(), "authority");
    let cluster = tokio::task::block_in_place(Cluster::start);
    let url = tokio::task::block_in_place(|| cluster.new_database());
    prepare_pg(&open_pg(&url, 1).await).await;
    tokio::task::block_in_place(|| encrypts_only(&cluster, dir.path()));
    // The server reads its configuration at its own pace.
    until(async || Postgres::connect(&url).await.is_err()).await;

    let db = Postgres::with_pool(postgres_tls::pool(&url, &roots).unwrap());
    assert!(is_encrypted(&db).await);
    let app = App::default();
    let engine = engine(&db, &app);
    let first = finished(engine.call(&scope(), &key("k"), book(20)).await);
    let again = finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!((first.reply, again.replayed, app.provider.effects()), (again.reply, true, 1));
    // After the server has ended connections, new ones are encrypted, too.
    end_connections(&db).await;
    finished(engine.call(&scope(), &key("l"), book(20)).await);

    let refused = async |url: &str, roots: &Path| {
        let store = Postgres::with_pool(postgres_tls::pool(url, roots).unwrap());
        match store.pool().get().await {
            Ok(_) => panic!("connected"),
            Err(error) => error.to_string(),
        }
    };
    // Another authority, and a name that the certificate does not have.
    let other = tempfile::tempdir().unwrap();
    let stranger = certificates(other.path(), "stranger");
    assert!(
        refused(&url, &stranger).await.contains("certificate"),
        "{}",
        refused(&url, &stranger).await
    );
    let renamed = url.replace("127.0.0.1", "localhost");
    assert!(
        refused(&renamed, &roots).await.contains("certificate"),
        "{}",
        refused(&renamed, &roots).await
    );
    // The store does not talk to a server without TLS unencrypted.
    let plain = tokio::task::block_in_place(crate::support::cluster::new_database);
    assert!(refused(&plain, &roots).await.contains("TLS"), "{}", refused(&plain, &roots).await);
    drop(cluster);
}
