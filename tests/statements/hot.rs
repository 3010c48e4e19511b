//! The condition for a distributed table (docs/scaling.md): every statement of a request on the key row names the
//! distribution column `scope` and touches one table. Read from what was sent, not from the source.

use crate::one_job::stages_one;
use crate::recorded::{alone, sent};
use crate::support::db::{pg, url_of};
use crate::support::*;
use atomic_phases::store::Postgres;

/// The words and signs of a statement, without the values after it.
pub fn words(sql: &str) -> Vec<String> {
    let text = sql.split("-- binds:").next().unwrap_or(sql);
    let mut words = vec![String::new()];
    for letter in text.chars() {
        let part_of_word = letter.is_alphanumeric() || "_$.".contains(letter);
        if !part_of_word {
            words.push(letter.to_string());
            words.push(String::new());
        } else if let Some(word) = words.last_mut() {
            word.push(letter);
        }
    }
    words.retain(|word| !word.trim().is_empty() && word != "\"");
    words
}

/// Whether `words` has `sequence` in it; `$` stands for any bind.
fn says(words: &[String], sequence: &[&str]) -> bool {
    words.windows(sequence.len()).any(|window| {
        window
            .iter()
            .zip(sequence)
            .all(|(word, expected)| word == expected || (*expected == "$" && word.starts_with('$')))
    })
}

/// The tables that are named where SQL names one.
fn tables(words: &[String]) -> Vec<&str> {
    let mut tables: Vec<&str> = words
        .windows(2)
        .filter(|pair| ["FROM", "INTO", "UPDATE", "JOIN", "USING"].contains(&pair[0].as_str()))
        .map(|pair| pair[1].as_str())
        .filter(|name| name.starts_with("atomic_phases_"))
        .collect();
    tables.sort_unstable();
    tables.dedup();
    tables
}

/// Whether a statement writes the key's row and a job: both have the same scope.
fn writes_both(sql: &str) -> bool {
    let tables = ["atomic_phases_keys", "atomic_phases_staged_jobs"];
    tables.iter().all(|table| {
        ["INTO", "UPDATE"].iter().any(|verb| sql.contains(&format!("{verb} {table} ")))
    })
}

/// The parts of a single statement that are for the engine's tables, each as if it were sent by itself; or the
/// whole statement.
fn parts(sql: &str) -> Vec<String> {
    if !sql.starts_with("WITH atomic_phases_") && !writes_both(sql) {
        return vec![sql.to_owned()];
    }
    let behind = sql.match_indices(" AS (").map(|(start, _)| &sql[start + 5..]);
    let inside = behind.map(|rest| {
        let mut open = 1;
        let end = rest.find(|letter| {
            open += i32::from(letter == '(') - i32::from(letter == ')');
            open == 0
        });
        &rest[..end.unwrap_or(rest.len())]
    });
    let tables = ["INTO atomic_phases_", "UPDATE atomic_phases_"];
    let ours = inside.filter(|part| tables.iter().any(|table| part.contains(table)));
    // It depends on the others only by the row of the key's part, or its absence.
    ours.map(|part| {
        part.replace(" FROM atomic_phases_key", "").replace(" FROM atomic_phases_begun", "")
    })
    .collect()
}

/// The reason why a statement cannot be routed to one shard by its scope.
fn routed(sql: &str) -> Result<(), &'static str> {
    let words = words(sql);
    if tables(&words).len() != 1 {
        return Err("more than one table");
    }
    if says(&words, &["INSERT", "INTO"]) {
        // The first column, which takes the first bind, routes the row.
        let into = words.iter().position(|word| word == "INTO").unwrap_or_default();
        let named = says(&words[into + 2..into + 4], &["(", "scope"]);
        let bound = says(&words, &["SELECT", "$", ","]);
        if !named || !bound {
            return Err("an INSERT without the scope");
        }
        let reads = says(&words, &["FROM", "atomic_phases_keys"]);
        let by_key =
            ["atomic_phases_keys", "WHERE", "scope", "=", "$", "AND", "idempotency_key", "=", "$"];
        return if reads && !says(&words, &by_key) {
            Err("a look without the key")
        } else {
            Ok(())
        };
    }
    let filter = words.iter().position(|word| word == "WHERE").ok_or("no WHERE")?;
    let filter = &words[filter..];
    if says(filter, &["OR"]) && !says(filter, &["(", "status", "<", ">"]) {
        return Err("an OR beside the scope");
    }
    match says(filter, &["WHERE", "scope", "=", "$"]) {
        true if says(filter, &["AND", "idempotency_key", "=", "$"]) => Ok(()),
        true => Err("no key in the WHERE"),
        false => Err("no scope in the WHERE"),
    }
}

