//! From what is asked for to what is told.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::asked::{
    Ago, Asked, Audited, Because, Bulk, JobState, Jobs, Listed, Paused, Reveal, Sought, Told,
    Unpaused, Wanted,
};
use super::problem::{Kind, Problem};
use super::{OPENAPI, Route, views};
use crate::engine::Resolved;
use crate::key::{IdempotencyKey, Scope};
use crate::ops::{AuditFilter, OperatorStore, Ops, What};

/// How many rows a page of jobs or of the audit has, unless it is said.
const PAGE: u32 = 50;

/// An answer, and of which version of a request it is.
pub(super) struct Answer {
    pub(super) json: String,
    pub(super) version: Option<String>,
    /// The database's time, if ages may be counted from it.
    pub(super) now: Option<DateTime<Utc>>,
}

impl From<Value> for Answer {
    fn from(value: Value) -> Self {
        Self { json: value.to_string(), version: None, now: None }
    }
}

pub(super) async fn answer<S: OperatorStore>(
    route: Route,
    ops: &Ops<S>,
    asked: &Asked,
) -> Result<Answer, Problem> {
    let answer = answer_of(route, ops, asked).await?;
    // Read last, as by the console's pages. The rows are told also without it.
    let now = match route.tells_times() {
        true => ops.now().await.ok(),
        false => None,
    };
    Ok(Answer { now, ..answer })
}

async fn answer_of<S: OperatorStore>(
    route: Route,
    ops: &Ops<S>,
    asked: &Asked,
) -> Result<Answer, Problem> {
    let told = match route {
        Route::Overview => views::counts(&ops.counts().await?),
        Route::List => list(ops, asked).await?,
        Route::Search => found(ops, asked.body()?).await?,
        Route::Find => return find(ops, asked).await,
        Route::Show => return show(ops, asked).await,
        Route::Why => views::why(&ops.why(asked.id(Kind::NoSuchRequest)?).await?),
        Route::Reveal => reveal(ops, asked).await?,
        Route::Resolve => resolve(ops, asked).await?,
        Route::Retry => retry(ops, asked).await?,
        Route::Erase => erase(ops, asked).await?,
        Route::Jobs => jobs(ops, asked).await?,
        Route::Job => return job(ops, asked).await,
        Route::RetryJob => retry_job(ops, asked).await?,
        Route::DiscardJob => discard_job(ops, asked).await?,
        Route::Definitions => rows(&ops.definitions().await?, views::definition),
        Route::Nodes => rows(&ops.nodes().await?, views::node),
        Route::Pauses => rows(&ops.pauses().await?, views::pause),
        Route::Pause => pause(ops, asked).await?,
        Route::Unpause => unpause(ops, asked).await?,
        Route::PlanBulk => plan_bulk(ops, asked).await?,
        Route::StartBulk => start_bulk(ops, asked).await?,
        Route::Bulks => bulks(ops, asked).await?,
        Route::Bulk => views::bulk_details(&ops.bulk(asked.id(Kind::NoSuchBulk)?).await?),
        Route::StopBulk => stop_bulk(ops, asked).await?,
        Route::Audit => audit(ops, asked).await?,
        Route::Description => {
            return Ok(Answer { json: OPENAPI.to_owned(), version: None, now: None });
        }
    };
    Ok(told.into())
}

async fn list<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let wanted: Wanted = asked.query()?;
    if wanted.tells_scope() {
        let detail = "A scope belongs into no URL: POST it to /requests/search.";
        return Err(Problem::new(Kind::Invalid, detail));
    }
    found(ops, wanted).await
}

async fn found<S: OperatorStore>(ops: &Ops<S>, wanted: Wanted) -> Result<Value, Problem> {
    Ok(views::page(&ops.list(wanted.filter()?).await?, views::summary))
}

async fn find<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Answer, Problem> {
    let Sought { scope, key } = asked.body()?;
    let scope = Scope::new(scope).map_err(|error| invalid(&error))?;
    let key = IdempotencyKey::new(key).map_err(|error| invalid(&error))?;
    let found = ops.find(&scope, &key).await?;
    let version = Some(found.version.as_str().to_owned());
    Ok(Answer { version, ..views::summary(&found).into() })
}

async fn show<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Answer, Problem> {
    let shown = ops.show(asked.id(Kind::NoSuchRequest)?).await?;
    let version = Some(shown.summary.version.as_str().to_owned());
    Ok(Answer { version, ..views::details(&shown).into() })
}

async fn reveal<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let Reveal { what, reason } = asked.body()?;
    let what = What::ALL.into_iter().find(|one| one.as_str() == what);
    let what = what.ok_or_else(|| {
        let known = What::ALL.map(What::as_str).join(", ");
        Problem::new(Kind::Invalid, format!("What can be revealed is {known}."))
    })?;
    Ok(views::revealed(&ops.reveal(asked.id(Kind::NoSuchRequest)?, what, &reason).await?))
}

async fn resolve<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let told: Told = asked.body()?;
    let (id, version) = (asked.id(Kind::NoSuchRequest)?, asked.version()?.into());
    Ok(done(ops.resolve(id, &version, told.resolution()?, &told.reason).await?))
}

