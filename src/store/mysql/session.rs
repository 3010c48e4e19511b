//! The settings of the engine's sessions, and how the engine sends them: it does not rely on the server's defaults.

use std::path::PathBuf;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Row, SslOpts, UrlError, from_row_opt};

use super::durability::warn_of_losses;
use super::error::Failure;
use super::server::{Product, Server};
use super::waits::{LockWait, RowWaits};
use crate::definition::Isolation;

/// How many statements a connection keeps prepared. The server's own bound is for all connections together
/// (`max_prepared_stmt_count`, 16,382).
const KEPT_STATEMENTS: usize = 256;

/// The largest that the protocol knows.
const LARGEST_PACKET: usize = 1 << 30;

/// The smallest that a URL may name. The engine's own texts, with a key and a reply, are a part of it.
const LEAST_PACKET: usize = 1 << 14;

/// When the client asks a silent server, by TCP, whether it is still there. How often it asks then is the kernel's (on Linux, one
/// that is gone is given up after another eleven minutes): the driver has no setting for it.
const SILENT_FOR_MS: u32 = 15_000;

/// How long a transaction may be idle before the server ends it, in seconds: its client is frozen, or gone. MySQL has no
/// such setting, so there the session's own limit is this for as long as it has a transaction.
const IDLE_WITHIN: u32 = 60;

/// What the sessions of a pool are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// What requests and workers write, and the application's statements.
    Requests,
    /// What operators, health checks and workers search for.
    Searches,
}

/// What a session was found to have, and is given back at the end of each transaction.
#[derive(Clone, Debug)]
pub(super) struct Session {
    /// As many bytes as a command may have.
    pub(super) max_packet: usize,
    product: Product,
    /// Whether several statements may be one prepared block.
    pub(super) has_blocks: bool,
    row_waits: RowWaits,
    /// The settings of a session at rest.
    at_rest: String,
    /// The same at the end of a block.
    at_rest_in_a_block: String,
    /// The same without `autocommit`, which commits what is open.
    settings: String,
    /// Where the engine's tables are.
    home: Option<String>,
    /// It has prepared, under names, what blocks set.
    has_named_settings: bool,
}

/// The path of a certificate authority, which the driver's URL has no place for.
const AUTHORITY: &str = "ssl_ca=";

/// Of a URL `mysql://user:password@host:port/database`.
pub(super) fn options(url: &str) -> Result<Opts, UrlError> {
    let (place, settings) = url.split_once('?').unwrap_or((url, ""));
    let (authority, settings): (Vec<&str>, Vec<&str>) = settings
        .split('&')
        .filter(|setting| !setting.is_empty())
        .partition(|setting| setting.starts_with(AUTHORITY));
    let opts = Opts::from_url(&format!("{place}?{}", settings.join("&")))?;
    let says = |setting: &str| settings.iter().any(|said| said.starts_with(setting));
    let too_little = |setting: &str, least: usize| {
        let said = settings.iter().rev().find_map(|said| said.strip_prefix(setting));
        let param = format!("{}, which is {least} at least", setting.trim_end_matches('='));
        UrlError::InvalidParamValue { param, value: said.unwrap_or_default().to_owned() }
    };
    // The driver takes what is less than 1024 for that: no statement would fit.
    if opts.max_allowed_packet().is_some_and(|bytes| bytes < LEAST_PACKET) {
        return Err(too_little("max_allowed_packet=", LEAST_PACKET));
    }
    // The driver gives back only what it has kept: each statement would stay prepared at the server.
    if says("stmt_cache_size=") && opts.stmt_cache_size() == 0 {
        return Err(too_little("stmt_cache_size=", 1));
    }
    let authority = authority.last().map(|path| PathBuf::from(&path[AUTHORITY.len()..]));
    let authority_is_named = authority.is_some();
    let encrypted = authority.map(|path| {
        let as_it_is = opts.ssl_opts().cloned().unwrap_or_default();
        as_it_is.with_root_certs(vec![path.into()])
    });
    if !cfg!(feature = "mysql-tls") && (authority_is_named || opts.ssl_opts().is_some()) {
        let param = "require_ssl or ssl_ca, without the feature `mysql-tls`".to_owned();
        return Err(UrlError::UnknownParameter { param });
    }
    let mut builder = OptsBuilder::from_opts(opts).client_found_rows(true);
    if let Some(encrypted) = encrypted {
        // Named, it is meant: there is no connection in the clear.
        builder = builder.ssl_opts(Some::<SslOpts>(encrypted));
    }
    if !says("stmt_cache_size=") {
        builder = builder.stmt_cache_size(KEPT_STATEMENTS);
    }
    // What the client takes: the server sends a row whatever its size is. What may be sent is asked of the server, and is
    // no more than this.
    if !says("max_allowed_packet=") {
        builder = builder.max_allowed_packet(Some(LARGEST_PACKET));
    }
    if !says("tcp_keepalive=") {
        builder = builder.tcp_keepalive(Some(SILENT_FOR_MS));
    }
    // Else the driver leaves a TCP connection for the server's socket, and with it any proxy in between.
    if !says("prefer_socket=") {
        builder = builder.prefer_socket(false);
    }
    let opts = Opts::from(builder);
    #[cfg(feature = "mysql-tls")]
    if opts.ssl_opts().is_some() {
        name_a_provider();
    }
    Ok(opts)
}

