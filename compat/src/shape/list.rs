//! [`List`]: arrays, of a length, and whether their order is kept.

use std::fmt;

use super::Shape;

/// Elements of one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Of each of them.
    pub element: Box<Shape>,
    /// How many.
    pub length: Length,
    /// What is kept of their order.
    pub order: Order,
}

/// How many elements a list has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Length {
    /// At least.
    pub least: u32,
    /// At most, as far as was tried.
    pub most: Option<u32>,
}

/// What is kept of the order of elements, and of those that are there twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// All.
    #[default]
    Kept,
    /// What is there twice: the same elements are written in the same order.
    Sorted,
    /// Nothing: the same elements are written in the same order.
    Set,
    /// Nothing, and the same elements are written in another order each time.
    Chance,
}

impl List {
    /// Of any length, in their order.
    #[must_use]
    pub fn of(element: Shape) -> Self {
        Self { element: Box::new(element), length: Length::default(), order: Order::Kept }
    }
}

impl Length {
    pub(crate) fn takes(self, length: usize) -> bool {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        self.least <= length && self.most.is_none_or(|most| length <= most)
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { element, length, order } = self;
        match order {
            Order::Kept => write!(f, "[{element}]")?,
            Order::Sorted => write!(f, "sorted<{element}>")?,
            Order::Set => write!(f, "set<{element}>")?,
            Order::Chance => write!(f, "unordered<{element}>")?,
        }
        match *length {
            Length { least: 0, most: None } => Ok(()),
            Length { least, most: None } => write!(f, "({least}..)"),
            Length { least, most: Some(most) } => write!(f, "({least}..{most})"),
        }
    }
}
