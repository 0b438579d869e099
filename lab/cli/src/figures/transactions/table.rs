//! The tables of a figure of transactions. Verbs are per committed transaction.

use lotus_benchmarks::report::grouped;

use super::file::{Figure, Quantity};
use super::rows::{Multiple, SeriesRow};
use crate::figures::experiment::Block;
use crate::figures::grid::Grid;
use crate::figures::judge::{Judged, same_sign, yes_no};
use crate::figures::observed::Observed;
use crate::figures::timeline;

/// Run time for the comparison of memory, in seconds.
const MINUTE_S: f64 = 60.0;

/// All tables, starting with the table of points.
pub(super) fn blocks(
    figure: &Figure,
    rows: &[SeriesRow<'_>],
    multiples: &[Multiple<'_>],
) -> Vec<Block> {
    let mut blocks = vec![Block::Table(points(figure, rows))];
    if !multiples.is_empty() {
        blocks.push(Block::Table(ratios(multiples)));
    }
    for row in rows {
        if let Some((times, every_s)) = row.best().jumping() {
            let heading = format!("{}: thousands of transactions a second", row.point.label);
            blocks.push(Block::Heading(heading));
            blocks.extend(timeline::tables(&times, every_s).map(Block::Table));
        }
    }
    blocks
}

/// Table of the points, at their best loads.
fn points(figure: &Figure, rows: &[SeriesRow<'_>]) -> Grid {
    let mut grid = Grid::new(rows.len(), 2);
    let column =
        |cell: &dyn Fn(&SeriesRow<'_>) -> String| rows.iter().map(cell).collect::<Vec<_>>();
    let some = |cell: &dyn Fn(&SeriesRow<'_>) -> Option<String>| {
        column(&|row| cell(row).unwrap_or_default())
    };
    let judged = |show: &dyn Fn(Judged) -> String| some(&|row| row.judged.map(show));
    let engines = figure.points().any(|(_, point)| point.engine.is_some());
    let sweeps = figure.series.iter().any(|series| !series.sweep.is_empty());
    grid.add("series", column(&|row| row.series.name.clone()));
    grid.add("point", column(&|row| row.point.label.clone()));
    if engines {
        grid.words += 1;
        let engine = |row: &SeriesRow<'_>| row.point.engine.clone();
        grid.add("engine", column(&|row| engine(row).unwrap_or_else(|| "lotus".to_owned())));
    }
    grid.add("txn/s", column(&|row| grouped(row.best().throughput_tps as u64)));
    if sweeps {
        grid.add("in flight", column(&|row| grouped(row.concurrency() as u64)));
    }
    if figure.compares == Quantity::Memory {
        add_memory(&mut grid, rows);
    }
    grid.add("ratio", column(&|row| format!("{:.3}", row.ratio)));
    grid.add_if_any("over", some(&|row| row.point.against.clone()));
    grid.add_if_any("published", judged(&|judged| format!("{:.3}", judged.published)));
    grid.add_if_any("off by %", judged(&|judged| judged.off()));
    grid.add_if_any("in band", judged(&|judged| yes_no(judged.in_band).to_owned()));
    grid.add("aborts %", column(&|row| percent(row.best().abort_rate)));
    let latencies = ["p50", "p99"].into_iter().enumerate();
    for (at, name) in latencies {
        let us = |row: &SeriesRow<'_>| [row.best().latency_us.p50, row.best().latency_us.p99][at];
        grid.add(format!("{name} us"), column(&|row| format!("{:.1}", us(row))));
        let both = |show: &dyn Fn(f64, f64) -> String| {
            some(&|row| row.published_latencies()[at].map(|(ours, theirs)| show(ours, theirs)))
        };
        grid.add_if_any(format!("{name} ratio"), both(&|ours, _| format!("{ours:.3}")));
        grid.add_if_any("published", both(&|_, theirs| format!("{theirs:.3}")));
        let sign = |ours, theirs| yes_no(same_sign(ours, theirs)).to_owned();
        grid.add_if_any("same sign", both(&sign));
    }
    grid.add("verbs", column(&|row| format!("{:.2}", row.best().verbs())));
    grid.add_if_any("CVT hits %", some(&|row| row.best().table_hits().map(percent)));
    if let Some(watched) = &figure.watch {
        let aborts = |row: &SeriesRow<'_>| row.best().by_transaction.get(watched).copied();
        let ours = some(&|row| aborts(row).map(|of| percent(of.abort_rate)));
        grid.add(format!("{watched} aborts %"), ours);
        grid.add_if_any("published %", some(&|row| row.point.published_aborts.map(percent)));
    }
    if figure.ownership {
        add_ownership(&mut grid, rows);
    }
    if engines || sweeps {
        let node = |at: usize| {
            let of =
                move |row: &SeriesRow<'_>| row.best().busiest_memory_node().map(|verbs| verbs[at]);
            some(&|row| of(row).map(|verbs| format!("{verbs:.2}")))
        };
        grid.add_if_any("CAS at busiest MN", node(0));
        grid.add_if_any("verbs there", node(1));
        grid.add_if_any("busiest", column(&|row| row.best().busiest()));
    }
    grid
}

/// The published ratios beside our ratios.
fn ratios(multiples: &[Multiple<'_>]) -> Grid {
    let header = ["series", "of", "over", "", "ratio", "published", "off by %", "in band"];
    let row = |one: &Multiple<'_>| {
        vec![
            one.series.to_owned(),
            one.ratio.of.clone(),
            one.ratio.over.clone(),
            one.which.to_owned(),
            format!("{:.3}", one.judged.ours),
            format!("{:.3}", one.judged.published),
            one.judged.off(),
            yes_no(one.judged.in_band).to_owned(),
        ]
    };
    Grid::of_rows(4, header.map(str::to_owned), multiples.iter().map(row))
}

/// Columns of the memory in use on the fullest memory node. The memory of a short run of a small
/// data set, multiplied by a factor, stands for a minute of a data set larger by the same factor:
/// the number of transactions per row is the same.
fn add_memory(grid: &mut Grid, rows: &[SeriesRow<'_>]) {
    let column = |cell: &dyn Fn(&Observed) -> String| {
        rows.iter().map(|row| cell(row.best())).collect::<Vec<_>>()
    };
    let mib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 20));
    grid.add("loaded MiB/MN", column(&|of| mib(of.memory_bytes()[0])));
    grid.add("MiB/MN", column(&|of| mib(of.memory_bytes()[1])));
    let full = |of: &Observed| of.memory_bytes()[1] * MINUTE_S / of.secs() / f64::from(1 << 30);
    grid.add("after 60 s GiB/MN", column(&|of| format!("{:.2}", full(of))));
}

/// Columns of locks taken and shards moved.
fn add_ownership(grid: &mut Grid, rows: &[SeriesRow<'_>]) {
    let column = |cell: &dyn Fn(&SeriesRow<'_>) -> Option<String>| {
        rows.iter().map(|row| cell(row).unwrap_or_default()).collect::<Vec<_>>()
    };
    let moved = |row: &SeriesRow<'_>| row.best().ownership.filter(|of| of.shards_moved > 0);
    let local =
        |row: &SeriesRow<'_>| Some(format!("{:.1}", row.best().ownership?.local_locks * 100.0));
    grid.add("local locks %", column(&local));
    grid.add("shards moved", column(&|row| Some(grouped(row.best().ownership?.shards_moved))));
    let mean = |row: &SeriesRow<'_>| Some(format!("{:.0}", moved(row)?.interruption_us));
    grid.add_if_any("interrupted us", column(&mean));
    let most = |row: &SeriesRow<'_>| Some(format!("{:.0}", moved(row)?.interruption_us_max));
    grid.add_if_any("at most us", column(&most));
    let published =
        |row: &SeriesRow<'_>| Some(format!("{:.0}", row.point.published_interruption_us?));
    grid.add_if_any("published us", column(&published));
}

fn percent(part: f64) -> String {
    format!("{:.2}", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::super::rows::{self, tests as example};
    use super::*;
    use crate::figures::experiment::Length;
    use crate::figures::observed::Observed;

    #[test]
    fn a_row_is_that_of_the_best_load() {
        let figure = Figure::parse(example::FILE).expect("sound");
        let results = example::results();
        let observed: Vec<_> = results.iter().map(|r| Observed::of(r).expect("a report")).collect();
        let grid = points(&figure, &rows::rows(&figure, Length::Full, &observed));
        let titles: Vec<_> = grid.columns.iter().map(|column| column.title.as_str()).collect();
        let expected = "series point txn/s in flight ratio over published off by % in band \
                        aborts % p50 us p50 ratio published same sign p99 us verbs \
                        CAS at busiest MN verbs there busiest";
        assert_eq!(titles.join(" "), expected);
        let row = grid.row(1).collect::<Vec<_>>().join("|");
        let expected = "bank|Ours|20|54|2.000||2.100|-4.8|yes|25.00|2.0|0.500|0.500|yes|8.0|3.50|\
                        0.50|2.00|atomic unit of node 1 99 %";
        assert_eq!(row, expected);
    }
}