/// The driver asks rustls for the provider of cryptography of the process. Where the program has two (the default features of
/// `reqwest` bring another one along) and has named none, rustls would panic, at each connection.
#[cfg(feature = "mysql-tls")]
fn name_a_provider() {
    use rustls::crypto::{CryptoProvider, ring};
    if CryptoProvider::get_default().is_none() {
        // It fails where another thread has named one since then.
        let _ = ring::default_provider().install_default();
    }
}

/// Settings that do not depend on the server's, as a part of one statement, because each statement costs an answer.
/// The rest of the engine's SQL is written so that no `sql_mode` changes its meaning; a strict one keeps a value
/// that does not fit from being cut off (G8). And what an administrator limits for careless people is not a limit
/// here: a list that is cut off lacks a pause. `LAST_INSERT_ID()` is 0 as in a new session: a statement that generates no
/// number leaves the one before, which may be of another tenant's row (G16).
///
/// A block sets neither `sql_mode` nor `sql_select_limit`: at its end the server gives the session back those that it had in
/// front of the block.
fn settings(product: Product, sql_mode: Option<&str>, waits: &str) -> String {
    let of_the_server = match product {
        Product::Mariadb => format!(
            "SESSION tx_isolation = 'READ-COMMITTED', SESSION tx_read_only = 0, \
             SESSION idle_transaction_timeout = {IDLE_WITHIN}, SESSION max_statement_time = 0"
        ),
        Product::Mysql => {
            "SESSION transaction_isolation = 'READ-COMMITTED', SESSION transaction_read_only = 0, \
             SESSION max_execution_time = 0"
                .to_owned()
        }
    };
    let outside_of_blocks = |modes| {
        format!("SESSION sql_mode = '{modes}', SESSION sql_select_limit = 18446744073709551615, ")
    };
    let outside_of_blocks = sql_mode.map(outside_of_blocks).unwrap_or_default();
    format!(
        "SESSION completion_type = 0, SESSION time_zone = '+00:00', SESSION timestamp = DEFAULT, \
         SESSION last_insert_id = 0, \
         SESSION lc_messages = 'en_US', {outside_of_blocks}SESSION sql_safe_updates = 0, \
         SESSION sql_big_selects = 1, \
         {waits}, {of_the_server}, NAMES utf8mb4"
    )
}

fn at_rest_in_a_block(product: Product, waits: &str) -> String {
    format!("SET SESSION autocommit = 1, {}", settings(product, None, waits))
}

/// The server's modes, of which only those may stay under which the engine's SQL means what it says; and a strict one.
fn modes(of_the_server: &str) -> String {
    // The empty string is not NULL; and under ORACLE a block has another grammar.
    let stays =
        |mode: &&str| !mode.is_empty() && !["EMPTY_STRING_IS_NULL", "ORACLE"].contains(mode);
    let mut modes: Vec<&str> = of_the_server.split(',').filter(stays).collect();
    modes.push("STRICT_TRANS_TABLES");
    modes.join(",")
}

/// Each text as it is: whatever character set the server gives to a new session (`init_connect`).
const ASKED: &str = "SELECT CAST(VERSION() AS BINARY), @@max_allowed_packet, @@GLOBAL.innodb_lock_wait_timeout, \
    CAST(@@SESSION.sql_mode AS BINARY), CAST(DATABASE() AS BINARY), \
    @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog";

type Told = (Vec<u8>, usize, u32, Vec<u8>, Option<Vec<u8>>, u32, bool, u32);

