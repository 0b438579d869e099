//! `lotus-lab sim matrix`: the crash matrix, point by point.

use std::collections::BTreeMap;
use std::io::Write;

use comfy_table::{CellAlignment, Table, presets};
use lotus_benchmarks::stream::StandardOutput;
use lotus_fabric::env::Env;
use lotus_points::FaultPoint;
use lotus_sim::matrix::{Cell, Coordinate, SEEDS, all, short, strike_all};

use super::{SimulationError, bar};
use crate::args::MatrixArgs;
use lotus_runner::show::Verdict;

/// Strikes at every coordinate, and shows the results.
///
/// # Errors
/// [`SimulationError`] if there is no verdict.
pub fn run(args: &MatrixArgs) -> Result<Verdict, SimulationError> {
    let coordinates = chosen(args)?;
    let mut out = StandardOutput;
    if args.show {
        out.write_all(coordinates[0].scenario().to_toml().as_bytes())?;
        return Ok(Verdict::Sound);
    }
    let env = Env::real(0);
    let workers = args.workers.unwrap_or_else(|| env.parallelism());
    let watch = bar(coordinates.len() as u64);
    let began = env.now();
    let seeds = args.from..args.from.saturating_add(SEEDS);
    let cells = strike_all(&coordinates, seeds, workers, |_, _| watch.inc(1))?;
    watch.finish_and_clear();
    let wall_s = env.now().since(began).as_secs_f64();
    let results: Vec<_> = coordinates.iter().zip(cells).collect();
    writeln!(out, "{}", table(&results))?;
    let mut sound = true;
    for (coordinate, cell) in &results {
        match cell {
            Cell::Passed(_) => continue,
            Cell::NoRun => writeln!(out, "{coordinate}: NO RUN, no node was struck there")?,
            Cell::Violated(seed, violations) => {
                writeln!(out, "{coordinate}, seed {seed}: VIOLATED")?;
                for violation in violations {
                    writeln!(out, "    {}: {}", violation.property, violation.detail)?;
                }
            }
        }
        sound = false;
    }
    let passed = results.iter().filter(|(_, cell)| matches!(cell, Cell::Passed(_))).count();
    let points = lotus_sim::matrix::points().count();
    writeln!(
        out,
        "{passed} of {} coordinates at {points} points passed, in {wall_s:.0} s, {workers} threads",
        results.len()
    )?;
    Ok(if sound { Verdict::Sound } else { Verdict::Unsound })
}

/// The requested coordinates.
fn chosen(args: &MatrixArgs) -> Result<Vec<Coordinate>, SimulationError> {
    let Some(name) = &args.only else {
        return Ok(if args.all { all() } else { short() });
    };
    let mut chosen = all();
    let named = |one: &Coordinate| one.point.name() == name || one.to_string() == *name;
    chosen.retain(named);
    match chosen.is_empty() {
        true => Err(SimulationError::UnknownCoordinate(name.clone())),
        false => Ok(chosen),
    }
}

fn table(results: &[(&Coordinate, Cell)]) -> Table {
    // By point: all coordinates, coordinates that struck a node, and coordinates that passed.
    let mut counts: BTreeMap<FaultPoint, [usize; 3]> = BTreeMap::new();
    for (coordinate, cell) in results {
        let [planned, runs, passed] = counts.entry(coordinate.point).or_default();
        *planned += 1;
        *runs += usize::from(*cell != Cell::NoRun);
        *passed += usize::from(matches!(cell, Cell::Passed(_)));
    }
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["point", "coordinates", "runs", "passed"]);
    let row = |name: &str, counts: &[usize; 3]| {
        [name.to_owned()].into_iter().chain(counts.iter().map(usize::to_string)).collect::<Vec<_>>()
    };
    let mut total = [0; 3];
    for (point, counts) in &counts {
        table.add_row(row(point.name(), counts));
        total.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    table.add_row(row("all", &total));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