async fn retry<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let Because { reason } = asked.body()?;
    let (id, version) = (asked.id(Kind::NoSuchRequest)?, asked.version()?.into());
    Ok(done(ops.retry(id, &version, &reason).await?))
}

async fn erase<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let Because { reason } = asked.body()?;
    let (id, version) = (asked.id(Kind::NoSuchRequest)?, asked.version()?.into());
    Ok(done(ops.erase(id, &version, &reason).await?))
}

async fn jobs<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let Jobs { state, limit, cursor } = asked.query()?;
    let limit = limit.unwrap_or(PAGE);
    match (state, cursor) {
        (JobState::Dead, cursor) => {
            let after = cursor.map(|cursor| cursor.parse()).transpose()?;
            Ok(views::page(&ops.dead_jobs(after, limit).await?, views::job))
        }
        (JobState::Late, None) => Ok(views::late_jobs(ops.late_jobs(limit).await?)),
        (JobState::Late, Some(_)) => {
            let detail = "The list of late jobs has one page: ask for it without a cursor.";
            Err(Problem::new(Kind::Invalid, detail))
        }
    }
}

async fn job<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Answer, Problem> {
    let job = ops.dead_job(asked.id(Kind::NoSuchJob)?).await?;
    let version = Some(job.attempts.to_string());
    Ok(Answer { version, ..views::job(&job).into() })
}

async fn retry_job<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let Because { reason } = asked.body()?;
    ops.retry_job(asked.id(Kind::NoSuchJob)?, attempts(asked)?, &reason).await?;
    Ok(done(Resolved::Applied))
}

async fn discard_job<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let Because { reason } = asked.body()?;
    ops.discard_job(asked.id(Kind::NoSuchJob)?, attempts(asked)?, &reason).await?;
    Ok(done(Resolved::Applied))
}

async fn pause<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let Paused { definition, phase, length, reason } = asked.body()?;
    let length = length.map(|Ago(length)| length);
    let replaced = match asked.version_if_any()? {
        None => {
            ops.pause(&definition, &phase, length, &reason).await?;
            None
        }
        Some(version) => {
            let version = version.into();
            Some(ops.replace_pause(&definition, &phase, &version, length, &reason).await?)
        }
    };
    let mut told = done(Resolved::Applied);
    told["replaced"] = replaced.as_ref().map(views::pause).into();
    Ok(told)
}

async fn unpause<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let Unpaused { definition, phase, reason } = asked.body()?;
    let version = asked.version()?.into();
    let still_paused = ops.unpause(&definition, &phase, &version, &reason).await?;
    let mut told = done(Resolved::Applied);
    told["still_paused"] = still_paused.as_ref().map(views::pause).into();
    Ok(told)
}

async fn plan_bulk<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let asked: Bulk = asked.body()?;
    let act = asked.act()?;
    Ok(views::plan(&ops.plan_bulk(act, &asked.selection()?).await?))
}

async fn start_bulk<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let asked: Bulk = asked.body()?;
    let said = (asked.planned.clone(), asked.reason.clone());
    let (Some(planned), Some(reason)) = said else {
        let detail = "Say what was `planned`, and a `reason`.";
        return Err(Problem::new(Kind::Invalid, detail));
    };
    let act = asked.act()?;
    let id = ops.start_bulk(act, &asked.selection()?, planned, &reason).await?;
    Ok(json!({ "id": id.to_string() }))
}

async fn bulks<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let Listed { limit, cursor } = asked.query()?;
    let before = cursor.map(|cursor| cursor.parse()).transpose()?;
    Ok(views::page(&ops.bulks(before, limit.unwrap_or(PAGE)).await?, views::bulk))
}

async fn stop_bulk<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let Because { reason } = asked.body()?;
    Ok(done(ops.stop_bulk(asked.id(Kind::NoSuchBulk)?, &reason).await?))
}

async fn audit<S: OperatorStore>(ops: &Ops<S>, asked: &Asked) -> Result<Value, Problem> {
    let Audited { request, actor, act, limit, cursor } = asked.query()?;
    let before = cursor.map(|cursor| cursor.parse()).transpose()?;
    let mut of = AuditFilter::from(request.map(|request| request.0));
    if let Some(actor) = actor {
        of = of.actor(actor);
    }
    if let Some(act) = act {
        of = of.act(act);
    }
    Ok(views::page(&ops.audit(of, before, limit.unwrap_or(PAGE)).await?, views::act))
}

/// What a job was seen by: how often it was tried. A version that is none of ours fits no job.
fn attempts(asked: &Asked) -> Result<u32, Problem> {
    Ok(asked.version()?.parse().unwrap_or(u32::MAX))
}

/// A list that has one page.
fn rows<T>(all: &[T], view: impl Fn(&T) -> Value) -> Value {
    json!({ "rows": all.iter().map(view).collect::<Vec<_>>() })
}

fn done(resolved: Resolved) -> Value {
    json!({ "outcome": resolved.as_str() })
}

fn invalid(error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Kind::Invalid, format!("It is not valid: {error}."))
}
