//! The wire contract in the dialect of the IETF draft: one test for each row.

mod support;
mod wire;

wire::rows!(atomic_phases::Profile::Ietf);
