//! A database in memory, for simulations.

pub use crate::store::memory::{
    Cut, Database, KeyChange, KeyState, Memory, MemoryBackend, MemoryConnection, Network, Passage,
    Perfect, Write,
};
