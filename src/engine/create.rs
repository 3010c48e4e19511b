//! From a call whose key has no row to a request that runs: what is to be stored, and who creates the row.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::attempt::{Attempt, Mode};
use super::bound::BoundRequest;
use super::call::within;
use super::lease::Lease;
use super::outcome::CallError;
use super::quota::Admission;
use super::registry::Entry;
use super::run::{RoundEnd, Run, Writing};
use crate::codec::CodecError;
use crate::definition::{Phase, STARTED};
use crate::moment::Moment;
use crate::phase::{Outputs, RequestContext};
use crate::store::{Birth, NewRow, Reserved, Statements, Store, whole_millis};

impl<S: Store> Attempt<S> {
    /// Creates the row and runs the request from its start; or leaves that to the workers.
    pub(super) async fn create(
        &self,
        replaces: Option<Uuid>,
        admission: Option<Arc<Admission>>,
    ) -> Result<RoundEnd, CallError> {
        let not_storable = |_| CallError::NotStorable { what: "parameters" };
        let plain = self.given.params().map_err(not_storable)?;
        within("parameters", plain.len(), self.core.settings.limits.params)?;
        // Each attempt runs what was stored (G5), the first one too: what does not come back from its
        // stored form is refused here, and not found out after a crash.
        let entry = self.core.registry.get(self.definition.name, self.definition.version);
        let readings = entry.map_or(1, Entry::readings);
        let request = self.given.read_params(&plain, &self.fingerprint, readings)?;
        let fingerprint = self.fingerprint.stored(self.given.origin());
        let encode = |column, bytes| {
            self.core
                .encode(&self.scope, &self.key, column, bytes)
                .map_err(|CodecError(why)| CallError::NotEncoded { what: column, why })
        };
        let params = encode("params", &plain)?;
        let context =
            self.context.as_ref().map(|c| encode("context", c.get().as_bytes())).transpose()?;
        let trace = self.core.trace().map(|trace| trace.stored());
        let trace = trace.as_ref().map(<[u8; _]>::as_slice);
        let row = self.new_row(&fingerprint, &params, context.as_deref(), trace, replaces);
        reach!(STARTED, BeforePhase);
        let first = self.definition.phases.first();
        if self.mode == Mode::Accept || !first.is_some_and(Phase::needs_a_reservation) {
            // One commit creates the row. What a first phase computes before has no effect, so nothing
            // has to be reserved for it.
            let created_at = self.core.now().await?;
            let run = self.start(request, created_at, created_at, Moment::now(), admission);
            return match self.mode {
                Mode::Accept => run.accept(&row).await,
                Mode::Run => run.begin(Writing::Create(&row, Statements::default())).await,
            };
        }
        let sent = Moment::now();
        Ok(match self.core.store.reserve_key(&row).await? {
            Reserved::Exists(Some(row)) => RoundEnd::Found(row),
            Reserved::Exists(None) => RoundEnd::Changed,
            Reserved::Busy => RoundEnd::Busy,
            Reserved::Fresh { tx, created_at, expires_at } => {
                self.core.clock.set(created_at);
                self.core.attempt_begins(self.request_id, 1, STARTED, None);
                let run = self.start(request, created_at, expires_at, sent, admission);
                run.begin(Writing::Reserved(&row, tx)).await?
            }
        })
    }

    /// The row as this call creates it.
    fn new_row<'r>(
        &'r self,
        fingerprint: &'r str,
        params: &'r [u8],
        context: Option<&'r [u8]>,
        trace: Option<&'r [u8]>,
        replaces: Option<Uuid>,
    ) -> NewRow<'r> {
        let settings = &self.core.settings;
        NewRow {
            scope: &self.scope,
            key: &self.key,
            request_id: self.request_id,
            definition: self.definition.name,
            version: self.definition.version,
            phases: &self.phases,
            fingerprint,
            params,
            context,
            trace,
            birth: match self.mode {
                Mode::Run => Birth::Held(settings.lease),
                Mode::Accept => Birth::Pending,
            },
            retention: settings.retention,
            creation_wait: settings.creation_wait,
            caller: &self.caller,
            replaces,
        }
    }

    /// A request from which nothing has run yet. `sent`: a moment before the statement that creates its row.
    fn start(
        &self,
        request: Box<dyn BoundRequest<S>>,
        created_at: DateTime<Utc>,
        expires_at: DateTime<Utc>,
        sent: Moment,
        admission: Option<Arc<Admission>>,
    ) -> Run<S> {
        Run {
            core: self.core.clone(),
            definition: self.definition,
            request,
            context: RequestContext {
                scope: self.scope.clone(),
                key: self.key.clone(),
                request_id: self.request_id,
                created_at: match mutated!(PreciseCreatedAt) {
                    true => created_at,
                    false => whole_millis(created_at),
                },
                attempt: 1,
                context: self.context.clone(),
            },
            fingerprint: self.fingerprint.as_str().to_owned(),
            derivation: self.core.derived_keys.current().clone(),
            taken_over_under: None,
            outputs: Outputs::default(),
            point: STARTED.into(),
            lease: Lease::new(1, self.core.settings.lease, sent),
            expires_at,
            heartbeat: None,
            advanced: (Duration::ZERO, sent),
            forgiven_attempts: 0,
            may_be_executed: None,
            may_be_called: false,
            back_off_ends: None,
            reruns: 0,
            creation: self.creation.clone(),
            admission,
            hint: None,
        }
    }
}
