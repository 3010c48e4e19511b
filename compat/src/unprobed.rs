//! [`unprobed`]: the parts of a shape that are not known, and that no sample shows.

use serde_json::Value;

use crate::alternatives::has_no_value;
use crate::examples::all_examples;
use crate::fits::fits;
use crate::shape::{Absent, List, REST, Shape, StrFormat, Types};

/// Their places: `.currency`, `.items[].code`; `the value` where nothing of it is known.
pub(crate) fn unprobed(shape: &Shape, types: &Types, samples: &[String]) -> Vec<String> {
    let samples: Vec<Value> =
        samples.iter().filter_map(|sample| serde_json::from_str(sample).ok()).collect();
    let mut walk = Walk { types, within: Vec::new(), found: Vec::new() };
    walk.shape(shape, &samples.iter().collect::<Vec<_>>(), "");
    if samples.is_empty() && walk.found.is_empty() && !has_one_value(shape) {
        walk.found.push(WHOLE.to_owned());
    }
    if all_examples(shape, types).1 {
        walk.found.push("some of the alternatives".to_owned());
    }
    walk.found
}

const WHOLE: &str = "the value";

/// There is one value of it, or none.
fn has_one_value(shape: &Shape) -> bool {
    matches!(shape, Shape::Null) || has_no_value(shape)
}

/// By a rule that none of the trials keeps.
fn is_own(shape: &Shape) -> bool {
    match shape {
        Shape::Opaque | Shape::Str(StrFormat::OWN) => true,
        Shape::Float(float) => float.is_own(),
        Shape::Char(letter) => letter.is_own(),
        _ => false,
    }
}

fn place(path: &str) -> &str {
    if path.is_empty() { WHOLE } else { path }
}

struct Walk<'a> {
    types: &'a Types,
    within: Vec<&'a str>,
    found: Vec<String>,
}

impl<'a> Walk<'a> {
    /// `values` are what the samples have there.
    fn shape(&mut self, shape: &'a Shape, values: &[&Value], path: &str) {
        match shape {
            _ if is_own(shape) && values.iter().all(|value| value.is_null()) => {
                self.found.push(place(path).to_owned());
            }
            // One alone of all trials is one of others that were not tried.
            Shape::Str(format) if format.is_one_of_others() => {
                self.found.push(place(path).to_owned())
            }
            Shape::Option(inner) => self.shape(inner, values, path),
            Shape::Rule { of, .. } => self.shape(of, values, path),
            Shape::List(List { element, .. }) => {
                let elements: Vec<&Value> =
                    values.iter().filter_map(|value| value.as_array()).flatten().collect();
                self.shape(element, &elements, &format!("{path}[]"));
            }
            Shape::Map(_, element) => {
                let members = values.iter().filter_map(|value| value.as_object());
                let elements: Vec<&Value> = members.flat_map(|members| members.values()).collect();
                self.shape(element, &elements, &format!("{path}[]"));
            }
            Shape::Tuple(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    let there: Vec<&Value> =
                        values.iter().filter_map(|value| value.get(index)).collect();
                    self.shape(element, &there, &format!("{path}[{index}]"));
                }
            }
            Shape::Struct { fields, .. } => {
                for field in fields {
                    let there: Vec<&Value> =
                        values.iter().filter_map(|value| value.get(&field.name)).collect();
                    self.shape(&field.shape, &there, &field.place(path));
                    if field.name == REST {
                        continue;
                    }
                    match field.default {
                        Absent::LeftOut(None) => {
                            let place = field.place(path);
                            self.found.push(format!("what {place} is where it is left out"));
                        }
                        Absent::Unknown if field.optional && has_value(&field.shape) => {
                            let place = field.place(path);
                            self.found.push(format!("what {place} is where it is absent"));
                        }
                        _ => {}
                    }
                }
            }
            Shape::Enum(variants) => {
                for variant in variants {
                    let Some(content) = &variant.content else { continue };
                    let there: Vec<&Value> = values
                        .iter()
                        .filter_map(|value| {
                            let is_unit = value.as_str() == Some(&variant.name);
                            value.get(&variant.name).or(is_unit.then_some(*value))
                        })
                        .collect();
                    self.shape(content, &there, &format!("{path}.{}", variant.name));
                }
            }
            Shape::Union { written, .. } => {
                for form in written {
                    if has_no_value(form) {
                        self.found.push(format!("an alternative of {}", place(path)));
                        continue;
                    }
                    let of_form = |value: &&&Value| fits(value, form, self.types).is_ok();
                    let there: Vec<&Value> = values.iter().filter(of_form).copied().collect();
                    self.shape(form, &there, path);
                }
            }
            Shape::Named(name) => {
                if let Some(shape) = self.types.get(name)
                    && !self.within.contains(&name.as_str())
                {
                    // At its first place: the others are of the same code.
                    self.within.push(name);
                    self.shape(shape, values, path);
                }
            }
            _ => {}
        }
    }
}

/// Whether it has to be something where it is absent, and that is compared.
fn has_value(shape: &Shape) -> bool {
    !matches!(shape, Shape::Option(_) | Shape::Opaque)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(shape: &str, samples: &[&str]) -> Vec<String> {
        let samples: Vec<String> = samples.iter().map(|sample| (*sample).to_owned()).collect();
        unprobed(&shape.parse().unwrap(), &Types::new(), &samples)
    }

    #[test]
    fn what_is_not_known_is_told_by_its_place() {
        assert_eq!(of("{a: u8}", &["{}"]), Vec::<String>::new());
        assert_eq!(of("opaque", &[]), ["the value"]);
        assert_eq!(of("{a: u8}", &[]), ["the value"], "by no sample");
        assert_eq!(of("{a: str(DE)}", &[r#"{"a":"DE"}"#]), [".a"], "it may take others");
        assert_eq!(of("{a: str(date)}", &[r#"{"a":"2000-01-01"}"#]), Vec::<String>::new());
        assert_eq!(of("{a: opaque, b: [str(own)]}", &[]), [".a", ".b[]"]);
        assert_eq!(of("{a: opaque, b: [str(own)]}", &[r#"{"a":1,"b":[]}"#]), [".b[]"]);
        assert_eq!(of("enum {A: opaque, B: opaque}", &[r#"{"A":1}"#]), [".B"]);
        assert_eq!(of("enum {A: opaque}", &["\"A\""]), Vec::<String>::new());
        let union = "union {{is: enum {A}, a: opaque}, {is: enum {B}, b: opaque}}";
        assert_eq!(of(union, &[r#"{"is":"A","a":1}"#]), [".b"]);
        assert_eq!(of("{a: union {u8, enum {}}}", &[r#"{"a":1}"#]), ["an alternative of .a"]);
    }
}
