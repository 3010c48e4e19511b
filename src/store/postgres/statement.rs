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
    /// Of the text.
    hash: u64,
    pub(super) binds: usize,
    /// Whether it would end the transaction.
    pub(super) ends: bool,
    /// Whether it can be a part of another statement.
    pub(super) merges: bool,
    /// Whether it changes rows and returns none: it stays valid whatever becomes of its table. Where a
    /// column is added to what a prepared statement returns, it is an error for as long as it is kept
    /// ("cached plan must not change result type").
    lasts: bool,
    /// Whether another statement of the same form has this very `About`.
    is_shared: bool,
}

/// What tells a statement from others.
#[derive(PartialEq, Eq, Hash)]
struct Form {
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

/// What is known of the others, by their form: of the first [`MAX_FORMS`].
static VARYING: LazyLock<RwLock<HashSet<ByForm>>> = LazyLock::new(RwLock::default);

const MAX_FORMS: usize = 256;

struct ByForm(Arc<About>);

impl Borrow<Form> for ByForm {
    fn borrow(&self) -> &Form {
        &self.0.form
    }
}

impl PartialEq for ByForm {
    fn eq(&self, other: &Self) -> bool {
        self.0.form == other.0.form
    }
}

impl Eq for ByForm {}

impl Hash for ByForm {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.form.hash(state);
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

    /// What each statement with this text and these types of binds has, and no other. `None` where that cannot be said:
    /// two types of the application may look the same until the server is asked for their numbers.
    pub(super) fn known(&self) -> Option<&Arc<About>> {
        (self.about.is_shared && !self.about.form.alone).then_some(&self.about)
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

    /// To read a text is five times as dear as to build it.
    fn of_a_form(query: &impl QueryFragment<Pg>, is_constant: bool) -> Arc<Self> {
        let (form, has_form) = Form::of(query, is_constant);
        let known = |all: &HashSet<ByForm>| all.get(&form).map(|known| known.0.clone());
        if let Some(about) = known(&VARYING.read().unwrap_or_else(PoisonError::into_inner)) {
            return about;
        }
        let mut all = VARYING.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(about) = known(&all) {
            return about;
        }
        let is_shared = has_form && all.len() < MAX_FORMS;
        let about = Arc::new(Self::of(form, is_shared));
        if is_shared {
            all.insert(ByForm(about.clone()));
        }
        about
    }

    fn of(form: Form, is_shared: bool) -> Self {
        let text = &form.text;
        Self {
            hash: BuildHasherDefault::<DefaultHasher>::default().hash_one(text),
            binds: form.types.len(),
            ends: controls_transaction(text, Dialect::Postgres),
            merges: is_a_part(text),
            lasts: lasts(text),
            is_shared,
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
        let form = Self { text, types, is_constant, alone: asked.0 };
        (form, bound.and(told).is_ok())
    }
}

impl Hash for Statement {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.about.hash.hash(state);
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
    use diesel::sql_query;
    use diesel::sql_types::{BigInt, Integer};

    use super::{Statement, StatementRegistry};

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

    #[test]
    fn statements_are_one_where_text_and_types_are() {
        fn known(statement: &Statement) -> Option<*const super::About> {
            statement.known().map(std::sync::Arc::as_ptr)
        }
        let of = |text: &str| sql_query(text.to_owned());
        let text = "UPDATE a SET b = $1";
        let number = Statement::of(of(text).bind::<Integer, _>(1));
        assert!(known(&number).is_some());
        assert_eq!(known(&number), known(&Statement::of(of(text).bind::<Integer, _>(2))));
        assert_ne!(known(&number), known(&Statement::of(of(text).bind::<BigInt, _>(1))));
        assert_ne!(
            known(&number),
            known(&Statement::of(of("UPDATE a SET c = $1").bind::<Integer, _>(1)))
        );
        // Its number is the server's to say, and another type may have the same name in another schema.
        let own = Statement::of(of(text).bind::<OwnType, _>("a"));
        assert!(own.about().alone() && known(&own).is_none());
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
