//! What a distributed table refuses (docs/scaling.md): rules of Citus, read from its planner
//! (`TargetlistAndFunctionsSupported`), held against each statement that changes rows and was sent.
//!
//! A query in parentheses is planned by itself, and what it comes to is a constant of the statement around it. So
//! the rules are about what stands outside of one.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::hot::words;
use crate::recorded::{alone, count, sent};
use crate::support::work::*;
use crate::support::*;
use atomic_phases::ops::{Actor, Filter, Permissions, Scopes};
use atomic_phases::worker::{DeliveryError, Enqueuer, Handlers, Reaper};
use atomic_phases::{Postgres, engine::Resolution};

/// The words of each `UPDATE` and `DELETE` in a statement, without the queries in it.
fn changes(sql: &str) -> Vec<Vec<String>> {
    let words = words(sql);
    let starts = words.iter().enumerate().filter(|(place, word)| {
        let before = place.checked_sub(1).map_or("", |before| words[before].as_str());
        ["UPDATE", "DELETE"].contains(&word.as_str()) && !["FOR", "KEY"].contains(&before)
    });
    starts.map(|(start, _)| without_queries(&words[start..])).collect()
}

/// Up to the parenthesis that it stands in.
fn without_queries(words: &[String]) -> Vec<String> {
    let (mut kept, mut depth, mut in_query) = (Vec::new(), 0, None);
    for (place, word) in words.iter().enumerate() {
        match word.as_str() {
            "(" => {
                depth += 1;
                let is_query = words.get(place + 1).is_some_and(|next| next == "SELECT");
                if is_query && in_query.is_none() {
                    in_query = Some(depth);
                    kept.push("?".to_owned());
                }
            }
            ")" if depth == 0 => break,
            ")" => depth -= 1,
            _ => {}
        }
        match in_query {
            None => kept.push(word.clone()),
            Some(inside) if depth < inside => in_query = None,
            Some(_) => {}
        }
    }
    kept
}

/// The functions that are called there.
fn calls(words: &[String]) -> BTreeSet<String> {
    let is_name =
        |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c));
    let calls = words.windows(2).filter(|pair| pair[1] == "(" && is_name(&pair[0]));
    calls.map(|pair| pair[0].clone()).collect()
}

/// The parts that are evaluated only where they are needed, and `RETURNING`: nothing that may change is called there.
fn lazy(words: &[String]) -> Vec<String> {
    let (mut inside, mut cases, mut parens, mut depth) = (Vec::new(), 0, Vec::new(), 0);
    let mut returns = false;
    for (place, word) in words.iter().enumerate() {
        match word.as_str() {
            "CASE" => cases += 1,
            "END" => cases -= 1,
            "RETURNING" => returns = true,
            "(" => {
                depth += 1;
                if place > 0 && words[place - 1] == "coalesce" {
                    parens.push(depth);
                }
            }
            ")" => {
                parens.retain(|open| *open < depth);
                depth -= 1;
            }
            _ => {}
        }
        if cases > 0 || !parens.is_empty() || returns {
            inside.push(word.clone());
        }
    }
    inside
}

/// The columns that are cast: to another type of a table's row there is no cast that is the same for ever.
fn cast_columns(words: &[String]) -> Vec<String> {
    let is_column = |word: &str| word.chars().next().is_some_and(|c| c.is_ascii_lowercase());
    let casts = words.windows(3).filter(|three| three[1] == ":" && three[2] == ":");
    casts.map(|three| three[0].clone()).filter(|word| is_column(word)).collect()
}

