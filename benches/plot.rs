//! A plot as SVG: ratios to a yardstick over the number of concurrent requests, with their spread.

use std::fmt::Write;

use crate::samples::Samples;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 50.0;
const BOTTOM: f64 = 320.0;
const COLOURS: [&str; 4] = ["#1b6ca8", "#c8553d", "#588157", "#7b2d8b"];

pub fn ratios(title: &str, samples: &Samples, names: &[&str], yardstick: &str) -> String {
    let concurrent = samples.concurrencies(yardstick);
    let most = names
        .iter()
        .flat_map(|name| concurrent.iter().map(move |c| (name, c)))
        .filter_map(|(name, c)| samples.ratio(name, yardstick, *c, |f| f.per_second))
        .fold(1.0, |most: f64, ratio| most.max(ratio.most));
    let top = (most * 4.0).ceil() / 4.0;
    let x =
        |place: usize| LEFT + 40.0 + place as f64 * 500.0 / (concurrent.len().max(2) - 1) as f64;
    let y = |ratio: f64| BOTTOM - ratio / top * 270.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{title}</text>\n"
    );
    for quarter in 0..=(top * 4.0) as u32 {
        let ratio = f64::from(quarter) / 4.0;
        let line = if ratio == 1.0 { "#333" } else { "#ddd" };
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {0:.1}H610\" stroke=\"{line}\"/><text x=\"16\" y=\"{0:.1}\">{ratio:.2}</text>",
            y(ratio)
        );
    }
    for (place, concurrent) in concurrent.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"340\" text-anchor=\"middle\">{concurrent} concurrent</text>",
            x(place)
        );
    }
    for (name, colour) in names.iter().zip(COLOURS.iter().cycle()) {
        let mut line = String::new();
        let mut last = 0.0;
        for (place, concurrent) in concurrent.iter().enumerate() {
            let Some(ratio) = samples.ratio(name, yardstick, *concurrent, |f| f.per_second) else {
                continue;
            };
            let step = if line.is_empty() { 'M' } else { 'L' };
            let _ = write!(line, "{step}{:.1} {:.1}", x(place), y(ratio.median));
            let _ = writeln!(
                svg,
                "<path d=\"M{:.1} {:.1}V{:.1}\" stroke=\"{colour}\" opacity=\"0.5\"/>",
                x(place),
                y(ratio.least),
                y(ratio.most)
            );
            last = y(ratio.median);
        }
        let _ = writeln!(
            svg,
            "<path d=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"600\" y=\"{last:.1}\" fill=\"{colour}\">{name}</text>"
        );
    }
    svg + "</svg>\n"
}
