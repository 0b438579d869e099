//! The plots of a figure of transactions.
//!
//! A swept series has a curve for each point: latency over throughput. A figure with an `x` is
//! plotted over `x`, with a line for each label. Any other series is plotted point by point, with
//! our and the published values.

use super::file::{ClosedLoops, Figure};
use super::rows::SeriesRow;
use crate::figures::observed::Observed;
use crate::figures::plot::{Line, Plot};

/// All plots of the figure `name`.
pub(super) fn plots(name: &str, figure: &Figure, rows: &[SeriesRow<'_>]) -> Vec<Plot> {
    let mut plots = Vec::new();
    if let Some(x) = &figure.x {
        plots.extend(over(name, x, rows));
    }
    let alone = figure.series.iter().filter(|_| figure.x.is_none());
    for series in alone {
        let of = |row: &&SeriesRow<'_>| row.series.name == series.name;
        let rows: Vec<&SeriesRow<'_>> = rows.iter().filter(of).collect();
        let name = format!("{name}, {}", series.name);
        if !series.sweep.is_empty() {
            plots.extend(curves(&name, &rows));
        } else {
            plots.push(ratios(name, &rows));
        }
    }
    plots
}

/// Median and 99th percentile over throughput, a line for each point.
fn curves(name: &str, rows: &[&SeriesRow<'_>]) -> [Plot; 2] {
    ["P50", "P99"].map(|which| {
        let line = |row: &&SeriesRow<'_>| {
            let at = |(_, _, observed): &(Option<ClosedLoops>, usize, &Observed)| {
                let latency = observed.latency_us;
                let us = if which == "P50" { latency.p50 } else { latency.p99 };
                (observed.throughput_tps / 1e3, us)
            };
            Line::ours(&row.point.label, row.curve.iter().map(at).collect())
        };
        Plot {
            x: "thousand transactions a second".to_owned(),
            y: format!("{which}, us"),
            ..Plot::new(format!("{name}, {which}"), rows.iter().map(line).collect())
        }
    })
}

/// Throughput, ratio and median latency over the figure's `x`, a line for each label.
fn over(name: &str, x: &str, rows: &[SeriesRow<'_>]) -> [Plot; 3] {
    let mut labels: Vec<&str> = Vec::new();
    for row in rows {
        if !labels.contains(&row.point.label.as_str()) {
            labels.push(&row.point.label);
        }
    }
    let points = |label: &str, value: &dyn Fn(&SeriesRow<'_>) -> Option<f64>| {
        let of = rows.iter().filter(|row| row.point.label == label);
        let mut points: Vec<_> = of.filter_map(|row| Some((row.series.at?, value(row)?))).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points
    };
    let lines = |value: &dyn Fn(&SeriesRow<'_>) -> Option<f64>| -> Vec<Line> {
        labels.iter().map(|label| Line::ours(*label, points(label, value))).collect()
    };
    let mut ratios = Vec::new();
    for label in &labels {
        ratios.push(Line::ours(*label, points(label, &|row| Some(row.ratio))));
        let published = points(label, &|row| row.point.published);
        if !published.is_empty() {
            ratios.push(Line::published(format!("{label}, published"), published));
        }
    }
    let plot = |what: &str, y: &str, lines| Plot {
        x: x.to_owned(),
        y: y.to_owned(),
        ..Plot::new(format!("{name}, {what}"), lines)
    };
    [
        plot("throughput", "thousand transactions a second", {
            lines(&|row| Some(row.best().throughput_tps / 1e3))
        }),
        plot("ratio", "ratio of throughputs", ratios),
        plot("P50", "P50, us", lines(&|row| Some(row.best().latency_us.p50))),
    ]
}

/// Our and the published ratios of the points of a series.
fn ratios(name: String, rows: &[&SeriesRow<'_>]) -> Plot {
    let points = |value: &dyn Fn(&SeriesRow<'_>) -> Option<f64>| -> Vec<(f64, f64)> {
        let points = rows.iter().enumerate();
        points.filter_map(|(at, row)| Some((at as f64, value(row)?))).collect()
    };
    let mut lines = vec![Line::ours("ours", points(&|row| Some(row.ratio)))];
    let published = points(&|row| row.point.published);
    if !published.is_empty() {
        lines.push(Line::published("published", published));
    }
    Plot {
        y: "ratio of throughputs".to_owned(),
        ticks: rows.iter().map(|row| row.point.label.clone()).collect(),
        ..Plot::new(name, lines)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::{self, tests as example};
    use super::*;
    use crate::figures::experiment::Length;
    use crate::figures::observed::Observed;

    fn drawn(text: &str) -> Vec<Plot> {
        let figure = Figure::parse(text).expect("sound");
        let results = example::results();
        let observed: Vec<_> = results.iter().map(|r| Observed::of(r).expect("a report")).collect();
        plots("engines", &figure, &rows::rows(&figure, Length::Full, &observed))
    }

    #[test]
    fn a_sweep_is_a_curve_and_any_other_series_a_line() {
        let plots = drawn(example::FILE);
        let names: Vec<_> = plots.iter().map(|plot| plot.name.as_str()).collect();
        assert_eq!(names, ["engines, bank, P50", "engines, bank, P99", "engines, store"]);
        assert_eq!(plots[0].lines[1].points, [(0.012, 3.0), (0.020, 2.0)]);
        assert_eq!(plots[2].ticks, ["off", "more", "on"]);
        let published = Line::published("published", vec![(1.0, 0.5)]);
        assert_eq!(plots[2].lines[1], published);
    }

    #[test]
    fn a_figure_over_something_has_a_line_for_each_label() {
        let series = |name: &str, at: f64| {
            let points = "[[series.points]]\nlabel = 'A'\n[[series.points]]\nlabel = 'B'\n";
            format!("[[series]]\nname = '{name}'\nat = {at}\nbench = 'kvs'\n{points}")
        };
        let text = format!(
            "title = 'a'\nsource = 'b'\nx = 'writers, %'\n{}{}",
            series("many", 50.0),
            series("few", 25.0)
        );
        let plots = drawn(&text);
        assert_eq!(plots.len(), 3);
        assert_eq!((plots[1].x.as_str(), plots[1].lines.len()), ("writers, %", 2));
        assert_eq!(plots[1].lines[1].points, [(25.0, 20.0 / 12.0), (50.0, 0.8)]);
    }
}