/// Why a distributed table refuses it, if it does.
async fn refused(db: &Postgres, sql: &str) -> Result<(), String> {
    for change in changes(sql) {
        let volatile = those(db, calls(&change), "provolatile = 'v'").await;
        if !volatile.is_empty() {
            return Err(format!("calls {volatile} in what it changes"));
        }
        let mut lazy = calls(&lazy(&change));
        // Of an interval, for which it is immutable; of a time it would not be.
        lazy.remove("extract");
        let mutable = those(db, lazy, "provolatile <> 'i'").await;
        if !mutable.is_empty() {
            return Err(format!("calls {mutable} in a CASE, a COALESCE or a RETURNING"));
        }
        let cast = cast_columns(&change);
        if !cast.is_empty() {
            return Err(format!("casts {cast:?}"));
        }
    }
    Ok(())
}

/// Those of these functions of which the server says that.
async fn those(db: &Postgres, calls: BTreeSet<String>, what: &str) -> String {
    let names = calls.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    db.text(&format!(
        "SELECT coalesce(string_agg(DISTINCT proname, ' '), '') FROM pg_proc WHERE {what} \
         AND proname = ANY(ARRAY[{names}]::text[])"
    ))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_of_a_distributed_table_know_a_bad_statement() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    for good in [
        "UPDATE k SET t = (SELECT clock_timestamp() + $1) WHERE s = $2 AND status = $3::some_type",
        "UPDATE k SET t = CASE WHEN t < (SELECT clock_timestamp()) THEN t END WHERE s = $1",
        "WITH a AS (DELETE FROM k WHERE s = $1 AND t <= statement_timestamp()) SELECT clock_timestamp()",
        "INSERT INTO k (s, t) SELECT $1, clock_timestamp()",
        "SELECT 1 FROM k WHERE t < clock_timestamp() FOR NO KEY UPDATE SKIP LOCKED",
    ] {
        assert_eq!(refused(&db, good).await, Ok(()), "{good}");
    }
    for bad in [
        "UPDATE k SET t = clock_timestamp() + $1 WHERE s = $2",
        "WITH a AS (UPDATE k SET n = 1 WHERE s = $1 AND t <= clock_timestamp() RETURNING 1) SELECT 1",
        "DELETE FROM k WHERE s = $1 AND n > random()",
        "UPDATE k SET t = CASE WHEN n = 1 THEN now() END WHERE s = $1",
        "UPDATE k SET t = coalesce(t, statement_timestamp()) WHERE s = $1",
        "UPDATE k SET n = 1 WHERE s = $1 AND status::text = $2",
        "UPDATE k SET n = 1 WHERE s = $1 RETURNING n, now()",
    ] {
        assert!(refused(&db, bad).await.is_err(), "{bad}");
    }
}

/// Requests in all they can come to, workers, and operators.
#[tokio::test(flavor = "multi_thread")]
async fn no_statement_is_one_that_a_distributed_table_refuses() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    let app = App::default();
    let engine = engine_with(&db.another().await, &app, |builder| {
        builder.lease(Duration::from_secs(3)).back_off(Duration::ZERO, Duration::ZERO)
    });
    sent();
    requests(&db, &engine).await;
    renewed(&engine).await;
    workers(&db, &engine).await;
    operators(&db, &engine).await;
    // What a worker does for many rows of several scopes is not for a distributed table.
    let is_of_many = |sql: &String| sql.contains(" WITH ORDINALITY AS given (");
    let changes_rows = |sql: &String| {
        sql.contains("atomic_phases_") && !changes(sql).is_empty() && !is_of_many(sql)
    };
    let sent: Vec<String> = sent().into_iter().filter(changes_rows).collect();
    for kind in [
        "WITH advanced AS (UPDATE",
        "WITH atomic_phases_key AS (UPDATE",
        "UPDATE atomic_phases_keys SET status = 'failed_retryable'",
        "UPDATE atomic_phases_keys SET status = 'in_progress', lease_token",
        "UPDATE atomic_phases_keys SET locked_until",
        "DELETE FROM atomic_phases_keys",
        "WITH put_back AS (UPDATE",
        "WITH written AS (UPDATE",
        "WITH erased AS (UPDATE",
        "WITH settled AS (",
    ] {
        assert!(sent.iter().any(|sql| sql.starts_with(kind)), "no {kind} among {sent:#?}");
    }
    for sql in &sent {
        assert_eq!(refused(&db, sql).await, Ok(()), "{sql}");
    }
}

