//! The wire contract in the dialect of the Stripe API: one test for each row.

mod support;
mod wire;

wire::rows!(atomic_phases::Profile::Stripe);
