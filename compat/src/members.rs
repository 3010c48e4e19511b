//! [`changes`]: what becomes of stored members whose form is read all the same: a name that the new type does
//! not know is passed over, and a value that is not there is a default.

use std::cmp::Ordering;

use serde_json::Value;

use crate::alternatives::{TakenOver, hidden, taken_over};
use crate::examples::examples;
use crate::fits::fits;
use crate::reader::Reader;
use crate::sent::differences;
use crate::shape::{
    Absent, Field, List, Manner, OTHER, Order, REST, Shape, Types, Unknown, Variant,
};
use crate::tags::tags;

/// A shape with the types that it names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Typed<'a> {
    pub(crate) shape: &'a Shape,
    pub(crate) types: &'a Types,
}

/// One change of the members of an object, at its place: `.items[].note`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemberChange {
    /// It is new, and may be absent.
    Added(String),
    /// It is not known any more: what is stored under its name is passed over.
    Dropped(String),
    /// It is not known any more, and one that is new would read the same values under its own name.
    Renamed(String, String),
    /// It could be absent, and has to be there.
    DefaultDropped(String),
    /// A name under which it was read is not known any more.
    AliasDropped(String, String),
    /// A form that was only read is not read any more.
    FormDropped(String),
    /// It is another value where it is absent.
    DefaultChanged(String),
    /// It is another value where it was left out, so that what was stored without it is read as that.
    LeftOutChanged(String),
    /// It is another value each time where it is absent, or is in another order each time.
    ByChance(String),
    /// Two stored forms that were read as one value are now read as two, so the rows with one of the forms have another value.
    ToldApart(String),
    /// It was not part of the fingerprint, and now is.
    Fingerprinted(String),
    /// It was kept as a member that the type did not know, whatever it was.
    WasUnknown(String),
    /// Members that the type does not know were passed over, and are refused.
    Closed(String),
    /// A rule has come that refuses what the type has taken.
    Ruled(String),
    /// What one alternative wrote is read as another.
    ReadAsAnother(String, TakenOver),
    /// A number is read with fewer digits.
    Rounded(String),
    /// One more alternative has no value that is known.
    Hidden(String),
}

/// In the order of the old members, and the new ones behind.
pub(crate) fn changes(old: Typed<'_>, new: Typed<'_>) -> Vec<MemberChange> {
    let mut walk = Walk { old: old.types, new: new.types, within: Vec::new(), found: Vec::new() };
    walk.shapes(old.shape, new.shape, "");
    walk.found
}

/// The same, and what a client sends that the new type makes something else of than of what is stored.
pub(crate) fn changes_for_clients(old: Typed<'_>, new: Typed<'_>) -> Vec<MemberChange> {
    let mut found = changes(old, new);
    if !found.iter().any(is_of_clients) {
        found.extend(differences(old, new));
    }
    found
}

/// What becomes of values without parts.
fn leaf_change(old: &Shape, new: &Shape, path: &str) -> Option<MemberChange> {
    let told_apart = || MemberChange::ToldApart(path.to_owned());
    let rounded = || MemberChange::Rounded(path.to_owned());
    match (old, new) {
        (Shape::Int(old), Shape::Int(new)) => old.is_told_apart_by(*new).then(told_apart),
        (Shape::Int(integer), Shape::Float(_)) if integer.has_changed() => Some(told_apart()),
        (Shape::Int(integer), Shape::Float(float)) => {
            (!integer.is_exact_in(float.bits)).then(rounded)
        }
        (Shape::Float(old), Shape::Float(new)) => match old.bits.cmp(&new.bits) {
            Ordering::Greater => Some(rounded()),
            // With digits that were not kept.
            Ordering::Less => Some(told_apart()),
            Ordering::Equal => old.is_told_apart_by(*new).then(told_apart),
        },
        // Other names of a variant were read as it.
        (Shape::Enum(old), Shape::Str(new)) => {
            let is_kept = |name: &String| new.recognises(name) && !new.changes(name);
            let mut other_names = old.iter().filter(|variant| variant.only_read);
            other_names.any(|variant| is_kept(&variant.name)).then(told_apart)
        }
        (Shape::Str(old), Shape::Str(new)) => old.is_told_apart_by(*new).then(told_apart),
        // What stands for all others is read in place of what it does not know.
        (Shape::Str(_) | Shape::Char(_), Shape::Enum(new)) => {
            is_open(new).then(|| MemberChange::Dropped(path.to_owned()))
        }
        _ => None,
    }
}

