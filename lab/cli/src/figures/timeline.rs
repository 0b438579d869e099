//! Throughput over time around a hotspot's jumps, and the time until throughput recovers.
//!
//! Pure: turns a benchmark's counts into tables.

use lotus_benchmarks::report::{TimelineFigures, grouped};
use serde::Serialize;

use super::grid::Grid;

/// Share of the former throughput at which a cluster counts as recovered.
const RECOVERED: f64 = 0.9;

/// Effect of one jump.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Jump {
    /// Time of the jump, in milliseconds.
    pub at_ms: f64,
    /// Throughput before the jump: the median of the second half of the time since the last jump.
    /// For the first jump, the settled throughput after it stands in.
    pub before_tps: f64,
    /// Throughput of the worst step after the jump.
    pub lowest_tps: f64,
    /// Time until throughput reached [`RECOVERED`] of its former value and stayed there until the
    /// next jump, in milliseconds; `None` if it did not.
    pub back_ms: Option<f64>,
}

/// The jumps, one every `every_s` seconds, the first at the first step. A jump cut off by the end
/// of the timeline is left out.
pub fn jumps(timeline: &TimelineFigures, every_s: f64) -> Vec<Jump> {
    let steps = steps_between(timeline, every_s);
    let mut before_tps = None;
    let mut all = Vec::new();
    for (number, after) in timeline.tps.chunks_exact(steps).enumerate() {
        let settled = median(&after[steps / 2..]);
        let before = before_tps.unwrap_or(settled);
        let low = after.iter().rposition(|tps| *tps < before * RECOVERED);
        let back = low.map_or(0, |low| low + 1);
        all.push(Jump {
            at_ms: (number * steps) as f64 * timeline.step_ms,
            before_tps: before,
            lowest_tps: after.iter().copied().fold(f64::INFINITY, f64::min),
            back_ms: (back < steps).then_some(back as f64 * timeline.step_ms),
        });
        before_tps = Some(settled);
    }
    all
}

/// Number of steps from one jump to the next.
fn steps_between(timeline: &TimelineFigures, every_s: f64) -> usize {
    ((every_s * 1e3 / timeline.step_ms).round() as usize).max(1)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The timeline of a point in thousands of transactions a second, with a column for each jump, and
/// a table of the jumps' effects.
pub fn tables(timeline: &TimelineFigures, every_s: f64) -> [Grid; 2] {
    let all = jumps(timeline, every_s);
    let steps = steps_between(timeline, every_s);
    let number = |jump: &Jump| format!("jump at {:.0} ms", jump.at_ms);
    let header = std::iter::once("ms after".to_owned()).chain(all.iter().map(number));
    let row = |step: usize| {
        let of = |jump: usize| grouped((timeline.tps[jump * steps + step] / 1e3) as u64);
        let at = format!("{:.0}", step as f64 * timeline.step_ms);
        std::iter::once(at).chain((0..all.len()).map(of)).collect()
    };
    [Grid::of_rows(0, header, (0..steps).map(row)), summary(&all)]
}

fn summary(jumps: &[Jump]) -> Grid {
    let header = ["jump at ms", "before, txn/s", "lowest, txn/s", "back to 90 % after ms"];
    let tps = |tps: f64| grouped(tps as u64);
    let row = |jump: &Jump| {
        let back = jump.back_ms.map_or_else(|| "never".to_owned(), |ms| format!("{ms:.0}"));
        let at = format!("{:.0}", jump.at_ms);
        vec![at, tps(jump.before_tps), tps(jump.lowest_tps), back]
    };
    Grid::of_rows(0, header.map(str::to_owned), jumps.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(tps: &[f64]) -> TimelineFigures {
        TimelineFigures { step_ms: 20.0, tps: tps.to_vec() }
    }

    #[test]
    fn a_jump_is_over_when_throughput_is_back_for_good() {
        // (steps of four after the first jump, after how many milliseconds it is back)
        let cases = [
            ([100.0, 100.0, 100.0, 100.0], Some(0.0)),
            ([20.0, 50.0, 90.0, 100.0], Some(40.0)),
            ([20.0, 95.0, 80.0, 100.0], Some(60.0)),
            ([20.0, 20.0, 20.0, 89.0], None),
        ];
        for (after, back_ms) in cases {
            let tps: Vec<f64> = [50.0, 100.0, 100.0, 100.0].into_iter().chain(after).collect();
            let all = jumps(&timeline(&tps), 0.08);
            assert_eq!((all.len(), all[0].back_ms), (2, Some(20.0)));
            assert_eq!((all[1].at_ms, all[1].before_tps), (80.0, 100.0));
            assert_eq!(all[1].back_ms, back_ms, "{after:?}");
        }
    }

    #[test]
    fn what_is_not_shown_to_its_end_is_left_out() {
        assert_eq!(jumps(&timeline(&[1.0; 7]), 0.08).len(), 1);
        assert_eq!(jumps(&timeline(&[]), 0.08), []);
    }

    #[test]
    fn a_table_has_a_column_for_each_jump() {
        let text = tables(&timeline(&[5e6; 8]), 0.08).map(|table| table.text()).concat();
        assert!(text.contains("| jump at 0 ms | jump at 80 ms |"), "{text}");
        assert!(text.contains("|     5,000,000 |"), "{text}");
    }
}
