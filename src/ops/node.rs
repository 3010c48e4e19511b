//! Which processes run, which definitions they know, and which definitions unfinished requests wait for.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::request::PhaseViewKind;
use super::{Ops, OpsError, Permissions};
use crate::definition::PhaseList;
use crate::engine::PAUSED;
use crate::store::nodes::{NodeDefinition, NodeRow};
use crate::store::operators::OperatorStore;

/// Not seen for so long, a process counts as gone: four times as long as it is silent.
pub(super) const GONE_AFTER: TimeDelta = TimeDelta::seconds(60);

/// A process that announces itself, as each does that runs [`spawn_workers`](crate::Engine::spawn_workers).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeView {
    /// The id of this run of the process: a restart has another.
    pub id: Uuid,
    /// Its name, if the application sets one ([`WorkerConfig::node`](crate::worker::WorkerConfig::node)).
    pub name: Option<String>,
    /// The build that it runs, if the application sets one.
    pub build: Option<String>,
    /// Name and version of each registered definition.
    pub definitions: Vec<(String, u32)>,
    /// When it was first seen, by the database's clock.
    pub started_at: DateTime<Utc>,
    /// When it was last seen.
    pub seen_at: DateTime<Utc>,
    /// Whether it was last seen more than a minute ago: it was killed, or cannot reach the database. It is
    /// forgotten after a day.
    pub is_gone: bool,
}

/// A definition with one phase list, which running processes or unfinished requests have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DefinitionView {
    /// Name and version.
    pub definition: (String, u32),
    /// Its phases, in order. Empty if this build cannot read the list's format.
    pub phases: Vec<(String, PhaseViewKind)>,
    /// How many running processes have exactly this list.
    pub nodes: u32,
    /// How many unfinished requests last ran under this list. The count in each index ends at ten thousand.
    pub requests: u32,
    /// How many of them wait for a reconcile function or an operator.
    pub waiting: u32,
    /// How many of them this build cannot continue ([`Filter::stranded`](super::Filter::stranded)). `None` from an
    /// engine without definitions, which does not know.
    pub stranded: Option<u32>,
    /// Whether each of the three numbers may be higher.
    pub or_more: bool,
    /// When the first of them was accepted.
    pub oldest: Option<DateTime<Utc>>,
}

impl From<NodeRow> for NodeView {
    fn from(row: NodeRow) -> Self {
        let said = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let definitions = of_node(&row).into_iter().map(|one| (one.name, one.version)).collect();
        Self {
            id: row.entry.id,
            name: said(&row.entry.name),
            build: said(&row.entry.build),
            definitions,
            started_at: row.started_at,
            seen_at: row.seen_at,
            is_gone: is_gone(&row),
        }
    }
}

/// How many processes that are there run each version of each definition.
pub(crate) fn versions(rows: &[NodeRow]) -> BTreeMap<(String, u32), u32> {
    let mut versions = BTreeMap::new();
    for one in rows.iter().filter(|row| !is_gone(row)).flat_map(of_node) {
        *versions.entry((one.name, one.version)).or_default() += 1;
    }
    versions
}

fn is_gone(row: &NodeRow) -> bool {
    row.now - row.seen_at > GONE_AFTER
}

/// None of a process whose build tells them in another form.
pub(super) fn of_node(row: &NodeRow) -> Vec<NodeDefinition> {
    serde_json::from_str(&row.entry.definitions).unwrap_or_default()
}

type Phases = Vec<(String, PhaseViewKind)>;

/// Name, version, and the names and kinds of the phases. Of an unknown form, the text.
type Listed = (String, u32, Phases, Option<String>);

fn listed(definition: &str, version: u32, text: &str) -> Listed {
    let list = PhaseList::parse(text);
    let unknown = list.is_none().then(|| text.to_owned());
    let phases = list.map(|list| list.phases).unwrap_or_default();
    let phases = phases.into_iter().map(|phase| (phase.name, phase.kind.into())).collect();
    (definition.to_owned(), version, phases, unknown)
}

impl<S: OperatorStore> Ops<S> {
    /// The processes that announce themselves, the most recently seen first, a thousand at most. Needs
    /// [`Permissions::READ`].
    ///
    /// # Errors
    /// [`OpsError`].
    pub async fn nodes(&self) -> Result<Vec<NodeView>, OpsError> {
        self.needs(Permissions::READ)?;
        let rows = self.store.nodes().await?;
        Ok(rows.into_iter().map(NodeView::from).collect())
    }

    /// The definitions of running processes and of unfinished requests, with one entry for each phase list.
    /// It shows an operator whether an old build may be stopped, and whether requests wait for a build that
    /// no longer runs. Needs [`Permissions::READ`].
    ///
    /// It counts the requests that a worker will look at, and those that wait for an operator. A request that
    /// a client began a moment ago is not counted.
    ///
    /// # Errors
    /// [`OpsError`].
    pub async fn definitions(&self) -> Result<Vec<DefinitionView>, OpsError> {
        self.needs(Permissions::READ)?;
        let limits = self.actor.limits();
        let counted = self.store.count_waiting(limits).await?;
        let or_more = counted.waiting_is_more || counted.due_is_more;
        let mut all: BTreeMap<Listed, DefinitionView> = BTreeMap::new();
        let mut add =
            |definition: &str, version: u32, text: &str, count: &dyn Fn(&mut DefinitionView)| {
                let listed = listed(definition, version, text);
                let view = all.entry(listed.clone()).or_insert_with(|| DefinitionView {
                    definition: (listed.0, listed.1),
                    phases: listed.2,
                    nodes: 0,
                    requests: 0,
                    waiting: 0,
                    stranded: (!self.core.has_no_code()).then_some(0),
                    or_more,
                    oldest: None,
                });
                count(view);
            };
        for node in self.store.nodes().await?.iter().filter(|node| !is_gone(node)) {
            for one in of_node(node) {
                add(&one.name, one.version, &one.phases, &|view| view.nodes += 1);
            }
        }
        for group in self.store.unfinished(limits, PAUSED).await? {
            let stranded = if self.core.strands(&group).is_some() { group.rows } else { 0 };
            add(&group.definition, group.version, &group.phases, &|view| {
                view.requests += group.rows;
                view.waiting += group.waiting;
                view.stranded = view.stranded.map(|before| before + stranded);
                view.oldest = view.oldest.into_iter().chain([group.created_at]).min();
            });
        }
        Ok(all.into_values().collect())
    }
}