struct Walk<'a> {
    old: &'a Types,
    new: &'a Types,
    /// Pairs of named types that were compared.
    within: Vec<(&'a str, &'a str)>,
    found: Vec<MemberChange>,
}

impl<'a> Walk<'a> {
    fn shapes(&mut self, old: &'a Shape, new: &'a Shape, path: &str) {
        match (old, new) {
            (Shape::Named(one), Shape::Named(other)) => {
                if self.within.contains(&(one, other)) {
                    return;
                }
                self.within.push((one, other));
                self.named(one, other, path);
            }
            (Shape::Named(name), _) => {
                if let Some(old) = self.old.get(name) {
                    self.shapes(old, new, path);
                }
            }
            (_, Shape::Named(name)) => {
                if let Some(new) = self.new.get(name) {
                    self.shapes(old, new, path);
                }
            }
            // Which of the values that the old rule took the new one refuses is not seen.
            (Shape::Rule { of: old, .. }, Shape::Rule { of: new, .. }) => {
                self.shapes(old, new, path)
            }
            (Shape::Rule { of: old, .. }, _) => self.shapes(old, new, path),
            (old, Shape::Rule { of, refused }) => {
                if refused.iter().any(|value| fits(value, old, self.old).is_ok()) {
                    self.found.push(MemberChange::Ruled(path.to_owned()));
                }
                self.shapes(old, of, path);
            }
            (Shape::Option(old), Shape::Option(new)) => self.shapes(old, new, path),
            (Shape::Option(old), _) => self.shapes(old, new, path),
            (_, Shape::Option(new)) => self.shapes(old, new, path),
            (Shape::Enum(old), Shape::Enum(new)) => self.variants(old, new, path),
            (Shape::Union { written, .. }, _) => {
                self.alternatives(old, new, path);
                written.iter().for_each(|old| self.form(old, new, path));
            }
            (_, Shape::Union { .. }) => {
                self.alternatives(old, new, path);
                self.form(old, new, path);
            }
            _ => self.parts(old, new, path),
        }
    }

    /// Of lists, maps, structs and tuples, also where one is read as another. All else has no parts.
    fn parts(&mut self, old: &'a Shape, new: &'a Shape, path: &str) {
        let element = || format!("{path}[]");
        match (old, new) {
            (Shape::List(old), Shape::List(new)) => {
                self.order(old.order, new.order, path);
                self.shapes(&old.element, &new.element, &element());
            }
            (Shape::Map(one, old), Shape::Map(other, new)) => {
                self.shapes(one, other, &format!("{path}[key]"));
                self.shapes(old, new, &element());
            }
            // A map keeps each name that is sent: an alias, and what the type did not know.
            (Shape::Struct { fields, manner }, Shape::Map(_, new)) => {
                let has_alias = fields.iter().any(|field| !field.aliases.is_empty());
                if has_alias || manner.unknown == Unknown::PassedOver {
                    self.found.push(MemberChange::ToldApart(format!("{path}.*")));
                }
                for field in fields {
                    self.shapes(&field.shape, new, &field.place(path));
                }
            }
            // What has no name in the struct is passed over.
            (Shape::Map(key, old), Shape::Struct { fields, manner }) => {
                if manner.unknown == Unknown::PassedOver && !self.names_each(key, fields) {
                    self.found.push(MemberChange::Dropped(format!("{path}.*")));
                }
                for field in fields {
                    self.shapes(old, &field.shape, &field.place(path));
                }
            }
            (Shape::Tuple(old), Shape::Tuple(new)) => {
                for (index, (old, new)) in old.iter().zip(new).enumerate() {
                    self.shapes(old, new, &format!("{path}[{index}]"));
                }
            }
            (Shape::Tuple(old), Shape::List(List { element: new, order, .. })) => {
                self.order(Order::Kept, *order, path);
                for (index, old) in old.iter().enumerate() {
                    self.shapes(old, new, &format!("{path}[{index}]"));
                }
            }
            (Shape::List(List { element: old, .. }), Shape::Tuple(new)) => {
                for (index, new) in new.iter().enumerate() {
                    self.shapes(old, new, &format!("{path}[{index}]"));
                }
            }
            (Shape::Tuple(old), Shape::Struct { fields, .. }) => {
                for (old, field) in old.iter().zip(fields) {
                    self.shapes(old, &field.shape, &field.place(path));
                }
            }
            (
                Shape::Struct { fields: old, manner: before },
                Shape::Struct { fields: new, manner: now },
            ) => {
                self.unknown_members((old, *before), (new, *now), path);
                self.members(old, new, *now, path);
            }
            _ => self.found.extend(leaf_change(old, new, path)),
        }
    }