#[test]
fn the_reader_of_statements_knows_a_bad_one() {
    let good = "SELECT 1 FROM atomic_phases_keys WHERE scope = $1 AND idempotency_key = $2";
    assert_eq!(routed(good), Ok(()));
    assert!(routed("SELECT 1 FROM atomic_phases_keys WHERE idempotency_key = $1").is_err());
    assert!(routed("UPDATE atomic_phases_keys SET status = $1 WHERE scope = $2").is_err());
    assert!(
        routed("DELETE FROM atomic_phases_keys WHERE scope = $1 OR idempotency_key = $2").is_err()
    );
    assert!(
        routed(&format!("{good} AND EXISTS (SELECT 1 FROM atomic_phases_staged_jobs)")).is_err()
    );
    assert!(
        routed("INSERT INTO atomic_phases_keys (idempotency_key, scope) SELECT $1, $2").is_err()
    );
    assert!(routed("INSERT INTO atomic_phases_keys (scope) SELECT 'all'").is_err());
    let made = "WITH made AS (INSERT INTO atomic_phases_keys (scope) SELECT $1, $2)";
    assert_eq!(routed(&format!("{made} {good}")), Ok(()));
    assert!(routed(&format!("{made} SELECT 1 FROM atomic_phases_keys WHERE scope = $3")).is_err());
}

/// Fresh, replayed, released and resumed requests, with an at-most-once call and a replaced key: each statement of
/// a request on the engine's tables is for one shard.
#[tokio::test(flavor = "multi_thread")]
async fn every_statement_of_a_request_names_its_scope_and_one_table() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    sent();

    finished(engine.call(&scope(), &key("fresh"), book(20)).await);
    finished(engine.call(&scope(), &key("fresh"), book(20)).await);
    app.forget_bodies();
    failed(engine.call(&scope(), &key("again"), troubled(Trouble::RetryForeignOnce)).await);
    finished(engine.call(&scope(), &key("again"), troubled(Trouble::RetryForeignOnce)).await);
    app.forget_bodies();
    finished(engine.call(&scope(), &key("call"), notify(Trouble::None)).await);
    for form in [Form::OneByOne, Form::SingleStatement] {
        let name = key(&format!("{form:?}"));
        finished(engine.call(&scope(), &name, form.parcel(Trouble::None)).await);
    }
    stages_one(&db, "one-job").await;
    let before = sent();
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    sent();
    finished(engine.call(&scope(), &key("fresh"), book(20)).await);
    let sent = [before, sent()].concat();

    // A query about a table's name reads the catalog.
    let by_name = "to_regclass('atomic_phases_staged_jobs')";
    let names_a_table = |sql: &&String| sql.replace(by_name, "").contains("atomic_phases_");
    let ours: Vec<&String> = sent.iter().filter(names_a_table).collect();
    for kind in [
        "SELECT request_id",
        "WITH begun",
        "WITH staged",
        "UPDATE",
        "DELETE",
        "WITH advanced",
        "WITH atomic_phases_begun",
        "WITH atomic_phases_key",
    ] {
        assert!(ours.iter().any(|sql| sql.starts_with(kind)), "no {kind} among {ours:#?}");
    }
    let (mut created, mut found) = (0, 0);
    for sql in &ours {
        let plan = plan_of(&db, BY_INDEX, "", sql).await;
        created += plan.matches("Conflict Arbiter Indexes: atomic_phases_keys_pkey").count();
        found += plan.matches("using atomic_phases_keys_pkey on atomic_phases_keys").count();
        assert!(!plan.contains("Seq Scan on atomic_phases_"), "{sql}\n{plan}");
    }
    assert!(created > 0 && found > 0, "created by the primary key {created}, found {found}");
    let parts: Vec<String> = ours.iter().flat_map(|sql| parts(sql)).collect();
    let single = ours.iter().filter(|sql| writes_both(sql)).count();
    assert_eq!(
        single, 6,
        "the last phases that stage jobs, of a Tx and of a batch that goes as a single statement"
    );
    assert_eq!(parts.len(), ours.len() + single);
    for sql in parts {
        assert_eq!(routed(&sql), Ok(()), "{sql}");
    }
}

/// A table is scanned only if no index serves.
const BY_INDEX: &str =
    "SET LOCAL enable_seqscan = off; SET LOCAL plan_cache_mode = force_generic_plan";

/// The plan of a sent statement for any values, by these settings. `types`: of its binds, in parentheses; none, where
/// the server knows them.
pub(crate) async fn plan_of(db: &Postgres, settings: &str, types: &str, sql: &str) -> String {
    // Imported here only, because its `execute()` applies to every type, engines included.
    use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
    let text = sql.split("-- binds:").next().unwrap_or(sql);
    let binds = (1..).take_while(|bind| text.contains(&format!("${bind}"))).count();
    let values =
        if binds == 0 { String::new() } else { format!("({})", ["NULL"].repeat(binds).join(", ")) };
    let function = format!(
        "CREATE FUNCTION pg_temp.plan_of() RETURNS text LANGUAGE plpgsql AS $plan$ \
         DECLARE line text; plan text := ''; BEGIN \
         FOR line IN EXECUTE 'EXPLAIN EXECUTE sent{values}' LOOP \
         plan := plan || line || chr(10); END LOOP; RETURN plan; END $plan$"
    );
    let url = url_of(db);
    let mut conn = pg(&url).await;
    let all = format!("BEGIN; {settings}; PREPARE sent {types} AS {text}; {function}");
    conn.batch_execute(&all).await.unwrap_or_else(|error| panic!("{error}: {text}"));
    let plan = diesel::select(diesel::dsl::sql::<diesel::sql_types::Text>("pg_temp.plan_of()"));
    RunQueryDsl::get_result::<String>(plan, &mut *conn).await.unwrap()
}
