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
        Route::List => {
            let wanted: Wanted = asked.query()?;
            if wanted.tells_scope() {
                let detail = "A scope belongs into no URL: POST it to /requests/search.";
                return Err(Problem::new(Kind::Invalid, detail));
            }
            views::page(&ops.list(wanted.filter()?).await?, views::summary)
        }
        Route::Search => {
            let wanted: Wanted = asked.body()?;
            views::page(&ops.list(wanted.filter()?).await?, views::summary)
        }
        Route::Find => return find(ops, asked).await,
        Route::Show => return show(ops, asked).await,
        Route::Why => views::why(&ops.why(asked.id(Kind::NoSuchRequest)?).await?),
        Route::Reveal => reveal(ops, asked).await?,
        Route::Resolve => {
            let told: Told = asked.body()?;
            let (id, version) = (asked.id(Kind::NoSuchRequest)?, asked.version()?.into());
            done(ops.resolve(id, &version, told.resolution()?, &told.reason).await?)
        }
        Route::Retry => {
            let Because { reason } = asked.body()?;
            let (id, version) = (asked.id(Kind::NoSuchRequest)?, asked.version()?.into());
            done(ops.retry(id, &version, &reason).await?)
        }
        Route::Erase => {
            let Because { reason } = asked.body()?;
            let (id, version) = (asked.id(Kind::NoSuchRequest)?, asked.version()?.into());
            done(ops.erase(id, &version, &reason).await?)
        }
        Route::Jobs => jobs(ops, asked).await?,
        Route::Job => return job(ops, asked).await,
        Route::RetryJob => {
            let Because { reason } = asked.body()?;
            ops.retry_job(asked.id(Kind::NoSuchJob)?, attempts(asked)?, &reason).await?;
            done(Resolved::Applied)
        }
        Route::DiscardJob => {
            let Because { reason } = asked.body()?;
            ops.discard_job(asked.id(Kind::NoSuchJob)?, attempts(asked)?, &reason).await?;
            done(Resolved::Applied)
        }
        Route::Definitions => {
            let all = ops.definitions().await?;
            json!({ "rows": all.iter().map(views::definition).collect::<Vec<_>>() })
        }
        Route::Nodes => {
            let rows: Vec<Value> = ops.nodes().await?.iter().map(views::node).collect();
            json!({ "rows": rows })
        }
        Route::Pauses => {
            let rows: Vec<Value> = ops.pauses().await?.iter().map(views::pause).collect();
            json!({ "rows": rows })
        }
        Route::Pause => pause(ops, asked).await?,
        Route::Unpause => unpause(ops, asked).await?,
        Route::PlanBulk => {
            let asked: Bulk = asked.body()?;
            let act = asked.act()?;
            views::plan(&ops.plan_bulk(act, &asked.selection()?).await?)
        }
        Route::StartBulk => start_bulk(ops, asked).await?,
        Route::Bulks => {
            let Listed { limit, cursor } = asked.query()?;
            let before = cursor.map(|cursor| cursor.parse()).transpose()?;
            views::page(&ops.bulks(before, limit.unwrap_or(PAGE)).await?, views::bulk)
        }
        Route::Bulk => views::bulk_details(&ops.bulk(asked.id(Kind::NoSuchBulk)?).await?),
        Route::StopBulk => {
            let Because { reason } = asked.body()?;
            done(ops.stop_bulk(asked.id(Kind::NoSuchBulk)?, &reason).await?)
        }
        Route::Audit => audit(ops, asked).await?,
        Route::Description => {
            return Ok(Answer { json: OPENAPI.to_owned(), version: None, now: None });
        }
    };
    Ok(told.into())
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

fn done(resolved: Resolved) -> Value {
    json!({ "outcome": resolved.as_str() })
}

fn invalid(error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Kind::Invalid, format!("It is not valid: {error}."))
}
