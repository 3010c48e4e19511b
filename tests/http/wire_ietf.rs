//! The wire contract in the dialect of the IETF draft: one test for each row.

crate::wire::rows!(atomic_phases::http::Profile::Ietf);
