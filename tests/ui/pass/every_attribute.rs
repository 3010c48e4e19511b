//! Every option, alone and combined.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

use std::time::Duration;

use atomic_phases::definition::{EffectClass, Isolation, PhaseKind};

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase(commit)]
    async fn a(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase(isolation = "read_committed")]
    async fn b(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase(isolation = "repeatable_read", commit)]
    async fn c(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase(isolation = "serializable", was = "dd")]
    async fn d(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase(foreign(idempotent), was = ["eee", "ee"])]
    async fn e(&self, _call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase(foreign(idempotent, window = "24h"), commit)]
    async fn f(&self, _call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase(foreign(idempotent, window = "30d"))]
    async fn g(&self, _call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    // Also with a path in front.
    #[atomic_phases::phase(foreign(at_most_once))]
    async fn h(&self, _call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[reconcile(h)]
    async fn h_or_not(&self, _key: &DerivedKey) -> PhaseResult<Reconciled<Charge>> {
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn r#match(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 9);

    let [a, b, c, d, e, f, g, h, last] =
        <CreateRide as RequestDefinition<Sqlite, App>>::DEFINITION.phases
    else {
        unreachable!()
    };
    assert!(a.commit && !b.commit && c.commit && f.commit);
    assert_eq!(b.kind, PhaseKind::Local(Isolation::ReadCommitted));
    assert_eq!(c.kind, PhaseKind::Local(Isolation::RepeatableRead));
    assert_eq!(d.kind, PhaseKind::Local(Isolation::Serializable));
    assert_eq!(d.was, ["dd"]);
    assert_eq!(e.was, ["eee", "ee"]);
    assert_eq!(e.kind, PhaseKind::Foreign(EffectClass::Idempotent { window: None }));
    let window = |days: u64| Some(Duration::from_secs(days * 86_400));
    assert_eq!(f.kind, PhaseKind::Foreign(EffectClass::Idempotent { window: window(1) }));
    assert_eq!(g.kind, PhaseKind::Foreign(EffectClass::Idempotent { window: window(30) }));
    assert_eq!(h.kind, PhaseKind::Foreign(EffectClass::AtMostOnce));
    assert_eq!(last.name, "match");
}
