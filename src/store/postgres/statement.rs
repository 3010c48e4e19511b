//! [`Statement`]: what a phase handed over, until it is sent.

use std::any::TypeId;
use std::borrow::Borrow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};

use diesel::QueryResult;
use diesel::pg::{Pg, PgMetadataLookup, PgQueryBuilder, PgTypeMetadata};
use diesel::query_builder::bind_collector::RawBytesBindCollector;
use diesel::query_builder::{AstPass, QueryBuilder, QueryFragment, QueryId};

use crate::lock::lock;
use crate::store::ByText;
use crate::store::tokenizer::{Dialect, Token, Tokens, controls_transaction};

/// The first number that diesel gives a bind when a statement's text is looked at: a lower one in it
/// is a number that the application wrote.
const FIRST_BIND: usize = 1000;

/// A statement of a phase, to be sent later.
pub struct Statement {
    query: Box<dyn QueryFragment<Pg> + Send>,
    about: Arc<About>,
}

/// What can be told of a statement before it is sent.
pub(super) struct About {
    form: Form,
    pub(super) binds: usize,
    /// Whether it would end the transaction.
    pub(super) ends: bool,
    /// Whether it can be a part of another statement.
    pub(super) merges: bool,
    /// Whether it changes rows and returns none: it stays valid whatever becomes of its table. Where a
    /// column is added to what a prepared statement returns, it is an error for as long as it is kept
    /// ("cached plan must not change result type").
    lasts: bool,
    /// Whether it has an SQL form, with its values.
    has_form: bool,
}

/// What tells a statement from others.
#[derive(PartialEq, Eq)]
struct Form {
    /// Of the text.
    hash: u64,
    text: String,
    /// Of its binds.
    types: Vec<PgTypeMetadata>,
    /// Whether its text is the same each time, as far as diesel knows.
    is_constant: bool,
    /// Whether it has to travel alone: a type whose number diesel has to ask the server for is asked
    /// for in front of the lock on which the order of statements rests, so that others would overtake it.
    alone: bool,
}

/// What is known of the statements to which diesel gives a static query id, as many as the program has: their text is the
/// same each time.
static CONSTANT: LazyLock<RwLock<HashMap<TypeId, Arc<About>>>> = LazyLock::new(RwLock::default);

/// What is known of the others, by their form, of [`MAX_FORMS`] at most. When it is full it begins anew, and those that are in
/// use come back: an application that makes a text for each value has no end of them.
static VARYING: LazyLock<RwLock<HashSet<Arc<About>>>> = LazyLock::new(RwLock::default);

const MAX_FORMS: usize = 256;

/// Most bytes of a text that is kept there.
const MAX_LENGTH: usize = 16 << 10;

impl Hash for Form {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl PartialEq for About {
    fn eq(&self, other: &Self) -> bool {
        self.form == other.form
    }
}

impl Eq for About {}

impl Hash for About {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.form.hash(state);
    }
}

impl Borrow<Form> for Arc<About> {
    fn borrow(&self) -> &Form {
        &self.form
    }
}

impl Statement {
    pub(super) fn of<Q>(query: Q) -> Self
    where
        Q: QueryFragment<Pg> + QueryId + Send + 'static,
    {
        // diesel's own rule for keeping a statement prepared by its type.
        let is_constant = query.is_safe_to_cache_prepared(&Pg).unwrap_or(false);
        let about = match Q::query_id().filter(|_| is_constant) {
            Some(id) => About::of_a_type(id, &query),
            None => About::of_a_form(&query, is_constant),
        };
        Self { query: Box::new(query), about }
    }

    /// The statement by itself.
    pub(super) fn to_send(
        &self,
        registry: &StatementRegistry,
    ) -> ByText<&(dyn QueryFragment<Pg> + Send)> {
        let about = self.about();
        let kept = about.form.is_constant || (about.lasts && registry.admits(&about.form.text));
        ByText { query: &*self.query, kept }
    }

    /// The statement as a part of another.
    pub(super) fn walk<'s>(&'s self, out: AstPass<'_, 's, Pg>) -> QueryResult<()> {
        self.query.walk_ast(out)
    }

    pub(super) fn about(&self) -> &About {
        &self.about
    }

    /// It is equal to that of a statement with the same text and the same types of binds, and of no other. `None` where that
    /// cannot be said: two types of the application may look the same until the server is asked for their numbers.
    pub(super) fn known(&self) -> Option<&Arc<About>> {
        (self.about.has_form && !self.about.form.alone).then_some(&self.about)
    }
}

