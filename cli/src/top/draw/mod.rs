//! From views to cells of a terminal: pure, for any size.
//!
//! * `cluster`, `bench`: frames of a cluster, and of a benchmark;
//! * `parts`: common parts of frames: lines, tables with as many columns as fit, the last minute;
//! * `figures`: figures as text.
//!
//! Parts without room are left out, in an order set by each frame: first the last minute and the
//! details, last the states of the nodes.

mod bench;
#[cfg(feature = "tcp")]
mod cluster;
mod figures;
mod parts;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Widget as _};

use crate::top::model::view::{SortBy, View};
use parts::{bold, dim};

/// The user's choices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Choices {
    pub sort: SortBy,
    pub backwards: bool,
    pub paused: bool,
    pub help: bool,
    /// Whether to leave out the list of keys, since no key can be pressed.
    pub alone: bool,
}

const HELP: [&str; 16] = [
    "q, Esc, Ctrl-C   leave",
    "s                sort compute nodes by another column",
    "r                reverse their order",
    "p, space         pause the display",
    "Ctrl-L           draw every cell anew",
    "?                this help",
    "",
    "state     as lotus cluster status has it; unreachable and",
    "          nonsense are those of the node's metrics",
    "p50, p99  of the last interval, ms; between the bounds of",
    "          the node's histogram as if spread evenly",
    "own       locks that a node's transactions took from itself",
    "moved     shards that it has given to others",
    "process   memory of its process",
    "lease     seconds until it would be taken for dead",
    "used      slabs for rows and indexes that were handed out",
];

/// Draws a frame.
pub fn frame(view: &View, choices: &Choices, area: Rect, buffer: &mut Buffer) {
    match view {
        #[cfg(feature = "tcp")]
        View::Cluster(view) => cluster::draw(view, choices, area, buffer),
        View::Bench(view) => bench::draw(view, choices, area, buffer),
    }
    if choices.help {
        help(area, buffer);
    }
}

/// Height of a complete frame.
pub fn height(view: &View) -> u16 {
    match view {
        #[cfg(feature = "tcp")]
        View::Cluster(view) => cluster::height(view),
        View::Bench(view) => bench::height(view),
    }
}

/// A frame as plain text, `width` wide and as high as needed.
pub fn text(view: &View, width: u16) -> String {
    let area = Rect::new(0, 0, width, height(view));
    let mut buffer = Buffer::empty(area);
    frame(view, &Choices { alone: true, ..Choices::default() }, area, &mut buffer);
    parts::text(&buffer)
}

fn help(area: Rect, buffer: &mut Buffer) {
    let widest = HELP.iter().map(|line| line.len()).max().unwrap_or(0) as u16;
    let (width, height) = (area.width.min(widest + 4), area.height.min(HELP.len() as u16 + 2));
    let (x, y) = (area.x + (area.width - width) / 2, area.y + (area.height - height) / 2);
    let area = Rect::new(x, y, width, height);
    Clear.render(area, buffer);
    let lines: Vec<Line<'_>> = HELP.iter().map(|line| Line::raw(*line)).collect();
    let block = Block::bordered().title(bold(" keys and columns "));
    Paragraph::new(lines).block(block.border_style(dim())).render(area, buffer);
}

/// The keys, in one line.
fn keys(choices: &Choices, sorts: bool) -> Line<'static> {
    let sort = match (sorts, choices.backwards) {
        (false, _) => String::new(),
        (true, false) => format!("s sort by {}  r reverse  ", choices.sort.name()),
        (true, true) => format!("s sort by {}, reversed  r reverse  ", choices.sort.name()),
    };
    Line::styled(format!("q leave  {sort}p pause  ? help"), dim())
}

#[cfg(test)]
mod tests;
