//! [`probe`]: what the stored form of a type looks like, found by asking its `Deserialize`.
//!
//! A deserializer that has no input answers each question of the type with a value of its own: the greatest
//! integer, one element, the next variant. Where the type refuses one (a string that has to be a UUID), the
//! next candidate is tried at that place ([`search`]), and where it refuses all of them that place is
//! `blocked`: it is left out, the rest of the type is asked all the same, and its form is `str(own)` or
//! `opaque`. Which strings and integers a place takes is tried out one by one ([`explore`]). What the type took
//! is then JSON, which serde_json has to read, and which is changed member by member to see what the type takes
//! as well ([`refine`]). A type that keeps to itself what it is made of, one with a `flatten` or a `tag`, is
//! asked as a whole ([`talk`], [`forms`], [`alternatives`]). Where there is no such value, the application can
//! give a sample.

mod alternatives;
mod answer;
mod asked;
mod candidates;
mod catalogue;
mod explore;
mod fact;
mod forms;
mod given;
mod hints;
mod join;
mod outline;
mod path;
mod question;
mod refine;
mod search;
mod talk;
mod value_type;
mod written;

use serde_json::Value;

use self::answer::Answers;
pub(crate) use self::catalogue::Catalogue;
use self::written::Written;
use atomic_phases_compat::{List, Shape, Variant, fits};

/// So many values of a type stand in its lock file at most. Its shape knows all variants.
const MAX_SAMPLES: usize = 12;

/// So many values of a type are asked for at most.
const MAX_PASSES: usize = 2000;

/// A type whose values are stored, without its name. These functions are all that is compiled for each type of an
/// application; what asks them is compiled once.
#[derive(Clone, Copy)]
pub struct ValueType {
    answered: fn(&mut Answers<'_>) -> (bool, Shape, Value),
    written: fn(&str) -> Option<Written>,
    rewritten: fn(&str) -> Option<String>,
    reads: fn(&str) -> bool,
}

impl ValueType {
    /// Whether stored JSON decodes.
    pub(crate) fn reads(self, json: &str) -> bool {
        (self.reads)(json)
    }

    /// What the type writes after it has read this, if it reads that.
    fn rewritten(self, json: &str) -> Option<String> {
        (self.rewritten)(json)
    }

    /// How the type writes what it reads here.
    fn written(self, json: &str) -> Option<Written> {
        (self.written)(json)
    }

    /// Asks for a value: whether there is one, what was asked for, and what was given.
    fn answered(self, answers: &mut Answers<'_>) -> (bool, Shape, Value) {
        (self.answered)(answers)
    }
}

impl std::fmt::Debug for ValueType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ValueType")
    }
}

/// What was found out about one type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Probed {
    pub(crate) shape: Shape,
    /// Values as the type writes them, in JSON.
    pub(crate) samples: Vec<String>,
}

/// Asks a type. `given` are samples of the application, in JSON.
pub(crate) fn probe(of: ValueType, catalogue: &mut Catalogue, given: &[String]) -> Probed {
    catalogue.probes += 1;
    let mut samples: Vec<String> = given.to_vec();
    let given: Vec<Value> =
        given.iter().filter_map(|sample| serde_json::from_str(sample).ok()).collect();
    let words = words(&given);
    let mut shape = Shape::Opaque;
    // A pass for each variant that was not built yet, then one with as little as the type takes.
    for least in [false, true] {
        let mut answers = Answers::new(of, catalogue, least, &given, &words);
        for _ in 0..MAX_PASSES {
            let known = answers.built();
            let pass = answers.settle();
            shape = merged(shape, pass.shape.clone());
            if let Some(built) = &pass.built {
                refine::refine(of, answers.catalogue(), built);
                answers.catalogue().other_variants(built);
                let room = MAX_SAMPLES - usize::from(!least);
                for sample in std::iter::once(&built.sample).chain(&built.others) {
                    if samples.len() < room && !samples.contains(sample) {
                        samples.push(sample.clone());
                    }
                }
            }
            if least || answers.built() == known {
                break;
            }
        }
    }
    catalogue.finish();
    // Its own name is of no interest to a reader of the file.
    let here = match &mut shape {
        Shape::Rule { of, .. } => &mut **of,
        here => here,
    };
    if let Shape::Named(name) = &*here
        && let Some(inner) = catalogue.shape_of(name)
    {
        *here = inner.clone();
    }
    // What it reads in one form and writes in another that was not found is not known.
    let types = catalogue.types_of([&shape]);
    let is_of_it = |sample: &String| {
        serde_json::from_str(sample).is_ok_and(|sample| fits(&sample, &shape, &types).is_ok())
    };
    if !samples.iter().all(is_of_it) {
        shape = Shape::Opaque;
    }
    Probed { shape, samples }
}

