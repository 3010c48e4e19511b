//! The engine with one guarantee broken at a time, which the explorer must notice.
//!
//! The guarantees are broken in the engine, not in a store. On MariaDB they are found in a minute, which the nightly run
//! has; `two_interleaved_workers_find_a_missing_fence_and_a_wrong_clock` (`bookings`) runs there each time.

use super::worlds::{booking, notifying, ringing};
use crate::support::*;
use atomic_phases::fault::Mutant;

on_both_stores! { every_broken_guarantee_is_found }

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute"]
async fn every_broken_guarantee_is_found_on_mariadb() {
    every_broken_guarantee_is_found(<atomic_phases::store::Mysql as TestDb>::fresh().await).await;
}

async fn every_broken_guarantee_is_found<S: TestDb>(db: S) {
    use atomic_phases::fault::Mode::{Drop, NotSent};
    let explored = Mutant::all().iter().filter(|mutant| !mutant.needs_simulation());
    for mutant in explored.copied() {
        let report = match mutant {
            // Only at a provider that honors no key.
            Mutant::RepeatOpenIntent | Mutant::ConfirmWhenRead => {
                let explorer = notifying(db.clone(), true).with_mutant(mutant);
                explorer.crash_at_every_point().with_competitor().run().await
            }
            // The lost intent is missed only if the same attempt dies in its call.
            Mutant::AssumeIntent => {
                let explorer = notifying(db.clone(), true).with_mutant(mutant);
                explorer.modes([Drop, NotSent]).and_at_every_pair().run().await
            }
            // In one that another has overtaken before its call.
            Mutant::CallBehindFailedRenewal => {
                let explorer = notifying(db.clone(), true).with_mutant(mutant);
                explorer.with_competitor().and_failed_reads().run().await
            }
            Mutant::CallWithoutLease => {
                let explorer = ringing(db.clone()).with_mutant(mutant);
                explorer.crash_at_every_point().with_competitor().run().await
            }
            Mutant::RecoverAccepted => {
                let explorer = booking(db.clone()).with_mutant(mutant).with_a_call_that_accepts();
                explorer.crash_at_every_point().with_competitor().run().await
            }
            _ => {
                let explorer = booking(db.clone()).with_mutant(mutant);
                explorer.crash_at_every_point().with_competitor().run().await
            }
        };
        let found =
            report.failure().unwrap_or_else(|| panic!("{mutant:?} was not found: {report}"));
        println!("{mutant:?}: {found} (case {})", report.cases());
        if mutant == Mutant::TakeOverWithoutToken {
            assert!(found.starts_with("G10: a request was taken from a worker"), "{found}");
        }
    }
}