impl About {
    fn of_a_type(id: TypeId, query: &impl QueryFragment<Pg>) -> Arc<Self> {
        let known = CONSTANT.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        known.unwrap_or_else(|| {
            let (form, has_form) = Form::of(query, true);
            if !has_form {
                return Arc::new(Self::of(form, false));
            }
            let mut all = CONSTANT.write().unwrap_or_else(PoisonError::into_inner);
            all.entry(id).or_insert_with(|| Arc::new(Self::of(form, true))).clone()
        })
    }

    /// To read a text costs five times as much as to build it.
    fn of_a_form(query: &impl QueryFragment<Pg>, is_constant: bool) -> Arc<Self> {
        let (form, has_form) = Form::of(query, is_constant);
        if !has_form {
            return Arc::new(Self::of(form, false));
        }
        let known = VARYING.read().unwrap_or_else(PoisonError::into_inner).get(&form).cloned();
        known.unwrap_or_else(|| {
            // Read outside of the lock, for which the statements of other requests would wait.
            let about = Arc::new(Self::of(form, true));
            if about.form.text.len() <= MAX_LENGTH {
                let mut all = VARYING.write().unwrap_or_else(PoisonError::into_inner);
                if all.len() >= MAX_FORMS {
                    all.clear();
                }
                all.insert(about.clone());
            }
            about
        })
    }

    fn of(form: Form, has_form: bool) -> Self {
        let text = &form.text;
        Self {
            binds: form.types.len(),
            ends: controls_transaction(text, Dialect::Postgres),
            merges: is_a_part(text),
            lasts: lasts(text),
            has_form,
            form,
        }
    }

    /// Whether it has to travel alone.
    pub(super) fn alone(&self) -> bool {
        self.form.alone
    }
}

impl Form {
    /// And whether the statement has an SQL form, with these values. What has none is told again when it
    /// is to be sent, as that statement's error.
    fn of(query: &impl QueryFragment<Pg>, is_constant: bool) -> (Self, bool) {
        let mut asked = Asked(false);
        let mut text = PgQueryBuilder::default();
        (1..FIRST_BIND).for_each(|_| text.push_bind_param_value_only());
        let mut binds = RawBytesBindCollector::new();
        let bound = query.collect_binds(&mut binds, &mut asked, &Pg);
        let told = query.to_sql(&mut text, &Pg);
        let (text, types) = (text.finish(), binds.metadata);
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&text);
        let form = Self { hash, text, types, is_constant, alone: asked.0 };
        (form, bound.and(told).is_ok())
    }
}

impl Hash for Statement {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.about.hash(state);
    }
}

/// Whether a type's number was asked for.
struct Asked(bool);

impl PgMetadataLookup for Asked {
    fn lookup_type(&mut self, _: &str, _: Option<&str>) -> PgTypeMetadata {
        self.0 = true;
        PgTypeMetadata::new(0, 0)
    }
}

/// Whether a text can stand in parentheses behind `WITH … AS`: it writes, it is one statement to its
/// end, it numbers no binds by itself, and the engine's tables are none of its business. A text that
/// is not a statement by itself must not become one in the engine's parentheses.
fn is_a_part(text: &str) -> bool {
    // What a quote with a backslash in it is depends on the server's settings.
    if !writes(text) || text.contains('\\') || names_our_tables(text) {
        return false;
    }
    let mut depth = 0_usize;
    for token in Tokens::of(text, Dialect::Postgres) {
        match token {
            Token::Sign('(') => depth += 1,
            Token::Sign(')') if depth > 0 => depth -= 1,
            Token::Sign(')' | ';' | '$') | Token::Comment | Token::Unterminated => return false,
            Token::Quoted(quoted) if quoted.starts_with('$') => return false,
            Token::Bind(bind) if bind[1..].parse().map_or(true, |n: usize| n < FIRST_BIND) => {
                return false;
            }
            _ => {}
        }
    }
    depth == 0
}

fn names_our_tables(text: &str) -> bool {
    text.to_ascii_lowercase().contains("atomic_phases")
}

fn writes(text: &str) -> bool {
    let word = text.split_ascii_whitespace().next().unwrap_or_default();
    ["INSERT", "UPDATE", "DELETE"].iter().any(|verb| word.eq_ignore_ascii_case(verb))
}

/// Whether a statement changes rows and returns none.
fn lasts(text: &str) -> bool {
    writes(text) && !text.to_ascii_lowercase().contains("returning")
}

