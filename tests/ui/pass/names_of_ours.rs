//! Outputs that are called like types of the library: no output can be one of those.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

mod own {
    use super::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    pub struct Tx;
    #[derive(Serialize, Deserialize)]
    pub struct Batch;
    #[derive(Serialize, Deserialize)]
    pub struct ForeignCall;
    #[derive(Serialize, Deserialize)]
    pub struct RequestContext;
    #[derive(Serialize, Deserialize)]
    pub struct DerivedKey;
    #[derive(Serialize, Deserialize)]
    pub struct App;
}

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn a(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<own::Tx> {
        Ok(own::Tx)
    }

    #[phase]
    async fn b(&self, _batch: &mut Batch<'_, Sqlite>) -> PhaseResult<own::Batch> {
        Ok(own::Batch)
    }

    #[phase(foreign(idempotent))]
    async fn c(&self, _call: ForeignCall) -> PhaseResult<own::ForeignCall> {
        Ok(own::ForeignCall)
    }

    #[phase]
    async fn d(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<own::RequestContext> {
        Ok(own::RequestContext)
    }

    #[phase]
    async fn e(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<own::DerivedKey> {
        Ok(own::DerivedKey)
    }

    #[phase]
    async fn f(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<own::App> {
        Ok(own::App)
    }

    #[phase]
    async fn answered(
        &self,
        _tx: &mut Tx<'_, Sqlite>,
        _a: &own::Tx,
        _b: &own::Batch,
        _c: &own::ForeignCall,
        _d: &own::RequestContext,
        _e: &own::DerivedKey,
        _f: &own::App,
    ) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 7);
}
