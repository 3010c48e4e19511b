//! The wire contract in the dialect of the Stripe API: one test for each row.

crate::wire::rows!(atomic_phases::http::Profile::Stripe);
