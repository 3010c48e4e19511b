//! What was found out about a place: [`Fact`], and [`Talked`] of one whose type keeps to itself what it is made of.

use serde_json::Value;

use atomic_phases_compat::{Float, Integer, Length, Letter, Order, Shape, StrFormat};

/// What was found out about a place.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fact {
    Text(StrFormat),
    Char(Letter),
    /// `None`: it refuses all that were tried.
    Integer(Option<Integer>),
    Float(Float),
    List(Length, Order),
    /// What it looks like that is asked as a whole, and a value of each of its forms.
    Whole {
        shape: Shape,
        values: Vec<Value>,
    },
    /// Whether it takes variants that it does not know.
    Open(bool),
}

/// What a place takes.
#[derive(Clone, Debug)]
pub(super) enum Talked {
    Everything,
    /// These values, and others like them.
    Takes(Vec<Value>),
}