/// Whether a connection may keep a statement prepared that diesel would prepare anew.
pub(super) fn keeps_prepared(query: &impl QueryFragment<Pg>, registry: &StatementRegistry) -> bool {
    if query.is_safe_to_cache_prepared(&Pg).unwrap_or(true) {
        return false;
    }
    let mut text = PgQueryBuilder::default();
    let told = query.to_sql(&mut text, &Pg).is_ok();
    let text = text.finish();
    told && lasts(&text) && registry.admits(&text)
}

/// The texts that phases handed over so far.
///
/// diesel prepares an `UPDATE` anew each time, one round trip more, because its text may differ each
/// time and a connection keeps what it prepared. Here the text is looked at: the first
/// [`MAX_TEXTS`](Self::MAX_TEXTS) different ones are kept, which in nearly every application is all.
pub(super) struct StatementRegistry {
    hasher: RandomState,
    /// How often in a row a text was refused as a part of another, and succeeded by itself.
    refused: Mutex<HashMap<u64, u8>>,
}

impl StatementRegistry {
    const MAX_TEXTS: usize = 256;
    /// After so many, it is not tried any more.
    const MAX_REFUSALS: u8 = 3;

    pub(super) fn new() -> Self {
        Self { hasher: RandomState::new(), refused: Mutex::new(HashMap::new()) }
    }

    /// Whether there is room for the text on each connection.
    pub(super) fn admits(&self, text: &(impl Hash + ?Sized)) -> bool {
        self.known(self.hasher.hash_one(text)).is_some()
    }

    /// To send these statements as a single statement, where there is room for it and the server takes it, as
    /// far as is known.
    pub(super) fn attempt(&self, text: &impl Hash) -> Option<MergeAttempt> {
        let text = self.hasher.hash_one(text);
        let refused = self.known(text).filter(|&times| times < Self::MAX_REFUSALS)?;
        Some(MergeAttempt { text, refused })
    }

    /// Whether the server accepted them this time, as a single statement.
    pub(super) fn ended(&self, attempt: MergeAttempt, accepted: bool) {
        let times = if accepted { 0 } else { attempt.refused.saturating_add(1) };
        if times != attempt.refused {
            lock(&self.refused).insert(attempt.text, times);
        }
    }

    /// How often in a row it was refused; `None` where there is no room for it.
    fn known(&self, text: u64) -> Option<u8> {
        let mut refused = lock(&self.refused);
        let has_room = refused.len() < Self::MAX_TEXTS;
        match refused.entry(text) {
            Entry::Occupied(times) => Some(*times.get()),
            Entry::Vacant(new) if has_room => Some(*new.insert(0)),
            Entry::Vacant(_) => None,
        }
    }
}

/// Statements that are tried as a single statement.
#[derive(Clone, Copy)]
pub(super) struct MergeAttempt {
    text: u64,
    refused: u8,
}

impl fmt::Debug for StatementRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatementRegistry").finish_non_exhaustive()
    }
}

opaque! {
    [] Statement;
}

#[cfg(test)]
mod tests {
    use diesel::query_builder::SqlQuery;
    use diesel::result::Error;
    use diesel::sql_query;
    use diesel::sql_types::{BigInt, Integer};

    use super::*;

    #[test]
    fn what_can_be_a_part_of_another_statement() {
        for sql in [
            "INSERT INTO a VALUES (1)",
            " update a SET b = '$' RETURNING b",
            "DELETE FROM a",
            "INSERT INTO \"a(\" VALUES (')', 'it''s')",
        ] {
            assert!(Statement::of(sql_query(sql)).about().merges, "{sql}");
        }
        for sql in [
            "SELECT pg_notify('a', 'b')",
            "WITH x AS (DELETE FROM a RETURNING *) INSERT INTO b SELECT * FROM x",
            "LOCK TABLE a",
            "INSERT INTO a VALUES (1);",
            "INSERT INTO a VALUES (1) -- the end",
            "INSERT INTO a VALUES (1) /* the end",
            "UPDATE atomic_phases_keys SET status = 'completed'",
            "UPDATE ATOMIC_PHASES_KEYS SET status = 'completed'",
            // Not one statement, and two in the parentheses of another.
            "INSERT INTO a VALUES (1)), x AS (DELETE FROM b WHERE (true)",
            "INSERT INTO a VALUES ('(')), x AS (DELETE FROM b WHERE (')' = ')')",
            "INSERT INTO a VALUES ('1",
            "INSERT INTO a VALUES (E'\\'), x AS (DELETE FROM b WHERE (true) --')",
            "INSERT INTO a VALUES ($x$)), x AS (DELETE FROM b WHERE (1 = 1)$x$)",
            "",
        ] {
            assert!(!Statement::of(sql_query(sql)).about().merges, "{sql}");
        }
        // Whose bind has a number of the application's: in another statement it would be another's.
        let numbered = sql_query("INSERT INTO a VALUES ($1)").bind::<Integer, _>(1);
        assert!(!Statement::of(numbered).about().merges);
        let literal = diesel::dsl::sql::<Integer>("DELETE FROM a WHERE b = ").bind::<Integer, _>(1);
        assert!(Statement::of(literal).about().merges, "diesel numbers this one");
    }