/// The session, and its server, as [`Server::behind`] tells it. `blocks`: the products whose servers are sent several
/// statements as one prepared block, where the texts allow it.
pub(super) async fn set_up(
    conn: &mut Conn,
    purpose: Purpose,
    blocks: &[Product],
) -> Result<(Session, Option<Server>), Failure> {
    let told: Option<Row> = conn.query_first(ASKED).await.map_err(Failure::of)?;
    let told: Told = told.and_then(|row| from_row_opt(row).ok()).unwrap_or_default();
    let (version, max_packet, lock_wait, sql_mode, database, flush, has_binlog, sync_binlog) = told;
    let [version, sql_mode] =
        [version, sql_mode].map(|text| String::from_utf8_lossy(&text).into_owned());
    let database = database.map(|name| String::from_utf8_lossy(&name).into_owned());
    let product = Product::of(&version);
    if !is_supported(&version, product) {
        return Err(Failure::Lost(format!(
            "the server is {version}: MariaDB 10.6 or MySQL 8.0 is needed, or newer"
        )));
    }
    warn_of_losses(conn.opts(), flush, has_binlog.then_some(sync_binlog));
    let row_waits = RowWaits::new(product, lock_wait);
    let waits = row_waits.settings(match purpose {
        Purpose::Requests => LockWait::AtRest,
        Purpose::Searches => LockWait::Search,
    });
    let at_rest_in_a_block = at_rest_in_a_block(product, &waits);
    let settings = settings(product, Some(&modes(&sql_mode)), &waits);
    let idle = match product {
        Product::Mariadb => "",
        Product::Mysql => "SESSION wait_timeout = DEFAULT, ",
    };
    let at_rest = format!("SET SESSION autocommit = 1, {idle}{settings}");
    let server = Server::behind(conn, &at_rest).await.map_err(Failure::of)?;
    let settings = format!("SET {settings}");
    let home = database.map(|name| format!("USE `{}`", name.replace('`', "``")));
    // The driver refuses what is larger than the URL allows, and closes the connection. The header of the packet, and what
    // a bind takes besides its value, are in it.
    let of_the_url = conn.opts().max_allowed_packet().unwrap_or(LARGEST_PACKET);
    let max_packet = max_packet.min(of_the_url).saturating_sub(1024);
    let has_blocks = blocks.contains(&product);
    let session = Session {
        max_packet,
        product,
        has_blocks,
        row_waits,
        at_rest,
        at_rest_in_a_block,
        settings,
        home,
        has_named_settings: false,
    };
    Ok((session, server))
}

fn is_supported(version: &str, product: Product) -> bool {
    // MariaDB names itself 5.5.5-10.6.. to old replicas, in the handshake only.
    let mut numbers = version.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let oldest = match product {
        Product::Mariadb => (10, 6),
        Product::Mysql => (8, 0),
    };
    version >= oldest
}

#[cfg(test)]
impl Session {
    pub(super) fn of_mariadb() -> Self {
        let row_waits = RowWaits::new(Product::Mariadb, 50);
        let waits = row_waits.settings(LockWait::AtRest);
        let at_rest_in_a_block = at_rest_in_a_block(Product::Mariadb, &waits);
        let settings = settings(Product::Mariadb, Some("STRICT_TRANS_TABLES"), &waits);
        let at_rest = format!("SET SESSION autocommit = 1, {settings}");
        let settings = format!("SET {settings}");
        let (product, has_blocks, home) = (Product::Mariadb, true, None);
        let max_packet = 1 << 20;
        let has_named_settings = false;
        Self {
            max_packet,
            product,
            has_blocks,
            row_waits,
            at_rest,
            at_rest_in_a_block,
            settings,
            home,
            has_named_settings,
        }
    }
}

impl Session {
    /// Begins a transaction. The mark is the last step: what ends the transaction ends it too (G4). Without
    /// `autocommit`, what follows a deadlock or a raw `COMMIT` is a transaction of its own that is never committed, and
    /// not committed by itself.
    pub(super) fn begin(&self, isolation: Isolation, of: LockWait) -> String {
        // At rest the session has this level.
        let level = match isolation {
            Isolation::ReadCommitted => "",
            Isolation::RepeatableRead => "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; ",
            Isolation::Serializable => "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; ",
        };
        let waits = self.row_waits.settings(of);
        let idle = match self.product {
            Product::Mariadb => String::new(),
            Product::Mysql => format!(", SESSION wait_timeout = {IDLE_WITHIN}"),
        };
        format!(
            "ROLLBACK AND NO CHAIN NO RELEASE; \
             SET SESSION autocommit = 0, {waits}{idle}; \
             {level}START TRANSACTION; SAVEPOINT atomic_phases"
        )
    }