/// The strings in samples: what the type takes, where it has a rule of its own.
fn words(samples: &[Value]) -> Vec<String> {
    fn of(value: &Value, words: &mut Vec<String>) {
        match value {
            Value::String(text) if !words.contains(text) => words.push(text.clone()),
            Value::Array(elements) => elements.iter().for_each(|value| of(value, words)),
            Value::Object(members) => members.values().for_each(|value| of(value, words)),
            _ => {}
        }
    }
    let mut words = Vec::new();
    samples.iter().for_each(|value| of(value, &mut words));
    words
}

/// What one attempt found out: in each case what was asked, and a value where the type took one.
struct Pass {
    shape: Shape,
    built: Option<Built>,
}

/// One value of a type.
struct Built {
    /// What the type was given.
    input: Value,
    places: Vec<Place>,
    /// The value as the type writes it.
    sample: String,
    /// Values that differ in what a place took that takes several kinds.
    others: Vec<String>,
}

/// Where in a value a named type is, or a variant of one.
struct Place {
    index: usize,
    variant: Option<usize>,
    path: Vec<String>,
    /// The names that its members may have; none where it is not a struct.
    members: &'static [&'static str],
}

/// What two passes found out about one type.
fn merged(one: Shape, other: Shape) -> Shape {
    match (one, other) {
        (Shape::Opaque, shape) | (shape, Shape::Opaque) => shape,
        (Shape::Option(one), Shape::Option(other)) => Shape::Option(Box::new(merged(*one, *other))),
        (Shape::List(one), Shape::List(other)) => {
            Shape::List(List { element: Box::new(merged(*one.element, *other.element)), ..one })
        }
        (Shape::Rule { of, refused }, Shape::Rule { of: other, .. }) => {
            Shape::Rule { of: Box::new(merged(*of, *other)), refused }
        }
        (Shape::Rule { of, refused }, other) | (other, Shape::Rule { of, refused }) => {
            Shape::Rule { of: Box::new(merged(*of, other)), refused }
        }
        (Shape::Map(one_key, one), Shape::Map(other_key, other)) => {
            Shape::Map(Box::new(merged(*one_key, *other_key)), Box::new(merged(*one, *other)))
        }
        (Shape::Tuple(one), Shape::Tuple(other)) if one.len() == other.len() => Shape::Tuple(
            one.into_iter().zip(other).map(|(one, other)| merged(one, other)).collect(),
        ),
        (Shape::Struct { fields: one, manner }, Shape::Struct { fields: mut other, .. }) => {
            let mut fields: Vec<atomic_phases_compat::Field> = Vec::new();
            for mut field in one {
                let is_same = |other: &atomic_phases_compat::Field| {
                    other.name == field.name || field.aliases.contains(&other.name)
                };
                if let Some(index) = other.iter().position(is_same) {
                    field.shape = merged(field.shape, other.remove(index).shape);
                }
                fields.push(field);
            }
            fields.extend(other);
            Shape::Struct { fields, manner }
        }
        (Shape::Enum(one), Shape::Enum(mut other)) => {
            let mut variants: Vec<Variant> = Vec::new();
            for mut variant in one {
                if let Some(index) = other.iter().position(|other| other.name == variant.name) {
                    let content = other.remove(index).content;
                    variant.content = match (variant.content, content) {
                        (Some(one), Some(other)) => Some(merged(one, other)),
                        (one, other) => one.or(other),
                    };
                }
                variants.push(variant);
            }
            variants.extend(other);
            Shape::Enum(variants)
        }
        (one, _) => one,
    }
}

#[cfg(test)]
mod tests;