async fn requests(db: &Postgres, engine: &TestEngine<Postgres>) {
    finished(engine.call(&scope(), &key("fresh"), book(20)).await);
    for form in [Form::InTurn, Form::AsOne] {
        let name = key(&format!("{form:?}"));
        finished(engine.call(&scope(), &name, form.parcel(Trouble::None)).await);
    }
    engine.app().forget_bodies();
    failed(engine.call(&scope(), &key("again"), troubled(Trouble::RetryForeignOnce)).await);
    finished(engine.call(&scope(), &key("again"), troubled(Trouble::RetryForeignOnce)).await);
    engine.app().forget_bodies();
    finished(engine.call(&scope(), &key("call"), notify(Trouble::None)).await);
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    finished(engine.call(&scope(), &key("fresh"), book(20)).await);
}

/// A holder whose call takes long.
async fn renewed(engine: &TestEngine<Postgres>) {
    let mut gate = engine.app().provider.stop_after_the_effect();
    let call = engine.call(&scope(), &key("long"), book(20));
    let call = tokio::spawn(call.into_future());
    let waiting = gate.recv().await.unwrap();
    let renews = "UPDATE atomic_phases_keys SET locked_until";
    until(async || count(|sql| sql.starts_with(renews)) > 0).await;
    engine.app().provider.stop_no_more();
    drop(waiting);
    let _ = call.await.unwrap();
}

async fn workers(db: &Postgres, engine: &TestEngine<Postgres>) {
    let accepted = engine.call(&scope(), &key("accepted"), book(20)).accept().await;
    assert!(accepted.is_ok());
    dies_in_its_call(engine, "died", book(20)).await;
    dies_in_its_call(engine, "unknown", notify(Trouble::None)).await;
    db.let_leases_expire().await;
    completed(engine).await;
    reconciled(engine).await;
    let store = db.another().await;
    let fails = |error: fn() -> DeliveryError| {
        Handlers::new()
            .on("receipt", move |_: String, _| async move { Err(error()) })
            .on("thanks", async |_: String, _| Ok(()))
    };
    for handlers in [
        fails(|| DeliveryError::retry_after("busy", Duration::ZERO)),
        fails(|| DeliveryError::dead("no")),
    ] {
        Enqueuer::new(engine, handlers, config()).run_once().await.unwrap();
    }
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at WHERE idempotency_key = 'again'")
        .await;
    Reaper::new(&store, config()).run_once().await.unwrap();
}

async fn operators(db: &Postgres, engine: &TestEngine<Postgres>) {
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    db.sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    for nth in 0..2 {
        let page = ops.dead_jobs(None, 10).await.unwrap().rows;
        let job = page.first().expect("a dead job");
        match nth {
            0 => ops.retry_job(job.id, job.attempts, "again").await.unwrap(),
            _ => ops.discard_job(job.id, job.attempts, "no more").await.unwrap(),
        }
    }
    engine.revive_jobs().await.unwrap();
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    failed(engine.call(&scope(), &key("dead"), troubled(Trouble::RetryForeignAlways)).await);
    db.sql(
        "UPDATE atomic_phases_keys SET status = 'dead_letter', run_after = NULL, \
         waiting_since = created_at WHERE idempotency_key = 'dead'",
    )
    .await;
    let dead = ops.find(&scope(), &key("dead")).await.unwrap();
    let _ =
        ops.resolve(dead.request_id, &dead.version, Resolution::retry(), "again").await.unwrap();
    let settled = ops.list(Filter::new()).await.unwrap().rows;
    for row in settled.iter().take(20) {
        let _ = ops.erase(row.request_id, &row.version, "asked for").await;
    }
    let _ = engine.erase(&scope(), &key("fresh")).await;
    engine.erase_scope(&scope()).await.unwrap();
}
