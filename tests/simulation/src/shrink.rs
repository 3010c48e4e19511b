//! From a failing plan to the smallest one that fails. It works on the plan as JSON: a missing part has its
//! default, so a part is removed by removing its text.

use serde_json::Value;

use super::plan::Plan;

/// The most runs that one shrinking may take.
const RUNS: usize = 3000;

/// The plan with only what its failure needs, and its text.
pub fn shrink(plan: &Plan, fails: impl Fn(&Plan) -> bool) -> (Plan, String) {
    let text = serde_json::to_value(plan).expect("a plan");
    let mut shrinking = Shrinking { text, plan: plan.clone(), runs: 0, fails };
    while shrinking.round() {}
    let text = shrinking.text.to_string();
    (shrinking.plan, text)
}

struct Shrinking<F> {
    text: Value,
    plan: Plan,
    runs: usize,
    fails: F,
}

impl<F: Fn(&Plan) -> bool> Shrinking<F> {
    /// Whether the plan became smaller.
    fn round(&mut self) -> bool {
        let mut less = false;
        for nodes in 1..self.plan.nodes {
            less |= self.attempt(|text| text["nodes"] = nodes.into());
        }
        // Whole parts, then halves of each, then ever smaller pieces, then what is in a piece.
        for path in paths(&self.text) {
            let mut size = self.text.pointer(&path).map_or(0, size);
            while size > 0 && self.runs < RUNS {
                let mut from = 0;
                while from < self.text.pointer(&path).map_or(0, self::size) && self.runs < RUNS {
                    match self.attempt(|text| remove(text.pointer_mut(&path), from, size)) {
                        true => less = true,
                        false => from += size,
                    }
                }
                size /= 2;
            }
        }
        for path in paths(&self.text) {
            less |= self.attempt(|text| round(text.pointer_mut(&path)));
        }
        less && self.runs < RUNS
    }

    fn attempt(&mut self, change: impl FnOnce(&mut Value)) -> bool {
        let mut text = self.text.clone();
        change(&mut text);
        if text == self.text || self.runs >= RUNS {
            return false;
        }
        let Ok(plan) = serde_json::from_value::<Plan>(text.clone()) else { return false };
        let plan = plan.on_its_nodes();
        self.runs += 1;
        let fails = (self.fails)(&plan);
        if fails {
            (self.text, self.plan) = (text, plan);
        }
        fails
    }
}

/// The paths of all its parts, from the outside in.
fn paths(text: &Value) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut at = 0;
    while let Some(path) = all.get(at).cloned() {
        match text.pointer(&path) {
            Some(Value::Object(map)) => {
                all.extend(map.keys().map(|key| format!("{path}/{}", key.replace('/', "~1"))));
            }
            Some(Value::Array(list)) => {
                all.extend((0..list.len()).map(|index| format!("{path}/{index}")));
            }
            _ => {}
        }
        at += 1;
    }
    all
}

fn size(text: &Value) -> usize {
    match text {
        Value::Object(map) => map.len(),
        Value::Array(list) => list.len(),
        _ => 0,
    }
}

fn remove(text: Option<&mut Value>, from: usize, count: usize) {
    match text {
        Some(Value::Array(list)) => {
            let to = list.len().min(from + count);
            list.drain(from..to);
        }
        Some(Value::Object(map)) => {
            let keys: Vec<String> = map.keys().skip(from).take(count).cloned().collect();
            // The kind of request of a key stays: two kinds with one key are another plan. And the seed stays,
            // because values are drawn from it during the run.
            let stay = ["seed", "scope", "key", "kind"];
            for key in keys.iter().filter(|key| !stay.contains(&key.as_str())) {
                map.remove(key);
            }
        }
        _ => {}
    }
}

/// A number with a single non-zero digit.
fn round(text: Option<&mut Value>) {
    if let Some(text) = text
        && let Some(number) = text.as_u64()
        && number > 99
    {
        let unit = 10_u64.pow(number.ilog10());
        *text = (number / unit * unit).into();
    }
}
