//! When the newest requests were accepted, and what became of them: drawn on the server.

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use super::format::{Now, exact, span};
use crate::ops::{State, Summary};

const BARS: usize = 40;
const WIDTH: usize = 800;
const HEIGHT: usize = 96;

/// What a bar is made of, from the bottom up.
const PARTS: [(&str, &str); 3] =
    [("finished", "finished"), ("work", "in work"), ("waits", "waiting for an operator")];

fn part(state: State) -> usize {
    match state {
        State::Finished | State::Erased => 0,
        State::Unknown | State::DeadLetter => 2,
        _ => 1,
    }
}

/// One bar for each part of the time between the oldest of them and now.
pub(super) fn arrivals(rows: &[Summary], Now(now): Now) -> Markup {
    let first = rows.iter().map(|row| row.created_at).min().unwrap_or(now);
    let counts = counted(rows, first, now);
    let highest = counts.iter().map(|bar| bar.iter().sum()).max().unwrap_or(1).max(1);
    let sum = |part: usize| counts.iter().map(|bar| bar[part]).sum::<usize>();
    let label = format!(
        "{} requests in {}: {} finished, {} in work, {} waiting",
        rows.len(),
        span(now - first),
        sum(0),
        sum(1),
        sum(2)
    );
    let step = WIDTH / BARS;
    html! {
        figure.chart {
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(label) preserveAspectRatio="none" {
                line.ground x1="0" x2=(WIDTH) y1=(HEIGHT - 1) y2=(HEIGHT - 1) {}
                @for (index, bar) in counts.iter().enumerate() {
                    @for (part, (class, _)) in PARTS.iter().enumerate() {
                        @let below = height(bar[..part].iter().sum(), highest);
                        @let tall = height(bar[..=part].iter().sum(), highest) - below;
                        @if tall > 0 {
                            rect class=(class) x=(index * step + 2) width=(step - 4)
                                y=(HEIGHT - 2 - below - tall) height=(tall) {}
                        }
                    }
                }
            }
            figcaption {
                span { (exact(first)) " to now" }
                ul.legend {
                    @for (part, (class, name)) in PARTS.iter().enumerate() {
                        li class=(class) { (sum(part)) " " (name) }
                    }
                }
            }
        }
    }
}

/// At least one unit, so that one request among hundreds is seen.
fn height(count: usize, highest: usize) -> usize {
    let room = HEIGHT - 4;
    (count * room).div_ceil(highest)
}

fn counted(rows: &[Summary], first: DateTime<Utc>, now: DateTime<Utc>) -> [[usize; 3]; BARS] {
    let all = (now - first).num_milliseconds().max(1);
    let mut counts = [[0; 3]; BARS];
    for row in rows {
        let since = (row.created_at - first).num_milliseconds().clamp(0, all);
        let bar = (since * BARS as i64 / all) as usize;
        counts[bar.min(BARS - 1)][part(row.state)] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use uuid::Uuid;

    use super::*;

    fn request(created_at: DateTime<Utc>, state: State) -> Summary {
        Summary {
            request_id: Uuid::nil(),
            version: "v".into(),
            definition: ("book".to_owned(), 1),
            state,
            stranded: None,
            recovery_point: "started".to_owned(),
            phase: None,
            open_intent: None,
            may_have_been_called: false,
            perhaps_called: None,
            reason: None,
            attempts: 1,
            created_at,
            waiting_since: None,
            leased_until: None,
            next_at: None,
            expires_at: created_at,
            scope_hash: String::new(),
            key_hash: String::new(),
        }
    }

    #[test]
    fn the_bars_are_the_counts() {
        use State::{DeadLetter, Erased, Finished, Running, Unknown};
        let first = DateTime::from_timestamp(1_764_000_000, 0).unwrap();
        // A minute for each bar.
        let now = first + TimeDelta::minutes(BARS as i64);
        let last = now - TimeDelta::seconds(30);
        let rows: Vec<Summary> = [
            (first, Finished),
            (first, Unknown),
            (first + TimeDelta::seconds(59), Running),
            (first + TimeDelta::seconds(1), Finished),
            (last, Erased),
            (now, DeadLetter),
        ]
        .map(|(at, state)| request(at, state))
        .into();
        let drawn = arrivals(&rows, Now(now)).into_string();
        let number = |bar: &str, name: &str| -> usize {
            let (_, value) = bar.split_once(&format!(" {name}=\"")).unwrap();
            value.split('"').next().unwrap().parse().unwrap()
        };
        let bars: Vec<(&str, usize, usize)> = drawn
            .split("<rect class=\"")
            .skip(1)
            .map(|bar| (bar.split('"').next().unwrap(), number(bar, "x"), number(bar, "height")))
            .collect();
        // Four requests are as high as there is room.
        let one = (HEIGHT - 4) / 4;
        let at_the_end = (BARS - 1) * (WIDTH / BARS) + 2;
        let expected = [
            ("finished", 2, 2 * one),
            ("work", 2, one),
            ("waits", 2, one),
            ("finished", at_the_end, one),
            ("waits", at_the_end, one),
        ];
        assert_eq!(bars, expected, "{drawn}");
        assert!(
            drawn.contains("6 requests in ")
                && drawn.contains(": 3 finished, 1 in work, 2 waiting")
        );
        for told in ["3 finished", "1 in work", "2 waiting for an operator"] {
            assert!(drawn.contains(&format!(">{told}</li>")), "{told}: {drawn}");
        }
    }
}
