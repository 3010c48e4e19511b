//! What was measured, and what it comes to: medians, and ratios paired by round.

use crate::load::Figures;

pub struct Sample {
    pub contestant: &'static str,
    pub concurrent: usize,
    pub round: usize,
    pub figures: Figures,
}

#[derive(Default)]
pub struct Samples(Vec<Sample>);

/// Median, least and most.
#[derive(Clone, Copy)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => (values[middle - 1] + values[middle]) / 2.0,
            _ => values[middle],
        };
        Some(Self { median, least, most })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = f.precision().unwrap_or(2);
        let Self { median, least, most } = self;
        write!(f, "{median:.digits$} ({least:.digits$}–{most:.digits$})")
    }
}

impl Samples {
    pub fn add(
        &mut self,
        contestant: &'static str,
        concurrent: usize,
        round: usize,
        figures: Figures,
    ) {
        self.push(contestant, concurrent, round, figures);
        println!(
            "round {round}, {concurrent:3} concurrent, {contestant:24} {:9.0}/s  p50 {:7.2}  p99 {:8.2} ms",
            figures.per_second, figures.p50, figures.p99
        );
    }

    /// As [`add`](Self::add), without a word.
    pub fn push(
        &mut self,
        contestant: &'static str,
        concurrent: usize,
        round: usize,
        figures: Figures,
    ) {
        self.0.push(Sample { contestant, concurrent, round, figures });
    }

    fn of(&self, contestant: &str, concurrent: usize) -> impl Iterator<Item = &Sample> {
        self.0.iter().filter(move |s| s.contestant == contestant && s.concurrent == concurrent)
    }

    pub fn spread(
        &self,
        contestant: &str,
        concurrent: usize,
        figure: impl Fn(&Figures) -> f64,
    ) -> Option<Spread> {
        Spread::of(self.of(contestant, concurrent).map(|s| figure(&s.figures)).collect())
    }

    /// To what `yardstick` did in the same round.
    pub fn ratio(
        &self,
        contestant: &str,
        yardstick: &str,
        concurrent: usize,
        figure: impl Fn(&Figures) -> f64,
    ) -> Option<Spread> {
        let paired = self.of(contestant, concurrent).filter_map(|sample| {
            let beside = self.of(yardstick, concurrent).find(|s| s.round == sample.round)?;
            Some(figure(&sample.figures) / figure(&beside.figures))
        });
        Spread::of(paired.collect())
    }

    /// In the order of their first appearance.
    pub fn concurrencies(&self, contestant: &str) -> Vec<usize> {
        let mut all = Vec::new();
        for sample in self.0.iter().filter(|sample| sample.contestant == contestant) {
            if !all.contains(&sample.concurrent) {
                all.push(sample.concurrent);
            }
        }
        all
    }
}