    /// One that differs from others in its text or in the types of its binds.
    fn update(column: &str) -> SqlQuery {
        sql_query(format!("UPDATE a SET {column} = $1"))
    }

    #[test]
    fn statements_are_one_where_text_and_types_are() {
        let number = Statement::of(update("b").bind::<Integer, _>(1));
        let other_value = Statement::of(update("b").bind::<Integer, _>(2));
        let other_type = Statement::of(update("b").bind::<BigInt, _>(1));
        let other_text = Statement::of(update("c").bind::<Integer, _>(1));
        assert!(number.known().is_some());
        assert!(number.known() == other_value.known());
        assert!(number.known() != other_type.known());
        assert!(number.known() != other_text.known());
        // Its number is the server's to say, and another type may have the same name in another schema.
        let own = Statement::of(update("b").bind::<OwnType, _>("a"));
        assert!(own.about().alone() && own.known().is_none());
    }

    /// So many texts that come once keep no other one from being known, and are not kept for ever.
    #[test]
    fn a_text_is_known_however_many_others_the_application_has_made() {
        for column in 0..2 * MAX_FORMS {
            Statement::of(update(&format!("made_{column}")).bind::<Integer, _>(1));
        }
        let late = || Statement::of(update("late").bind::<Integer, _>(1));
        let (one, other) = (late(), late());
        assert!(one.known().is_some() && one.known() == other.known());
        let long = Statement::of(update(&"l".repeat(MAX_LENGTH)).bind::<Integer, _>(1));
        assert!(long.known().is_some());
        let kept = VARYING.read().unwrap();
        assert!(kept.len() <= MAX_FORMS, "{}", kept.len());
        assert!(!kept.contains(long.about()), "a long one");
    }

    /// Its text is that of another one up to where it has none.
    #[test]
    fn a_statement_without_an_sql_form_is_not_known_by_that_of_another() {
        let of = |has_form| Statement::of(Sometimes { has_form });
        assert!(of(true).known().is_some());
        assert!(of(false).known().is_none());
    }

    #[derive(diesel::query_builder::QueryId)]
    struct Sometimes {
        has_form: bool,
    }

    impl QueryFragment<Pg> for Sometimes {
        fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
            out.unsafe_to_cache_prepared();
            out.push_sql("UPDATE a SET b = 1");
            match self.has_form {
                true => Ok(()),
                false => Err(Error::QueryBuilderError("it has none".into())),
            }
        }
    }

    /// A type of an application's.
    #[derive(diesel::sql_types::SqlType, diesel::query_builder::QueryId)]
    #[diesel(postgres_type(name = "own"))]
    struct OwnType;

    impl diesel::serialize::ToSql<OwnType, diesel::pg::Pg> for str {
        fn to_sql<'b>(
            &'b self,
            out: &mut diesel::serialize::Output<'b, '_, diesel::pg::Pg>,
        ) -> diesel::serialize::Result {
            std::io::Write::write_all(out, self.as_bytes())?;
            Ok(diesel::serialize::IsNull::No)
        }
    }

    #[test]
    fn a_connection_keeps_so_many_texts_and_no_more() {
        let registry = StatementRegistry::new();
        for text in 0..StatementRegistry::MAX_TEXTS {
            assert!(registry.admits(&text.to_string()));
        }
        assert!(!registry.admits("one more"));
        assert!(registry.admits("0"), "known");
    }

    #[test]
    fn a_text_that_is_refused_again_and_again_is_not_tried_any_more() {
        let registry = StatementRegistry::new();
        assert!(registry.admits(&"a"));
        for _ in 0..StatementRegistry::MAX_REFUSALS - 1 {
            registry.ended(registry.attempt(&"a").unwrap(), false);
        }
        registry.ended(registry.attempt(&"a").unwrap(), true);
        for _ in 0..StatementRegistry::MAX_REFUSALS {
            registry.ended(registry.attempt(&"a").expect("in a row"), false);
        }
        assert!(registry.attempt(&"a").is_none());
        assert!(registry.attempt(&"b").is_some());
    }
}
