//! Requests of 1, 3, 6 and 12 phases, each local one with a single insert.

use atomic_phases::phase::ForeignError;
use atomic_phases::{ForeignCall, PhaseResult, Postgres, Reply, RequestContext, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use crate::requests::App;
use crate::requests::postgres::{Charged, foreign, step};

macro_rules! chain {
    ($request:ident $name:tt: $($output:literal $local:ident $($foreign:ident)?),*) => {
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
                ) -> PhaseResult<[u8; $output]> {
                    step(tx, &ctx.uuid($output).to_string()).await?;
                    Ok([0; $output])
                }

                $(
                    #[phase(foreign(idempotent))]
                    async fn $foreign(
                        &self,
                        call: ForeignCall,
                        app: &App,
                    ) -> PhaseResult<Charged, ForeignError> {
                        foreign(call, app).await
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

chain!(One "bench.one":);
chain!(Three "bench.three": 1 a b);
chain!(Six "bench.six": 1 a b, 2 c d, 3 e);
chain!(Twelve "bench.twelve": 1 a b, 2 c d, 3 e f, 4 g h, 5 i j, 6 k);
