//! A frame of a cluster.

use lotus_benchmarks::report::grouped;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::figures::{aborts, digits, or_unknown, percent, rate};
use super::parts::{self, Column, NodeRow, Page, about_history, bold, dim, named, style};
use super::{Choices, keys};
use crate::operate::memory::size;
use crate::top::model::view::{ClusterView, ComputeRow, MemoryRow, Mood};

/// Lines of every frame: title, state, rate.
const HEAD: u16 = 3;
/// Minimum and maximum lines of the last minute, including its title.
const HISTORY: u16 = 3;
const TALLEST: u16 = 9;
/// Width of the bar of a memory node.
const BAR: usize = 10;

const COMPUTE: &[Column<ComputeRow>] = &[
    Column { head: "epoch", width: 5, rank: 5, cell: |row| count(row.epoch) },
    Column { head: "txn/s", width: 7, rank: 0, cell: |row| or_unknown(row.committed, rate) },
    Column { head: "p50 ms", width: 6, rank: 3, cell: |row| or_unknown(row.p50_ms, digits) },
    Column { head: "p99 ms", width: 6, rank: 1, cell: |row| or_unknown(row.p99_ms, digits) },
    Column { head: "abort/s", width: 7, rank: 2, cell: |row| or_unknown(row.aborts, rate) },
    Column { head: "locks/s", width: 7, rank: 6, cell: |row| or_unknown(row.locks, rate) },
    Column { head: "own %", width: 5, rank: 7, cell: |row| or_unknown(row.own_locks, own) },
    Column { head: "shards", width: 6, rank: 4, cell: |row| count(row.shards) },
    Column { head: "moved", width: 5, rank: 8, cell: |row| count(row.moved) },
    Column { head: "cpu %", width: 5, rank: 9, cell: |row| or_unknown(row.processors, own) },
    Column { head: "process", width: 9, rank: 10, cell: |row| or_unknown(row.resident, size) },
    Column { head: "lease", width: 5, rank: 11, cell: |row| or_unknown(row.lease_left_s, digits) },
];

const MEMORY: &[Column<MemoryRow>] = &[
    Column {
        head: "used",
        width: 9,
        rank: 0,
        cell: |row| or_unknown(row.used, |used| size(used.0)),
    },
    Column { head: "of", width: 9, rank: 1, cell: |row| or_unknown(row.used, |used| size(used.1)) },
    Column { head: "", width: BAR, rank: 2, cell: |row| row.used.map_or(String::new(), bar) },
    Column {
        head: "%",
        width: 5,
        rank: 3,
        cell: |row| or_unknown(row.used, |used| own(share(used))),
    },
    Column { head: "process", width: 9, rank: 4, cell: |row| or_unknown(row.resident, size) },
    Column { head: "cpu %", width: 5, rank: 5, cell: |row| or_unknown(row.processors, own) },
];

fn count(value: Option<u64>) -> String {
    or_unknown(value, |value| value.to_string())
}

