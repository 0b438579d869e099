//! A frame of a benchmark.

use lotus_benchmarks::report::grouped;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::figures::{aborts, digits, micros, or_unknown, percent, rate};
use super::parts::{self, Page, about_history, bold, dim, named, style};
use super::{Choices, keys};
use crate::top::model::view::{BenchView, Mood};

/// Minimum number of lines of a frame: title, phase, rate.
const HEAD: u16 = 3;
/// Lines of gauge, aborts, moves and caches.
const DETAILS: u16 = 4;
/// Lines of the last minute, including its title, where there is room for the whole frame.
const HISTORY: u16 = 3;
const TALLEST: u16 = 13;
/// Widest gauge.
const GAUGE: usize = 60;

/// Height of a complete frame without keys.
pub fn height(view: &BenchView) -> u16 {
    let history = if view.history.is_empty() { 0 } else { HISTORY };
    HEAD + DETAILS + history
}

/// Draws a frame.
pub fn draw(view: &BenchView, choices: &Choices, area: Rect, buffer: &mut Buffer) {
    let mut page = Page::new(area, buffer);
    if !choices.alone && area.height > HEAD {
        page.bottom(&keys(choices, false));
    }
    page.line(parts::title(&view.title, choices.paused));
    if view.what.is_empty() {
        page.line(waiting(view));
        return;
    }
    page.line(phase(view));
    page.line(rates(view));
    for detail in details(view, page.width()) {
        page.line(detail);
    }
    if page.left() > 1 && !view.history.is_empty() {
        let unit = format!("{}/s", view.counted);
        page.line(about_history(&view.history, view.history_step_s, &unit));
        let lines = page.left().min(TALLEST - 1);
        page.history(&view.history, lines);
    }
}

fn waiting(view: &BenchView) -> Line<'static> {
    match &view.ended {
        Some(why) => Line::styled(why.clone(), style(Mood::Bad)),
        None => Line::styled("waiting for its first line", dim()),
    }
}

/// The benchmark's activity, elapsed time, and remaining time.
fn phase(view: &BenchView) -> Line<'static> {
    let unit = if view.is_virtual { "virtual s" } else { "s" };
    let times = format!(", {} {unit}, {} {unit} left", digits(view.elapsed_s), digits(view.left_s));
    let mut spans = vec![Span::raw(format!("{}: ", view.what))];
    match &view.ended {
        Some(why) => spans.push(Span::styled(why.clone(), style(Mood::Changing))),
        None => spans.push(Span::styled(view.phase.clone(), style(Mood::Good))),
    }
    spans.push(Span::raw(times));
    Line::from(spans)
}

fn rates(view: &BenchView) -> Line<'static> {
    let counted = format!("{} ", view.counted);
    let a_second = if view.is_virtual { "/virtual s" } else { "/s" };
    let mut spans = vec![
        Span::styled(counted, dim()),
        bold(format!("{}{a_second}", rate(view.per_s))),
        Span::raw("   "),
    ];
    spans.extend(named("p50", or_unknown(view.p50_us, micros)));
    spans.extend(named("p99", or_unknown(view.p99_us, micros)));
    spans.extend(named("in all", grouped(view.done)));
    Line::from(spans)
}

fn details(view: &BenchView, width: usize) -> [Line<'static>; DETAILS as usize] {
    let share = view.elapsed_s / (view.elapsed_s + view.left_s).max(f64::MIN_POSITIVE);
    let wide = width.saturating_sub(2).min(GAUGE);
    let full = (share.clamp(0.0, 1.0) * wide as f64) as usize;
    let gauge = format!("[{}{}]", "=".repeat(full), " ".repeat(wide - full));
    let aborts = match view.has_aborts {
        true => aborts(&view.aborts),
        false => "not counted here".to_owned(),
    };
    let hits: Vec<_> =
        view.hits.iter().map(|(name, share)| format!("{name} {}", percent(*share))).collect();
    let hits = if hits.is_empty() { "not asked".to_owned() } else { hits.join(", ") };
    [
        Line::raw(gauge),
        Line::from(named("aborts", aborts)),
        Line::from(named("moves", format!("{} shards so far", grouped(view.moved)))),
        Line::from(named("found", hits)),
    ]
}