    fn alternatives(&mut self, old: &Shape, new: &Shape, path: &str) {
        let before = Typed { shape: old, types: self.old };
        let now = Typed { shape: new, types: self.new };
        let taken = taken_over(before, now);
        self.found.extend(taken.map(|taken| MemberChange::ReadAsAnother(path.to_owned(), taken)));
        let is_gone = |form: &Shape| {
            let made = match form {
                // Nothing is written as it is read there.
                Shape::Str(format) => examples(&Shape::Str(format.as_read()), self.old),
                form => examples(form, self.old),
            };
            let mut values = made.iter().filter(|made| made.is_complete);
            values.any(|made| {
                let value: Option<Value> = serde_json::from_str(&made.json).ok();
                value.is_some_and(|value| fits(&value, new, self.new).is_err())
            })
        };
        if let Shape::Union { read, .. } = old
            && read.iter().any(is_gone)
        {
            self.found.push(MemberChange::FormDropped(path.to_owned()));
        }
        if hidden(new) > hidden(old) {
            self.found.push(MemberChange::Hidden(path.to_owned()));
        }
    }

    /// Of a form of the old type, the form of the new one that reads it: the same, or that with its tag, or the
    /// first that takes its values.
    fn form(&mut self, old: &'a Shape, new: &'a Shape, path: &str) {
        let forms: Vec<&Shape> = match new {
            Shape::Union { written, read } => written.iter().chain(read).collect(),
            only => vec![only],
        };
        let has_its_tag = |new: &Shape| tags(old).next().is_some() && tags(old).eq(tags(new));
        let same = forms.iter().position(|new| *new == old);
        let tagged = || forms.iter().position(|new| has_its_tag(new));
        let reading = || forms.iter().position(|new| self.reads_the_same(old, new));
        if let Some(index) = same.or_else(tagged).or_else(reading) {
            self.shapes(old, forms[index], path);
        }
    }

    fn named(&mut self, old: &str, new: &str, path: &str) {
        let (one, other) = (self.old, self.new);
        if let (Some(old), Some(new)) = (one.get(old), other.get(new)) {
            self.shapes(old, new, path);
        }
    }

    fn order(&mut self, old: Order, new: Order, path: &str) {
        let path = path.to_owned();
        match (old, new) {
            (Order::Kept | Order::Sorted | Order::Set, Order::Chance) => {
                self.found.push(MemberChange::ByChance(path))
            }
            (Order::Kept | Order::Sorted, Order::Set) => {
                self.found.push(MemberChange::Dropped(format!(
                    "{path}, its order and what is there twice,"
                )));
            }
            (Order::Kept, Order::Sorted) => {
                self.found.push(MemberChange::Dropped(format!("{path}, its order,")));
            }
            (Order::Set, Order::Kept | Order::Sorted) | (Order::Sorted, Order::Kept) => {
                self.found.push(MemberChange::ToldApart(path))
            }
            _ => {}
        }
    }

