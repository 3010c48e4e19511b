//! From a place in a JSON text to the place in the value that it was written from.

use super::tree::Node;
use crate::fingerprint::Step;

/// Where in `written`, whose JSON is `json`, reading it failed.
pub(super) fn of(error: &serde_json::Error, json: &str, written: &Node) -> Vec<Step> {
    let before = json.lines().take(error.line().saturating_sub(1)).map(|line| line.len() + 1);
    let offset = before.sum::<usize>() + error.column();
    let mut path = Vec::new();
    written.step_by_step(&indices(json.as_bytes(), offset), &mut path);
    path
}

/// Which member or element it is at each level of nesting, from the outermost inwards.
fn indices(json: &[u8], offset: usize) -> Vec<usize> {
    let mut indices = Vec::new();
    let (mut in_string, mut escaped) = (false, false);
    for byte in &json[..offset.min(json.len())] {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => indices.push(0),
            b'}' | b']' => drop(indices.pop()),
            b',' => {
                if let Some(index) = indices.last_mut() {
                    *index += 1;
                }
            }
            _ => {}
        }
    }
    indices
}
