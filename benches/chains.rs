//! Requests of 1, 3, 6 and 12 phases, each local one with a single insert; and of 12 whose outputs are large.

use std::sync::LazyLock;

use atomic_phases::phase::ForeignError;
use atomic_phases::store::Postgres;
use atomic_phases::{ForeignCall, PhaseResult, Reply, RequestContext, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use crate::by_hand::hash;
use crate::requests::App;
use crate::requests::postgres::{Charged, foreign, step};

macro_rules! chain {
    ($request:ident $name:tt $called:tt: $($output:literal $made:tt $local:ident $($foreign:ident)?),*) => {
        #[derive(Clone, Serialize, Deserialize)]
        pub struct $request;

        #[atomic_phases(name = $name, version = 1)]
        impl $request {
            $(
                #[phase]
                async fn $local(
                    &self,
                    tx: &mut Tx<'_, Postgres>,
                    ctx: &RequestContext,
                ) -> PhaseResult<$made> {
                    step(tx, &ctx.uuid($output).to_string()).await?;
                    Ok(<$made as Made>::made($output))
                }

                $(
                    #[phase(foreign(idempotent))]
                    async fn $foreign(
                        &self,
                        call: ForeignCall,
                        app: &App,
                    ) -> PhaseResult<$called, ForeignError> {
                        let charged = foreign(call, app).await?;
                        Ok(<$called as Called>::called(charged, $output))
                    }
                )?
            )*

            #[phase]
            async fn answered(
                &self,
                tx: &mut Tx<'_, Postgres>,
                ctx: &RequestContext,
            ) -> PhaseResult<Reply> {
                step(tx, &ctx.uuid(0).to_string()).await?;
                Ok(Reply::text(201, "done"))
            }
        }
    };
}

/// What the local phase of this number returns.
trait Made {
    fn made(number: usize) -> Self;
}

impl<const N: usize> Made for [u8; N] {
    fn made(_: usize) -> Self {
        [0; N]
    }
}

/// What the foreign phase behind it returns.
trait Called {
    fn called(charged: Charged, number: usize) -> Self;
}

impl Called for Charged {
    fn called(charged: Charged, _: usize) -> Self {
        charged
    }
}

const LOCAL: usize = 6;
const FOREIGN: usize = 5;

/// Ten kilobytes for each phase. None compresses, as behind an encrypting codec, and no two have a part in common: a server
/// that compresses all outputs of a request would write a text that repeats only once.
static TEXTS: LazyLock<[String; LOCAL + FOREIGN]> = LazyLock::new(|| {
    std::array::from_fn(|phase| {
        let line = |number: u32| hash(&[&phase.to_string(), &number.to_string()]);
        (0..238).map(line).collect()
    })
});

/// What a phase returns that has much to remember.
#[derive(Serialize, Deserialize)]
pub struct Large(String);

impl Made for Large {
    fn made(number: usize) -> Self {
        Self(TEXTS[number - 1].clone())
    }
}

impl Called for Large {
    fn called(_: Charged, number: usize) -> Self {
        Self(TEXTS[LOCAL + number - 1].clone())
    }
}

chain!(One "bench.one" Charged:);
chain!(Three "bench.three" Charged: 1 [u8; 1] a b);
chain!(Six "bench.six" Charged: 1 [u8; 1] a b, 2 [u8; 2] c d, 3 [u8; 3] e);
chain!(
    Twelve "bench.twelve" Charged:
    1 [u8; 1] a b, 2 [u8; 2] c d, 3 [u8; 3] e f, 4 [u8; 4] g h, 5 [u8; 5] i j, 6 [u8; 6] k
);
chain!(
    TwelveLarge "bench.twelve_large" Large:
    1 Large a b, 2 Large c d, 3 Large e f, 4 Large g h, 5 Large i j, 6 Large k
);
