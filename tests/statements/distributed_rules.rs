//! Which statements that change rows a distributed table refuses (docs/scaling.md): rules of Citus, read from its
//! planner (`TargetlistAndFunctionsSupported`, `MultiRouterPlannableQuery`).
//!
//! Citus plans a query in parentheses that reads no table separately, and its result is a constant of the surrounding
//! statement. For a query that reads a table, the planner must be able to derive the shard: the query names the scope
//! by a parameter, or is a mandatory `EXISTS`, which is joined to the changed row. Otherwise Citus sends the statement
//! to each shard, and refuses it if it locks rows or reads the clock.

use std::collections::BTreeSet;

use crate::hot::words;
use crate::recorded::alone;
use crate::support::*;
use atomic_phases::store::Postgres;

/// The words of a statement from each `UPDATE` and `DELETE` on.
pub fn changes(sql: &str) -> Vec<Vec<String>> {
    let words = words(sql);
    let starts = words.iter().enumerate().filter(|(place, word)| {
        let before = place.checked_sub(1).map_or("", |before| words[before].as_str());
        ["UPDATE", "DELETE"].contains(&word.as_str()) && !["FOR", "KEY"].contains(&before)
    });
    starts.map(|(start, _)| until_closed(&words[start..]).to_vec()).collect()
}

/// Up to the end of the enclosing parenthesis.
fn until_closed(words: &[String]) -> &[String] {
    let mut depth = 0;
    let end = words.iter().position(|word| {
        depth += i32::from(word == "(") - i32::from(word == ")");
        depth < 0
    });
    &words[..end.unwrap_or(words.len())]
}

/// Whether a query in parentheses begins at this place, after the parenthesis.
fn begins_query(words: &[String], place: usize) -> bool {
    place > 0 && words[place - 1] == "(" && words.get(place).is_some_and(|word| word == "SELECT")
}

/// The same with a `?` for each query in it.
fn without_queries(words: &[String]) -> Vec<String> {
    let (mut kept, mut place) = (Vec::new(), 0);
    while place < words.len() {
        if begins_query(words, place) {
            kept.push("?".to_owned());
            place += until_closed(&words[place..]).len();
        } else {
            kept.push(words[place].clone());
            place += 1;
        }
    }
    kept
}

/// A query in a statement that changes rows.
struct Query<'a> {
    words: &'a [String],
    /// It is an `EXISTS` that must hold: only `AND` connects it with other conditions.
    is_required: bool,
}

/// The queries in it, and in those.
fn queries(change: &[String]) -> Vec<Query<'_>> {
    // For each open parenthesis, whether it contains a query.
    let (mut open, mut queries) = (Vec::new(), Vec::new());
    for (place, word) in change.iter().enumerate() {
        match word.as_str() {
            "(" => {
                let is_query = begins_query(change, place + 1);
                if is_query {
                    let exists = place > 0 && change[place - 1] == "EXISTS";
                    let is_required = exists && open.last().copied().unwrap_or(true);
                    queries.push(Query { words: until_closed(&change[place + 1..]), is_required });
                }
                open.push(is_query);
            }
            ")" => {
                open.pop();
            }
            _ => {}
        }
    }
    queries
}

impl Query<'_> {
    /// Whether the planner can derive its shard.
    fn is_of_one_shard(&self) -> bool {
        let own = without_queries(self.words);
        let reads = own.iter().any(|word| word.starts_with("atomic_phases_"));
        let names = own.windows(3).any(|three| {
            let is_scope = three[0] == "scope" || three[0].ends_with(".scope");
            is_scope && three[1] == "=" && three[2].starts_with('$')
        });
        let locks = own.iter().any(|word| word == "FOR");
        !reads || names || (self.is_required && !locks)
    }
}

/// The text of its `RETURNING`.
fn returned(change: &[String]) -> &[String] {
    let mut depth = 0;
    let from = change.iter().position(|word| {
        depth += i32::from(word == "(") - i32::from(word == ")");
        depth == 0 && word == "RETURNING"
    });
    &change[from.unwrap_or(change.len())..]
}

/// The parts that are evaluated only if they are needed.
fn lazy(words: &[String]) -> Vec<String> {
    let (mut inside, mut cases, mut parens, mut depth) = (Vec::new(), 0, Vec::new(), 0);
    for (place, word) in words.iter().enumerate() {
        match word.as_str() {
            "CASE" => cases += 1,
            "END" => cases -= 1,
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
        if cases > 0 || !parens.is_empty() {
            inside.push(word.clone());
        }
    }
    inside
}

/// The functions that are called there.
fn calls(words: &[String]) -> BTreeSet<String> {
    let is_name =
        |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c));
    let calls = words.windows(2).filter(|pair| pair[1] == "(" && is_name(&pair[0]));
    // `extract` is immutable for an interval, as it is used here; for a time it would not be.
    calls.map(|pair| pair[0].clone()).filter(|name| name != "extract").collect()
}

/// The columns that are cast: no cast to another type of a table's row is immutable.
fn cast_columns(words: &[String]) -> Vec<String> {
    let is_column = |word: &str| word.chars().next().is_some_and(|c| c.is_ascii_lowercase());
    let casts = words.windows(3).filter(|three| three[1] == ":" && three[2] == ":");
    casts.map(|three| three[0].clone()).filter(|word| is_column(word)).collect()
}

