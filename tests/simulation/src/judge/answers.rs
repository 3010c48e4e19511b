//! The clients' answers, held against each other and against the lives of their keys.

use std::collections::BTreeMap;
use std::time::Duration;

use atomic_phases::fingerprint::{RequestOrigin, fingerprint};

use super::{History, Op, Told, Watched, key_name, scope_name};
use crate::plan::{Call, Kind};
use crate::requests::{Alert, Fare, Flood, Note, Parcel, Ride, Stray, Transfer};

/// The fingerprint of a call.
fn fingerprint_of(call: &Call) -> String {
    let origin = RequestOrigin::default();
    let amount = call.amount;
    let taken = match call.kind {
        Kind::Ride => fingerprint(&origin, &Ride { amount }),
        Kind::Fare => fingerprint(&origin, &Fare { amount }),
        Kind::Note => fingerprint(&origin, &Note { amount }),
        Kind::Parcel => fingerprint(&origin, &Parcel { amount }),
        Kind::Transfer => fingerprint(&origin, &Transfer { amount }),
        Kind::Alert => fingerprint(&origin, &Alert { amount }),
        Kind::Stray => fingerprint(&origin, &Stray { amount }),
        Kind::Flood => fingerprint(&origin, &Flood { amount }),
    };
    taken.unwrap().as_str().to_owned()
}

/// Status, headers and body.
type Said<'a> = (u16, &'a [(String, String)], &'a [u8]);

/// In each life of a key: nothing, then one request, then its one answer, until it is erased or its retention is
/// over. The answers must fit an order in which each call takes place between its question and its answer.
pub(super) fn answers(watched: &Watched, history: &History) -> Vec<String> {
    let plan = &watched.plan;
    let mut found = Vec::new();
    let mut keys: BTreeMap<(u8, u8), Vec<&Op>> = BTreeMap::new();
    for op in &history.ops {
        keys.entry((op.call.scope, op.call.key)).or_default().push(op);
    }
    for (key, ops) in keys {
        let mut answer: Option<(Said<'_>, i64, Duration)> = None;
        // Of a life that may be a later one, told to a call that was under way beside the one that heard the answer above.
        let mut perhaps_later: Option<(Said<'_>, i64)> = None;
        let mut asked = Duration::MAX;
        let mut first_hand = 0;
        for op in &ops {
            let at = format!("key {key:?}, {:?} to {:?}", op.invoked, op.returned);
            if let Told::Finished { status, headers, body, replayed } = &op.told {
                let said = (*status, headers.as_slice(), body.as_slice());
                let returned = op.returned.unwrap_or(op.invoked);
                first_hand += u32::from(!replayed);
                match answer {
                    None => {
                        answer = Some((said, op.call.amount, returned));
                        asked = op.invoked;
                    }
                    Some((known, amount, since))
                        if plan.has_many_lives() && (known, amount) != (said, op.call.amount) =>
                    {
                        // The answer of a life that began since then; or of the previous one, late.
                        let is_later = perhaps_later == Some((said, op.call.amount));
                        if watched.begins_between(key, since, returned)
                            || (is_later && op.invoked > since)
                        {
                            answer = Some((said, op.call.amount, returned));
                            (perhaps_later, asked) = (None, op.invoked);
                        } else if op.invoked <= since {
                            let (from, to) = (asked.min(op.invoked), since.max(returned));
                            if watched.lives_between(key, from, to) > 1 {
                                perhaps_later = Some((said, op.call.amount));
                            }
                        } else {
                            found.push(format!("G8: another answer in the same life: {at}"));
                        }
                    }
                    Some((known, amount, since)) => {
                        if known != said {
                            found.push(format!("G8: another answer than before: {at}"));
                        }
                        if amount != op.call.amount {
                            found.push(format!("G9: another request's answer: {at}"));
                        }
                        answer = Some((known, amount, since.min(returned)));
                    }
                }
            }
            let returned = op.returned.unwrap_or(op.invoked);
            let row = (scope_name(key.0), key_name(key.1));
            let gone = watched.erased.get(&row).filter(|since| op.invoked > **since);
            if let (Some(since), Told::Finished { .. }) = (gone, &op.told)
                && !watched.begins_between(key, *since, returned)
            {
                found.push(format!("a call received an answer that was erased: {at}"));
            }
            if op.told == Told::Erased && !plan.erases(key.0, key.1) {
                found.push(format!("told erased, and it was not erased: {at}"));
            }
            let Some(stored) = &op.stored else { continue };
            // The row may no longer have anything about this life.
            if op.told == Told::Erased || watched.begins_between(key, op.invoked, returned) {
                continue;
            }
            // The part of a row's value after the fingerprint is the form of its parameters.
            let other = !stored.starts_with(&fingerprint_of(&op.call));
            match (&op.told, other) {
                (Told::Error | Told::Nothing, _) => {}
                (Told::Failed, _) if op.is_of_nothing_begun() => {}
                (Told::Mismatch, true) => {}
                (Told::OverQuota, _) => {
                    found.push(format!("G16: a key that has a row is refused as a new one: {at}"));
                }
                (told, true) => found.push(format!("G9: another request is told {told:?}: {at}")),
                (Told::Mismatch, false) => found.push(format!("G9: the same is a mismatch: {at}")),
                _ => {}
            }
        }
        let lives = watched.lives.get(&(scope_name(key.0), key_name(key.1)));
        if first_hand > lives.map_or(1, |lives| lives.len() as u32) {
            found.push(format!("G10: {first_hand} calls ran key {key:?} to its end"));
        }
        let Some((_, amount, since)) = answer else { continue };
        for op in ops.iter().filter(|op| op.invoked > since && op.call.amount == amount) {
            let may_have_ended = plan.has_many_lives() || plan.erases(key.0, key.1);
            let is_told = matches!(op.told, Told::Finished { .. } | Told::Error | Told::Nothing);
            if !may_have_ended && !is_told && !op.is_of_nothing_begun() {
                let at = format!("key {key:?}, asked at {:?}", op.invoked);
                found.push(format!("moved back: finished, and then {:?}: {at}", op.told));
            }
        }
    }
    found
}

/// The answer *in progress* refers to something (G10): a row, a transaction, or another call that came first. If
/// transactions were abandoned, it may refer to one that is over by now.
pub(super) fn in_progress_of_nothing(history: &History) -> Vec<String> {
    let of_nothing = history.ops.iter().filter(|op| op.of_nothing);
    let without = of_nothing.filter(|op| {
        !history.ops.iter().any(|other| {
            // An unanswered call may continue without its client.
            let goes_on = matches!(other.told, Told::Nothing | Told::Error);
            let overlaps = goes_on || other.returned.is_none_or(|end| end >= op.invoked);
            !std::ptr::eq(other, *op)
                && (other.call.scope, other.call.key) == (op.call.scope, op.call.key)
                && Some(other.invoked) <= op.returned
                && overlaps
        })
    });
    let text =
        |op: &Op| format!("G10: told in progress, and no process works on it: {:?}", op.call);
    without.map(text).collect()
}
