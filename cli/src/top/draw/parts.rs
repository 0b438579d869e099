//! Parts of frames: lines, tables with as many columns as fit, the last minute.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Sparkline, Widget as _};

use super::figures;
use crate::top::model::view::{HISTORY, Mood};

/// Minimum room in a table for an additional column with the reason why a node does not answer.
#[cfg(feature = "tcp")]
const REMARK: usize = 16;

/// The unused rest of the area, filled from the top down.
pub struct Page<'a> {
    area: Rect,
    buffer: &'a mut Buffer,
}

impl<'a> Page<'a> {
    pub fn new(area: Rect, buffer: &'a mut Buffer) -> Self {
        Self { area, buffer }
    }

    /// Number of unused lines.
    pub fn left(&self) -> u16 {
        self.area.height
    }

    pub fn width(&self) -> usize {
        self.area.width.into()
    }

    /// Takes lines from the top.
    fn take(&mut self, lines: u16) -> Rect {
        let lines = lines.min(self.area.height);
        let taken = Rect { height: lines, ..self.area };
        self.area.y += lines;
        self.area.height -= lines;
        taken
    }

    /// Adds a line, if there is room.
    pub fn line(&mut self, line: impl Into<Line<'a>>) {
        let area = self.take(1);
        if area.height > 0 {
            self.buffer.set_line(area.x, area.y, &line.into(), area.width);
        }
    }

    /// Leaves lines empty.
    #[cfg(feature = "tcp")]
    pub fn skip(&mut self, lines: u16) {
        self.take(lines);
    }

    /// Puts a line at the bottom of the unused area.
    pub fn bottom(&mut self, line: &Line<'_>) {
        if let Some(last) = self.area.bottom().checked_sub(1).filter(|_| self.area.height > 0) {
            self.buffer.set_line(self.area.x, last, line, self.area.width);
            self.area.height -= 1;
        }
    }

    /// Draws the last minute, `lines` lines high.
    pub fn history(&mut self, points: &[f64], lines: u16) {
        let area = self.take(lines);
        let columns = usize::from(area.width);
        // Every point is as wide as the room for all points permits.
        let wide = (columns / HISTORY).max(1);
        let fit = &points[points.len().saturating_sub(columns / wide)..];
        let heights = fit.iter().flat_map(|point| std::iter::repeat_n(point.round() as u64, wide));
        let heights: Vec<u64> = heights.collect();
        Sparkline::default()
            .data(&heights)
            .style(Style::new().fg(Color::Cyan))
            .render(area, self.buffer);
    }
}

/// Description of the graph of the last minute.
pub fn about_history(points: &[f64], step_s: f64, unit: &str) -> Line<'static> {
    let most = points.iter().copied().fold(0.0, f64::max);
    let secs = figures::digits(points.len() as f64 * step_s);
    let secs = secs.trim_end_matches('0').trim_end_matches('.');
    Line::styled(format!("{unit}, last {secs} s, at most {}", figures::rate(most)), dim())
}

pub fn bold(text: impl Into<String>) -> Span<'static> {
    Span::styled(text.into(), Style::new().add_modifier(Modifier::BOLD))
}

pub fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

pub const fn style(mood: Mood) -> Style {
    match mood {
        Mood::Good => Style::new().fg(Color::Green),
        Mood::Changing => Style::new().fg(Color::Yellow),
        Mood::Bad => Style::new().fg(Color::Red),
    }
}

/// The title of a frame: the target's name, and whether the display is paused.
pub fn title(name: &str, paused: bool) -> Line<'static> {
    let mut spans = vec![bold("lotus top"), Span::raw(format!("  {name}"))];
    if paused {
        spans.push(Span::styled("  paused", style(Mood::Changing)));
    }
    Line::from(spans)
}

/// A figure after its name.
pub fn named(name: &str, figure: impl Into<String>) -> Vec<Span<'static>> {
    vec![Span::styled(format!("{name} "), dim()), Span::raw(figure.into()), Span::raw("   ")]
}

/// The cells of a buffer as lines of text.
pub fn text(buffer: &Buffer) -> String {
    let area = buffer.area;
    let mut text = String::new();
    for y in area.top()..area.bottom() {
        let line: String =
            (area.left()..area.right()).map(|x| buffer[(x, y)].symbol().to_owned()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A column of a table.
#[cfg(feature = "tcp")]
pub struct Column<R> {
    pub head: &'static str,
    pub width: usize,
    /// Order in which columns are left out of a table that is too wide: highest rank first.
    pub rank: u8,
    pub cell: fn(&R) -> String,
}

/// A row of a table: name, state and remark of a node.
#[cfg(feature = "tcp")]
pub trait NodeRow {
    fn name(&self) -> String;
    fn state(&self) -> (&str, Mood);
    fn remark(&self) -> Option<&str>;
}

/// Widths of the name and state columns, which every table has.
#[cfg(feature = "tcp")]
const NAME: usize = 5;
#[cfg(feature = "tcp")]
const STATE: usize = 11;

/// Draws a table of at most `lines` lines, including its head; rows without room are counted.
#[cfg(feature = "tcp")]
pub fn table<R: NodeRow>(page: &mut Page<'_>, rows: &[R], columns: &[Column<R>], lines: u16) {
    let lines = usize::from(lines.min(page.left()));
    if lines == 0 || rows.is_empty() {
        return;
    }
    let shown = fitting(columns, page.width());
    let used = shown.iter().fold(NAME + 1 + STATE, |sum, column| sum + 1 + column.width);
    let has_remarks = page.width() >= used + 1 + REMARK;
    let mut head = format!("{:NAME$} {:STATE$}", "node", "state");
    for column in &shown {
        head += &format!(" {:>width$}", column.head, width = column.width);
    }
    page.line(Line::styled(head, dim()));
    let fit = if rows.len() < lines { rows.len() } else { lines.saturating_sub(2) };
    for row in &rows[..fit] {
        let (state, mood) = row.state();
        let state: String = state.chars().take(STATE).collect();
        let mut line = vec![
            Span::raw(format!("{:NAME$} ", row.name())),
            Span::styled(format!("{state:STATE$}"), style(mood)),
        ];
        for column in &shown {
            let cell = (column.cell)(row);
            line.push(Span::raw(format!(" {cell:>width$}", width = column.width)));
        }
        if let Some(remark) = row.remark().filter(|_| has_remarks) {
            line.push(Span::styled(format!(" {remark}"), style(Mood::Bad)));
        }
        page.line(Line::from(line));
    }
    if fit < rows.len() && lines > 1 {
        page.line(Line::styled(format!("… {} more", rows.len() - fit), dim()));
    }
}

/// The columns that fit beside name and state, in their order.
#[cfg(feature = "tcp")]
fn fitting<R>(columns: &[Column<R>], width: usize) -> Vec<&Column<R>> {
    let mut by_rank: Vec<&Column<R>> = columns.iter().collect();
    by_rank.sort_by_key(|column| column.rank);
    let (mut left, mut last) = (width.saturating_sub(NAME + 1 + STATE), None);
    for column in by_rank {
        if column.width + 1 > left {
            break;
        }
        left -= column.width + 1;
        last = Some(column.rank);
    }
    columns.iter().filter(|column| last.is_some_and(|last| column.rank <= last)).collect()
}