    /// Behind the end of a transaction: whatever the phase has set is as it was.
    pub(super) fn at_rest(&self) -> &str {
        &self.at_rest
    }

    /// The same at the end of a block.
    pub(super) fn at_rest_in_a_block(&self) -> &str {
        &self.at_rest_in_a_block
    }

    /// What blocks set is prepared, under names.
    pub(super) fn name_settings(&mut self) {
        self.has_named_settings = true;
    }

    pub(super) fn has_named_settings(&self) -> bool {
        self.has_named_settings
    }

    /// In a transaction whose phase may have changed the session, in front of what the engine writes: each a statement.
    pub(super) fn homecoming(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.settings.as_str()).chain(self.home.as_deref())
    }

    /// Ends a transaction without a trace.
    pub(super) fn rollback(&self) -> String {
        format!("ROLLBACK AND NO CHAIN NO RELEASE; {}", self.at_rest)
    }

    /// For statements of a phase's, or of the application's: they wait as long as the server says.
    pub(super) fn server_lock_wait(&self) -> String {
        format!("SET {}", self.row_waits.settings(LockWait::Phase))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_refused() {
        for (version, supported) in [
            ("10.11.19-MariaDB-0+deb12u1", true),
            ("10.6.1-MariaDB", true),
            ("10.5.9-MariaDB-log", false),
            ("11.4.2-MariaDB", true),
            ("8.0.36", true),
            ("8.4.0-log", true),
            ("5.7.44", false),
            ("", false),
        ] {
            assert_eq!(is_supported(version, Product::of(version)), supported, "{version}");
        }
    }

    #[test]
    fn a_url_has_the_last_word() {
        let opts = options("mysql://ada@localhost/rides?stmt_cache_size=7").unwrap();
        assert_eq!((opts.stmt_cache_size(), opts.prefer_socket()), (7, false));
        assert!(opts.client_found_rows());
        let opts = options("mysql://ada@localhost/rides").unwrap();
        assert_eq!((opts.stmt_cache_size(), opts.ssl_opts()), (256, None));
        let url = "mysql://ada@localhost/rides?ssl_ca=/etc/ca.pem&stmt_cache_size=7";
        // Without TLS in the build, nothing is sent in the clear that was meant to be encrypted.
        assert_eq!(options(url).is_ok(), cfg!(feature = "mysql-tls"));
        if let Ok(opts) = options(url) {
            assert_eq!(opts.stmt_cache_size(), 7);
            assert_eq!(opts.ssl_opts().unwrap().root_certs().len(), 1);
        }
        assert!(options("mysql://ada@localhost/rides?no_such_setting=1").is_err());
    }

    /// Whichever providers other crates of the program bring along.
    #[cfg(feature = "mysql-tls")]
    #[test]
    fn a_url_with_tls_does_not_leave_the_provider_of_cryptography_to_chance() {
        options("mysql://ada@localhost/rides?ssl_ca=/etc/ca.pem").unwrap();
        assert!(rustls::crypto::CryptoProvider::get_default().is_some());
    }

    #[test]
    fn g17_a_url_that_would_keep_no_statement_is_refused() {
        let of =
            |kept: usize| options(&format!("mysql://ada@localhost/rides?stmt_cache_size={kept}"));
        let told = of(0).unwrap_err().to_string();
        assert!(told.contains("stmt_cache_size, which is 1 at least"), "{told}");
        assert_eq!(of(1).unwrap().stmt_cache_size(), 1);
    }

    #[test]
    fn a_url_whose_packets_hold_no_statement_is_refused() {
        let of = |bytes: usize| {
            options(&format!(
                "mysql://ada@localhost/rides?max_allowed_packet={bytes}&tcp_nodelay=true"
            ))
        };
        for bytes in [0, 1024, 16_383] {
            let told = of(bytes).unwrap_err().to_string();
            assert!(told.contains("max_allowed_packet, which is 16384 at least"), "{told}");
            assert!(told.contains(&format!("`{bytes}'")), "{told}");
        }
        for bytes in [16_384, 1 << 30] {
            assert_eq!(of(bytes).unwrap().max_allowed_packet(), Some(bytes));
        }
    }
}
