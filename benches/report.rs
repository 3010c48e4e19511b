//! The tables of `docs/bench/results.md`.

use std::fmt::Write;
use std::time::Duration;

use crate::load::Figures;
use crate::samples::Samples;

/// One section of the report: contestants, each beside its yardsticks.
pub fn section(
    title: &str,
    samples: &Samples,
    contestants: &[&str],
    yardsticks: &[&str],
) -> String {
    let mut out = format!("\n## {title}\n\n| concurrent | | requests/s |");
    for yardstick in yardsticks {
        let _ = write!(out, " x {yardstick} |");
    }
    out += " p50 ms | p99 ms | p99 x | client CPU µs | server CPU µs |\n|---|---|---|---|---|---|---|---|";
    out += &"---|".repeat(yardsticks.len());
    out.push('\n');
    let names = yardsticks.iter().chain(contestants);
    let Some(first) = contestants.first() else { return out };
    for concurrent in samples.concurrencies(first) {
        for name in names.clone() {
            let median = |figure: fn(&Figures) -> f64| {
                samples.spread(name, concurrent, figure).map_or(f64::NAN, |spread| spread.median)
            };
            let _ = write!(out, "| {concurrent} | {name} | {:.0} |", median(|f| f.per_second));
            for yardstick in yardsticks {
                let _ = match samples.ratio(name, yardstick, concurrent, |f| f.per_second) {
                    Some(ratio) if name != yardstick => write!(out, " {ratio} |"),
                    _ => write!(out, " |"),
                };
            }
            let median_tail = yardsticks.first().and_then(|yardstick| {
                samples.ratio(name, yardstick, concurrent, |f| f.p99).map(|r| r.median)
            });
            let tail = median_tail.map_or(String::new(), |ratio| format!("{ratio:.2}"));
            let _ = writeln!(
                out,
                " {:.2} | {:.2} | {} | {:.0} | {:.0} |",
                median(|f| f.p50),
                median(|f| f.p99),
                tail,
                median(|f| f.client_cpu),
                median(|f| f.server_cpu),
            );
        }
    }
    out
}

/// Among the settings of a server that is [away](crate::away).
pub fn delay(of: Duration) -> (String, String) {
    ("on its way, in either direction".to_owned(), format!("{} µs", of.as_micros()))
}

/// Machine and settings, below a title that says what wrote it.
pub fn machine(
    title: &str,
    version: &str,
    settings: &[(String, String)],
    rounds: usize,
    seconds: u64,
) -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = read("/proc/meminfo");
    let memory = memory.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok());
    let load = read("/proc/loadavg");
    let load: Vec<&str> = load.split(' ').take(2).collect();
    let mut out = format!(
        "{title}\n\n{cores} cores ({model}), {} GB, shared by client and server; load average at the end {}. \
         {rounds} interleaved rounds of {seconds} s for each contestant. Figures are medians; a ratio is \
         the median of the ratios within each round, with the least and the greatest in brackets.\n\n\
         {version}\n\n| setting | |\n|---|---|\n",
        memory.unwrap_or(0) >> 20,
        load.join(" "),
    );
    for (name, value) in settings {
        let _ = writeln!(out, "| {name} | {value} |");
    }
    out
}
