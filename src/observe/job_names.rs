//! Which jobs have series of their own: a job's name may be any text that a phase made up, or another build.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::OTHER;
use crate::lock::lock;

/// How many names have series in a process; all others have one together.
const MAX_NAMES: usize = 200;

static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// The name, as long as there is room for it. It is kept as long as the process, as its series are.
pub(super) fn label(name: &str) -> &'static str {
    of(&mut lock(&NAMES), name)
}

fn of(names: &mut BTreeSet<&'static str>, name: &str) -> &'static str {
    if let Some(known) = names.get(name) {
        return known;
    }
    if names.len() >= MAX_NAMES {
        return OTHER;
    }
    let name: &'static str = Box::leak(name.into());
    names.insert(name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_names_have_two_hundred_labels_and_one() {
        let mut names = BTreeSet::new();
        let labels: BTreeSet<_> =
            (0..10_000).map(|number| of(&mut names, &format!("job-{number}"))).collect();
        assert_eq!(labels.len(), MAX_NAMES + 1);
        assert_eq!((of(&mut names, "job-7"), of(&mut names, "job-9999")), ("job-7", OTHER));
    }
}