/// A share in percent, for a column with % in its head.
fn own(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

fn share((used, of): (u64, u64)) -> f64 {
    used as f64 / of.max(1) as f64
}

fn bar(used: (u64, u64)) -> String {
    let full = (share(used).min(1.0) * BAR as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(BAR - full))
}

impl NodeRow for ComputeRow {
    fn name(&self) -> String {
        self.node.to_string()
    }

    fn state(&self) -> (&str, Mood) {
        (&self.state, self.mood)
    }

    fn remark(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

impl NodeRow for MemoryRow {
    fn name(&self) -> String {
        self.node.to_string()
    }

    fn state(&self) -> (&str, Mood) {
        (&self.state, self.mood)
    }

    fn remark(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

/// Lines of a table with `rows` rows; 0 for an empty table.
fn lines(rows: usize) -> u16 {
    if rows == 0 { 0 } else { rows as u16 + 1 }
}

/// Height of a complete frame without keys.
pub fn height(view: &ClusterView) -> u16 {
    let tables = lines(view.compute.len()) + lines(view.memory.len());
    let history = if view.history.is_empty() { 0 } else { HISTORY };
    HEAD + u16::from(view.authority_why.is_some()) + 2 + history + 2 + tables
}

/// Lines of the optional parts of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Plan {
    keys: u16,
    /// Reason why the authority does not answer.
    why: u16,
    /// Aborts, and moves.
    details: [u16; 2],
    history: u16,
    /// Empty lines before the tables.
    gaps: [u16; 2],
    compute: u16,
    memory: u16,
}

/// Allocates the lines of a frame: to the tables first.
fn plan(height: u16, choices: &Choices, view: &ClusterView) -> Plan {
    let mut left = height.saturating_sub(HEAD);
    let (compute, memory) = (lines(view.compute.len()), lines(view.memory.len()));
    let memory = memory.min(left.saturating_sub(compute).max(left / 3).min(left));
    left -= memory;
    let compute = compute.min(left);
    left -= compute;
    let mut take = |lines: u16| {
        let taken = if lines <= left { lines } else { 0 };
        left -= taken;
        taken
    };
    let keys = take(u16::from(!choices.alone));
    let why = take(u16::from(view.authority_why.is_some()));
    let details = [take(1), take(1)];
    let mut history = take(if view.history.is_empty() { 0 } else { HISTORY });
    let gaps = [take(1), take(1)];
    if history > 0 {
        history += left.min(TALLEST - HISTORY);
    }
    Plan { keys, why, details, history, gaps, compute, memory }
}

/// Draws a frame.
pub fn draw(view: &ClusterView, choices: &Choices, area: Rect, buffer: &mut Buffer) {
    let plan = plan(area.height, choices, view);
    let mut page = Page::new(area, buffer);
    if plan.keys > 0 {
        page.bottom(&keys(choices, true));
    }
    page.line(parts::title(&view.title, choices.paused));
    page.line(state(view));
    if let Some(why) = view.authority_why.as_ref().filter(|_| plan.why > 0) {
        page.line(Line::styled(why.clone(), style(Mood::Bad)));
    }
    page.line(rates(view));
    if plan.details[0] > 0 {
        page.line(Line::from(named("aborts", aborts(&view.aborts))));
    }
    if plan.details[1] > 0 {
        let moves = format!("{} shards/s, {} so far", rate(view.moves), grouped(view.moved as u64));
        page.line(Line::from(named("moves", moves)));
    }
    if plan.history > 0 {
        page.line(about_history(&view.history, view.history_step_s, "txn/s"));
        page.history(&view.history, plan.history - 1);
    }
    page.skip(plan.gaps[0]);
    parts::table(&mut page, &view.compute, COMPUTE, plan.compute);
    page.skip(plan.gaps[1]);
    parts::table(&mut page, &view.memory, MEMORY, plan.memory);
}

/// State of the cluster as a whole.
fn state(view: &ClusterView) -> Line<'static> {
    let (serving, all) = view.serving;
    let mood = if serving == all { Mood::Good } else { Mood::Bad };
    let mut text = String::new();
    if let Some(epoch) = view.epoch {
        text += &format!(", epoch {epoch}");
    }
    if let Some(copies) = view.copies {
        text += &format!(", copies {copies}");
    }
    if let Some(data) = view.data {
        text += &format!(", data {data}");
    }
    let authority = if view.authority_is_well { dim() } else { style(Mood::Bad) };
    Line::from(vec![
        Span::styled(format!("{serving} of {all} nodes serve"), style(mood)),
        Span::raw(text),
        Span::styled(format!("; authority: {}", view.authority), authority),
    ])
}

/// Throughput and latency of the cluster.
fn rates(view: &ClusterView) -> Line<'static> {
    let Some(committed) = view.committed else {
        return Line::styled("no node tells rates", dim());
    };
    let ms = |ms: Option<f64>| or_unknown(ms, |ms| format!("{} ms", digits(ms)));
    let mut spans = vec![Span::styled("committed ", dim()), bold(format!("{}/s", rate(committed)))];
    spans.push(Span::raw("   "));
    spans.extend(named("p50", ms(view.p50_ms)));
    spans.extend(named("p99", ms(view.p99_ms)));
    let used: Vec<f64> = view.memory.iter().filter_map(|row| row.used).map(share).collect();
    if let Some(fullest) = used.into_iter().reduce(f64::max) {
        spans.extend(named("memory", percent(fullest)));
    }
    Line::from(spans)
}