    /// What becomes of members that have no name in the type.
    fn unknown_members(
        &mut self,
        (old, before): (&[Field], Manner),
        (new, now): (&'a [Field], Manner),
        path: &str,
    ) {
        match (before.unknown, now.unknown) {
            (Unknown::PassedOver, Unknown::Refused) => {
                self.found.push(MemberChange::Closed(path.to_owned()));
            }
            (Unknown::PassedOver, Unknown::Kept) => {
                self.found.push(MemberChange::ToldApart(format!("{path}.*")));
            }
            (Unknown::Kept, Unknown::PassedOver) => {
                self.found.push(MemberChange::Dropped(format!("{path}.*")));
            }
            _ => {}
        }
        if before.unknown != Unknown::Kept {
            return;
        }
        let is_known = |name: &String| {
            old.iter().any(|field| field.name == *name || field.aliases.contains(name))
        };
        let kept = old.iter().find(|field| field.name == REST);
        let kept = kept.map_or(&Shape::Any, |rest| &rest.shape);
        for field in new {
            let mut names = field.aliases.iter().chain([&field.name]);
            if names.any(|name| !is_known(name)) && !self.takes_each(kept, &field.shape) {
                self.found.push(MemberChange::WasUnknown(field.place(path)));
            }
        }
    }

    /// Whether the new shape takes what the old one has, as far as that is known.
    fn takes_each(&self, old: &Shape, new: &Shape) -> bool {
        examples(old, self.old).iter().all(|made| {
            let value: Option<Value> = serde_json::from_str(&made.json).ok();
            value.is_some_and(|value| fits(&value, new, self.new).is_ok())
        })
    }

    /// Whether each key of a map is the name of one of these members.
    fn names_each(&self, key: &Shape, fields: &[Field]) -> bool {
        let key = match key {
            Shape::Named(name) => self.old.get(name).unwrap_or(key),
            key => key,
        };
        let has = |name: &String| {
            fields.iter().any(|field| field.name == *name || field.aliases.contains(name))
        };
        matches!(key, Shape::Enum(variants) if variants.iter().all(|variant| has(&variant.name)))
    }

    fn members(&mut self, old: &'a [Field], new: &'a [Field], manner: Manner, path: &str) {
        let is_same =
            |old: &Field, new: &Field| old.name == new.name || new.aliases.contains(&old.name);
        let place = |field: &Field| field.place(path);
        // Whether the others are kept is told before.
        let mut added: Vec<&Field> = new.iter().filter(|field| field.name != REST).collect();
        added.retain(|new| new.optional && !old.iter().any(|old| is_same(old, new)));
        for before in old {
            if let Some(now) = new.iter().find(|now| is_same(before, now)) {
                if before.optional && !now.optional {
                    self.found.push(MemberChange::DefaultDropped(place(now)));
                }
                // Also one that is a member of its own now.
                let is_known = |name: &String| now.name == *name || now.aliases.contains(name);
                let gone = before.aliases.iter().find(|alias| !is_known(alias));
                self.found.extend(
                    gone.map(|alias| MemberChange::AliasDropped(place(now), alias.clone())),
                );
                let told = self.found.len();
                if now.optional {
                    self.default(before, now, &place(now));
                }
                if before.unfingerprinted && !now.unfingerprinted {
                    self.found.push(MemberChange::Fingerprinted(place(now)));
                }
                self.shapes(&before.shape, &now.shape, &place(before));
                if now.unfingerprinted {
                    let told = self.found.split_off(told);
                    self.found.extend(told.into_iter().filter(|it| !is_of_comparison(it)));
                }
                continue;
            }
            if manner.unknown != Unknown::PassedOver || before.name == REST {
                continue;
            }
            let reads = |now: &&Field| self.reads_the_same(&before.shape, &now.shape);
            self.found.push(match added.iter().position(reads) {
                Some(index) => {
                    let now = added.remove(index);
                    MemberChange::Renamed(place(before), now.name.clone())
                }
                None => MemberChange::Dropped(place(before)),
            });
        }
        for now in added {
            self.found.push(MemberChange::Added(place(now)));
            if now.default == Absent::ByChance && !now.unfingerprinted {
                self.found.push(MemberChange::ByChance(place(now)));
            }
        }
    }

    /// What becomes of those who leave a member out.
    fn default(&mut self, before: &Field, now: &Field, place: &str) {
        let place = place.to_owned();
        match (&before.default, &now.default) {
            (Absent::ByChance, Absent::ByChance) | (Absent::Apart, Absent::Apart) => {}
            (_, Absent::ByChance) => self.found.push(MemberChange::ByChance(place)),
            (_, Absent::Apart) if before.optional => {
                self.found.push(MemberChange::DefaultChanged(place));
            }
            _ => {
                if let (Some(was), Some(is)) = (default(before), default(now))
                    && !self.is_same(&was, &is, now)
                {
                    self.found.push(match before.default.is_left_out() {
                        true => MemberChange::LeftOutChanged(place),
                        false => MemberChange::DefaultChanged(place),
                    });
                }
            }
        }
    }

    /// Whether two defaults are one: a number may be read as an integer, or as a float, and a member of one may have
    /// come since.
    fn is_same(&self, was: &Value, is: &Value, now: &Field) -> bool {
        let reader = Reader { types: self.new, counts_only: true };
        let read = |value| reader.reads(value, &now.shape);
        let is_one = was == is || was.as_f64().is_some_and(|was| is.as_f64() == Some(was));
        match (read(was), read(is)) {
            _ if is_one => true,
            (Ok(was), Ok(is)) => was == is,
            // A part of it is not known: of that it is told.
            (Err(unread), _) | (_, Err(unread)) => {
                !unread.is_refused() && (was.is_object() || was.is_array())
            }
        }
    }

    /// Whether the new type reads each value of the old one: a value, and not only `null`.
    fn reads_the_same(&self, old: &Shape, new: &Shape) -> bool {
        if matches!(new, Shape::Any | Shape::Opaque) {
            return old == new;
        }
        let mut all = examples(old, self.old).into_iter();
        all.all(|example| {
            let value: Option<Value> = serde_json::from_str(&example.json).ok();
            example.is_complete && value.is_some_and(|value| fits(&value, new, self.new).is_ok())
        })
    }

    fn variants(&mut self, old: &'a [Variant], new: &'a [Variant], path: &str) {
        if let Some(come) = new.iter().find(|now| !old.iter().any(|before| before.name == now.name))
            && is_open(old)
            && come.name != OTHER
        {
            // It was read as what stands for all others.
            self.found.push(MemberChange::ToldApart(format!("{path}.{}", come.name)));
        }
        let is_open = is_open(new);
        for before in old.iter().filter(|variant| variant.name != OTHER) {
            let place = format!("{path}.{}", before.name);
            match new.iter().find(|now| now.name == before.name) {
                Some(now) => {
                    if before.only_read && !now.only_read {
                        self.found.push(MemberChange::ToldApart(place.clone()));
                    }
                    if let (Some(old), Some(new)) = (&before.content, &now.content) {
                        self.shapes(old, new, &place);
                    }
                }
                // What stands for all others is read in its place.
                None if is_open && before.only_read => {
                    self.found.push(MemberChange::ToldApart(place));
                }
                None if is_open => self.found.push(MemberChange::Dropped(place)),
                None if before.only_read => self.found.push(MemberChange::FormDropped(place)),
                None => {}
            }
        }
    }
}

fn is_open(variants: &[Variant]) -> bool {
    variants.iter().any(|variant| variant.name == OTHER)
}

/// What a member is that is absent, if that is known.
fn default(field: &Field) -> Option<Value> {
    match &field.default {
        _ if !field.optional => None,
        Absent::Is(default) => Some(default.clone()),
        Absent::LeftOut(value) => value.clone(),
        Absent::Unknown => matches!(field.shape, Shape::Option(_)).then_some(Value::Null),
        // It is not what `null` is, and nearer to that than to a value.
        Absent::Apart => Some(Value::Null),
        Absent::ByChance => None,
    }
}

/// Whether only retries see it, who are compared by what counts.
fn is_of_comparison(change: &MemberChange) -> bool {
    matches!(
        change,
        MemberChange::DefaultChanged(_)
            | MemberChange::ByChance(_)
            | MemberChange::ToldApart(_)
            | MemberChange::Fingerprinted(_)
    )
}

/// Whether a client that sends what was accepted before is refused, or gets a mismatch.
fn is_of_clients(change: &MemberChange) -> bool {
    is_of_comparison(change)
        || matches!(
            change,
            MemberChange::LeftOutChanged(_)
                | MemberChange::DefaultDropped(_)
                | MemberChange::AliasDropped(..)
                | MemberChange::FormDropped(_)
        )
}

#[cfg(test)]
mod tests;