/// Whether an `UPDATE` in it has a query that reads no table. Citus sends the result to the row's node before the
/// update, which begins a transaction there. Such a node does not count as one to which the update expands the
/// coordinator's transaction. So if another node has changes, Citus commits both one after the other, and not in
/// two phases. (`Activate2PCIfModifyingTransactionExpandsToNewNode`; seen on 12.1.12, and the same in 14.0.)
pub fn asks_first(sql: &str) -> bool {
    changes(sql).iter().any(|change| !queries(change).is_empty())
}

/// Why a distributed table refuses it, if it does.
pub async fn refused(db: &Postgres, sql: &str) -> Result<(), String> {
    for change in changes(sql) {
        let own = without_queries(&change);
        for (called, what, place) in [
            (calls(&own), "provolatile = 'v'", "what it changes"),
            (calls(&lazy(&own)), "provolatile <> 'i'", "a CASE or a COALESCE"),
            (calls(returned(&own)), "provolatile <> 'i'", "its RETURNING"),
        ] {
            let called = those(db, called, what).await;
            if !called.is_empty() {
                return Err(format!("calls {called} in {place}"));
            }
        }
        let cast = cast_columns(&own);
        if !cast.is_empty() {
            return Err(format!("casts {cast:?}"));
        }
        if let Some(query) = queries(&change).iter().find(|query| !query.is_of_one_shard()) {
            return Err(format!("does not say of which shard this is: {}", query.words.join(" ")));
        }
    }
    Ok(())
}

/// Those of these functions that the server reports as such.
async fn those(db: &Postgres, calls: BTreeSet<String>, what: &str) -> String {
    let names = calls.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    db.text(&format!(
        "SELECT coalesce(string_agg(DISTINCT proname, ' '), '') FROM pg_proc WHERE {what} \
         AND proname = ANY(ARRAY[{names}]::text[])"
    ))
    .await
}

/// Each of these was tried on Citus 12.1, with `k` distributed like the engine's tables. The last three except one
/// are executed there, on every shard.
#[tokio::test(flavor = "multi_thread")]
async fn the_rules_of_a_distributed_table_know_a_bad_statement() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    for good in [
        "UPDATE k SET t = (SELECT clock_timestamp() + $1) WHERE scope = $2 AND status = $3::some_type",
        "UPDATE k SET t = CASE WHEN t < (SELECT clock_timestamp()) THEN t END WHERE scope = $1",
        "WITH a AS (DELETE FROM k WHERE scope = $1 AND t <= statement_timestamp()) SELECT clock_timestamp()",
        "INSERT INTO k (scope, t) SELECT $1, clock_timestamp()",
        "SELECT 1 FROM k WHERE scope = $1 AND t < clock_timestamp() FOR NO KEY UPDATE SKIP LOCKED",
        "UPDATE k SET n = 1 WHERE scope = $1 AND EXISTS (SELECT 1 FROM atomic_phases_keys WHERE scope = $2 FOR UPDATE SKIP LOCKED)",
        "UPDATE k SET n = 1 WHERE scope = $1 AND NOT EXISTS (SELECT 1 FROM atomic_phases_staged_jobs AS o WHERE o.scope = k.scope)",
        "UPDATE k SET n = 1 WHERE scope = $1 AND 0 = (SELECT count(*) FROM (SELECT FROM atomic_phases_keys AS o \
         WHERE o.scope = $2 FOR SHARE SKIP LOCKED) AS locked)",
        "UPDATE k SET n = 1 WHERE scope = $1 RETURNING n, (SELECT clock_timestamp())",
        "UPDATE k SET n = 1 WHERE scope = $1 RETURNING extract(epoch FROM t - u)",
    ] {
        assert_eq!(refused(&db, good).await, Ok(()), "{good}");
    }
    for bad in [
        "UPDATE k SET t = clock_timestamp() + $1 WHERE scope = $2",
        "WITH a AS (UPDATE k SET n = 1 WHERE scope = $1 AND t <= clock_timestamp() RETURNING 1) SELECT 1",
        "DELETE FROM k WHERE scope = $1 AND n > random()",
        "UPDATE k SET t = CASE WHEN n = 1 THEN now() END WHERE scope = $1",
        "UPDATE k SET t = coalesce(t, statement_timestamp()) WHERE scope = $1",
        "UPDATE k SET n = 1 WHERE scope = $1 AND status::text = $2",
        "UPDATE k SET n = 1 WHERE scope = $1 RETURNING n, now()",
        "UPDATE k SET n = 1 WHERE scope = $1 AND 0 = (SELECT count(*) FROM atomic_phases_keys AS o WHERE o.scope = k.scope)",
        "UPDATE k SET n = 1 WHERE scope = $1 AND 0 = (SELECT count(*) FROM (SELECT FROM atomic_phases_keys AS o \
         WHERE o.scope = k.scope FOR SHARE SKIP LOCKED) AS locked)",
        "UPDATE k SET n = 1 WHERE scope = $1 AND (n = 0 OR NOT EXISTS (SELECT 1 FROM atomic_phases_keys AS o WHERE o.scope = k.scope))",
        "DELETE FROM k WHERE scope = $1 AND EXISTS (SELECT 1 FROM atomic_phases_keys AS o WHERE o.scope = k.scope FOR UPDATE SKIP LOCKED)",
    ] {
        assert!(refused(&db, bad).await.is_err(), "{bad}");
    }
}
