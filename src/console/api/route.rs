//! [`Route`]: everything that can be asked for, as a table. `openapi.json` describes the same, and a test holds
//! one against the other.

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Overview,
    List,
    Search,
    Find,
    Show,
    Why,
    Reveal,
    Resolve,
    Retry,
    Erase,
    Jobs,
    Job,
    RetryJob,
    DiscardJob,
    Definitions,
    Nodes,
    Pauses,
    Pause,
    Unpause,
    PlanBulk,
    StartBulk,
    Bulks,
    Bulk,
    StopBulk,
    Audit,
    Description,
}

impl Route {
    pub(crate) const ALL: [Self; 26] = [
        Self::Overview,
        Self::List,
        Self::Search,
        Self::Find,
        Self::Show,
        Self::Why,
        Self::Reveal,
        Self::Resolve,
        Self::Retry,
        Self::Erase,
        Self::Jobs,
        Self::Job,
        Self::RetryJob,
        Self::DiscardJob,
        Self::Definitions,
        Self::Nodes,
        Self::Pauses,
        Self::Pause,
        Self::Unpause,
        Self::PlanBulk,
        Self::StartBulk,
        Self::Bulks,
        Self::Bulk,
        Self::StopBulk,
        Self::Audit,
        Self::Description,
    ];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Overview => "/overview",
            Self::List => "/requests",
            Self::Search => "/requests/search",
            Self::Find => "/requests/find",
            Self::Show => "/requests/{id}",
            Self::Why => "/requests/{id}/why",
            Self::Reveal => "/requests/{id}/values",
            Self::Resolve => "/requests/{id}/resolve",
            Self::Retry => "/requests/{id}/retry",
            Self::Erase => "/requests/{id}/erase",
            Self::Jobs => "/jobs",
            Self::Job => "/jobs/{id}",
            Self::RetryJob => "/jobs/{id}/retry",
            Self::DiscardJob => "/jobs/{id}/discard",
            Self::Definitions => "/definitions",
            Self::Nodes => "/nodes",
            Self::Pauses => "/pauses",
            Self::Pause => "/pauses/begin",
            Self::Unpause => "/pauses/end",
            Self::PlanBulk => "/bulk/plan",
            Self::StartBulk => "/bulk/start",
            Self::Bulks => "/bulk",
            Self::Bulk => "/bulk/{id}",
            Self::StopBulk => "/bulk/{id}/stop",
            Self::Audit => "/audit",
            Self::Description => "/openapi.json",
        }
    }

    /// Whether it is asked for by POST: because it acts, or because what it takes belongs into no URL.
    pub(crate) fn is_post(self) -> bool {
        self.acts() || matches!(self, Self::Search | Self::Find | Self::PlanBulk)
    }

    /// Whether there are times in its answer.
    pub(crate) fn tells_times(self) -> bool {
        !self.acts() && self != Self::Description
    }

    /// Whether it writes: a request, a job, or, of a value that is revealed, the audit.
    pub(crate) fn acts(self) -> bool {
        match self {
            Self::Reveal
            | Self::Resolve
            | Self::Retry
            | Self::Erase
            | Self::RetryJob
            | Self::DiscardJob
            | Self::Pause
            | Self::Unpause
            | Self::StartBulk
            | Self::StopBulk => true,
            Self::Overview
            | Self::List
            | Self::Search
            | Self::Find
            | Self::Show
            | Self::Why
            | Self::Jobs
            | Self::Job
            | Self::Definitions
            | Self::Nodes
            | Self::Pauses
            | Self::PlanBulk
            | Self::Bulks
            | Self::Bulk
            | Self::Audit
            | Self::Description => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::console::api::OPENAPI;
    use crate::console::api::problem::Kind;

    #[test]
    fn the_description_has_every_route_and_no_other() {
        let description: Value = serde_json::from_str(OPENAPI).unwrap();
        let paths = description["paths"].as_object().unwrap();
        let described: BTreeSet<(String, String)> = paths
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                methods
                    .filter(|name| *name != "parameters")
                    .map(|name| (path.clone(), name.clone()))
            })
            .collect();
        let routes = Route::ALL.map(|route| {
            let method = if route.is_post() { "post" } else { "get" };
            (route.path().to_owned(), method.to_owned())
        });
        assert_eq!(described, BTreeSet::from(routes));
    }

    #[test]
    fn the_description_has_every_problem_and_no_other() {
        let description: Value = serde_json::from_str(OPENAPI).unwrap();
        let described =
            &description["components"]["schemas"]["Problem"]["properties"]["code"]["enum"];
        let described: Vec<&str> =
            described.as_array().unwrap().iter().map(|code| code.as_str().unwrap()).collect();
        assert_eq!(described, Kind::ALL.map(|kind| kind.facts().code));
    }
}
