//! Line plots as SVG files, for results such as timelines that tables cannot show.
//!
//! Draws given points; computes only the ends of the axes.

use std::fs;
use std::path::{Path, PathBuf};

use lotus_benchmarks::output::Output;
use plotters::prelude::*;

use super::FigureError;

const SIZE: (u32, u32) = (760, 420);
const MARGIN: u32 = 12;
/// Room for the numbers on the axes.
const LABELS: u32 = 52;
const NUMBERS: u32 = 76;
/// Width of a letter of a label.
const LETTER: usize = 8;
/// Room for the half of the last number that extends beyond its axis.
const LAST_NUMBER: u32 = 28;
const FONT: &str = "sans-serif";
/// Distinguishable colours of lines, and their number.
const COLOURS: [RGBColor; 10] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(110, 110, 110),
    RGBColor(188, 189, 34),
    RGBColor(23, 190, 207),
];
/// Length of the line sample beside a label.
const KEY: i32 = 16;
/// Part of a plot that the key takes: of the width, and of the height for each line.
const KEY_WIDTH: f64 = 0.4;
const KEY_HEIGHT: f64 = 0.06;
/// Sample points on each piece of a line, to find a free corner.
const SAMPLES: u32 = 20;
/// Lengths of a dash and of the gap after it.
const DASHES: (i32, i32) = (6, 4);
/// Maximum number of points of a line with markers.
const MARKED: usize = 30;
/// Length of the vertical axis, relative to the highest point.
const HEADROOM: f64 = 1.1;

/// A plot to be drawn.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Plot {
    /// Title, which also names the file.
    pub name: String,
    /// Labels of the axes, units included.
    pub x: String,
    pub y: String,
    /// Labels of 0, 1 and so on of the horizontal axis, if the axis does not show numbers.
    pub ticks: Vec<String>,
    pub lines: Vec<Line>,
    /// Events, drawn as vertical lines.
    pub marks: Vec<(String, f64)>,
}

/// Corner of a plot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Corner {
    LowerRight,
    UpperLeft,
    UpperRight,
    LowerLeft,
}

impl Corner {
    /// All corners, in order of preference for the key where several are equally free.
    const ALL: [Self; 4] = [Self::LowerRight, Self::UpperLeft, Self::UpperRight, Self::LowerLeft];

    /// Whether a point is in the corner's part of the plot; coordinates are from 0 to 1, left to
    /// right, and bottom to top.
    fn has(self, (x, y): (f64, f64), width: f64, height: f64) -> bool {
        let is_right = matches!(self, Self::LowerRight | Self::UpperRight);
        let is_upper = matches!(self, Self::UpperLeft | Self::UpperRight);
        let (x, y) = (if is_right { 1.0 - x } else { x }, if is_upper { 1.0 - y } else { y });
        x < width && y < height
    }

    const fn position(self) -> SeriesLabelPosition {
        match self {
            Self::LowerRight => SeriesLabelPosition::LowerRight,
            Self::UpperLeft => SeriesLabelPosition::UpperLeft,
            Self::UpperRight => SeriesLabelPosition::UpperRight,
            Self::LowerLeft => SeriesLabelPosition::LowerLeft,
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Line {
    pub label: String,
    /// Points in order of their connection.
    pub points: Vec<(f64, f64)>,
    /// Whether the line shows published values of the previous line: dashed, in the same colour.
    pub is_published: bool,
}

impl Line {
    /// A line of our values.
    pub(super) fn ours(label: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { label: label.into(), points, is_published: false }
    }

    /// A line of published values for the previous line.
    pub(super) fn published(label: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { label: label.into(), points, is_published: true }
    }
}

/// A number on an axis, without trailing zeros.
fn number(value: &f64) -> String {
    match format!("{value:.3}") {
        text if text.contains('.') => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        text => text,
    }
}

/// The point on a piece of a line after `at` of [`SAMPLES`] steps.
fn between(ends: &[(f64, f64)], at: u32) -> (f64, f64) {
    let ([(x, y), (to_x, to_y)], share) = ([ends[0], ends[1]], f64::from(at) / f64::from(SAMPLES));
    (x + (to_x - x) * share, y + (to_y - y) * share)
}

/// Words of a title joined by hyphens, for a file name.
pub(super) fn hyphenated(title: &str) -> String {
    let words = title.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}

impl Plot {
    /// A plot of `lines`, with numbers on axes without labels.
    pub(super) fn new(name: String, lines: Vec<Line>) -> Self {
        let (x, y) = (String::new(), String::new());
        Self { name, x, y, ticks: Vec::new(), lines, marks: Vec::new() }
    }

    /// Writes the plot into `directory`, which is created if missing; returns the file's path.
    ///
    /// # Errors
    /// [`FigureError::Plot`] if the system refuses.
    pub(super) fn write(&self, directory: &Path) -> Result<PathBuf, FigureError> {
        let path = directory.join(self.file_name());
        let made = fs::create_dir_all(directory);
        made.map_err(|error| FigureError::Plot(path.clone(), error.to_string()))?;
        Output::check(&path)?.write(|out| out.write_all(self.svg().as_bytes()))?;
        Ok(path)
    }

    /// The title, with hyphens in place of characters that are neither letters nor digits.
    fn file_name(&self) -> String {
        format!("{}.svg", hyphenated(&self.name))
    }

    /// The plot as SVG text.
    ///
    /// # Panics
    /// Never: only drawing into files can fail.
    pub(super) fn svg(&self) -> String {
        let mut svg = String::new();
        self.draw(&SVGBackend::with_string(&mut svg, SIZE).into_drawing_area())
            .expect("text can be drawn into");
        svg
    }

    /// Ends of the horizontal axis, and the upper end of the vertical axis. An axis has a length
    /// even with one point, or none; labels have room on both sides.
    fn ends(&self) -> ([f64; 2], f64) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let (mut left, mut right, mut top) = (f64::INFINITY, f64::NEG_INFINITY, 0.0_f64);
        for (x, y) in points() {
            (left, right, top) = (left.min(*x), right.max(*x), top.max(*y * HEADROOM));
        }
        if !left.is_finite() || !right.is_finite() {
            (left, right) = (0.0, 0.0);
        }
        let room = if right > left && self.ticks.is_empty() { 0.0 } else { 0.5 };
        ([left - room, right + room], if top > 0.0 && top.is_finite() { top } else { 1.0 })
    }

    /// The label at a position of the horizontal axis, shortened to the available room.
    fn tick(&self, x: f64) -> String {
        let is_whole = (x - x.round()).abs() < 0.01 && x.round() >= 0.0;
        let label = self.ticks.get(x.round() as usize).filter(|_| is_whole);
        let label = label.map(String::as_str).unwrap_or_default();
        let room = (SIZE.0 - NUMBERS) as usize / self.ticks.len().max(1) / LETTER;
        match label.chars().count() > room.max(1) {
            true => label.chars().take(room.max(1) - 1).chain(['…']).collect(),
            false => label.to_owned(),
        }
    }

    /// The corner with the fewest points of lines, for the key.
    fn free_corner(&self) -> Corner {
        let ([left, right], top) = self.ends();
        let (width, height) = (KEY_WIDTH, KEY_HEIGHT * self.lines.len() as f64);
        let within = |(x, y): (f64, f64)| ((x - left) / (right - left), y / top);
        let covered = |corner: &Corner| {
            let pieces = self.lines.iter().flat_map(|line| line.points.windows(2));
            let places = pieces.flat_map(|ends| (0..=SAMPLES).map(move |at| between(ends, at)));
            places.filter(|at| corner.has(within(*at), width, height)).count()
        };
        Corner::ALL.into_iter().min_by_key(covered).unwrap_or(Corner::LowerRight)
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, plotters::coord::Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        area.fill(&WHITE)?;
        let ([left, right], top) = self.ends();
        let mut chart = ChartBuilder::on(area)
            .caption(&self.name, (FONT, 18))
            .margin(MARGIN)
            .margin_right(LAST_NUMBER)
            .x_label_area_size(LABELS)
            .y_label_area_size(NUMBERS)
            .build_cartesian_2d(left..right, 0.0..top)?;
        let tick = |x: &f64| self.tick(*x);
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(&self.x).y_desc(&self.y);
        mesh.x_label_formatter(&number).y_label_formatter(&number);
        mesh.label_style((FONT, 14)).axis_desc_style((FONT, 15));
        mesh.light_line_style(TRANSPARENT).bold_line_style(BLACK.mix(0.12));
        if !self.ticks.is_empty() {
            mesh.x_labels(self.ticks.len()).x_label_formatter(&tick);
        }
        mesh.draw()?;
        let mut colours = COLOURS.iter().cycle();
        let mut colour = COLOURS[0];
        for line in &self.lines {
            if !line.is_published {
                colour = *colours.next().unwrap_or(&colour);
            }
            let points = || line.points.iter().copied();
            if line.points.len() <= MARKED {
                let style =
                    if line.is_published { colour.stroke_width(1) } else { colour.filled() };
                chart.draw_series(points().map(|at| Circle::new(at, 3, style)))?;
            }
            let drawn = match line.is_published {
                true => chart.draw_series(DashedLineSeries::new(
                    points(),
                    DASHES.0,
                    DASHES.1,
                    colour.stroke_width(1),
                ))?,
                false => chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?,
            };
            let length = if line.is_published { DASHES.0 } else { KEY };
            let key = move |(x, y)| PathElement::new(vec![(x, y), (x + length, y)], colour);
            drawn.label(&line.label).legend(key);
        }
        for (what, at) in &self.marks {
            chart.draw_series(LineSeries::new([(*at, 0.0), (*at, top)], BLACK.mix(0.5)))?;
            let text = Text::new(what.clone(), (*at, top), (FONT, 14));
            chart.draw_series(std::iter::once(text))?;
        }
        // A single line needs no key: the title names the line.
        if self.lines.len() > 1 {
            let mut keys = chart.configure_series_labels();
            keys.position(self.free_corner().position());
            keys.label_font((FONT, 13)).background_style(WHITE.mix(0.8)).draw()?;
        }
        area.present()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        let line = |label: &str, points: &[(f64, f64)]| Line::ours(label, points.to_vec());
        Plot {
            name: "recovery, 3 of 9 nodes".to_owned(),
            x: "ms".to_owned(),
            y: "txn/s".to_owned(),
            lines: vec![line("up", &[(0.0, 0.0), (1.0, 5.0)]), line("down", &[(0.0, 5.0)])],
            marks: vec![("lost <here>".to_owned(), 0.5)],
            ..Plot::new(String::new(), Vec::new())
        }
    }

    #[test]
    fn a_plot_has_its_lines_axes_and_marks() {
        let svg = plot().svg();
        for text in ["recovery, 3 of 9 nodes", "ms", "txn/s", "up", "down", "lost &lt;here&gt;"] {
            assert!(svg.contains(&format!("{text}\n")), "{text}: {svg}");
        }
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    }

    #[test]
    fn a_plot_of_one_point_or_none_has_axes() {
        let one = Line::published("one", vec![(7.0, 0.0)]);
        for (lines, ends) in [
            (Vec::new(), ([-0.5, 0.5], 1.0)),
            (vec![one], ([6.5, 7.5], 1.0)),
            (plot().lines, ([0.0, 1.0], 5.0 * HEADROOM)),
        ] {
            let plot = Plot::new("few".to_owned(), lines);
            assert_eq!(plot.ends(), ends);
            assert!(plot.svg().contains("few"));
        }
    }

    #[test]
    fn the_key_is_where_no_line_is() {
        let (rising, falling) = ([(0.0, 0.0), (1.0, 1.0)], [(0.0, 1.0), (1.0, 0.0)]);
        for (points, corner) in [
            (vec![rising, rising], Corner::LowerRight),
            (vec![falling, falling], Corner::UpperRight),
            (vec![falling, [(0.5, 1.0), (1.0, 1.0)]], Corner::LowerLeft),
            (vec![[(0.0, 0.05), (1.0, 0.05)], rising], Corner::UpperLeft),
        ] {
            let lines = points.iter().map(|points| Line::ours("line", points.to_vec()));
            let plot = Plot::new("keys".to_owned(), lines.collect());
            assert_eq!(plot.free_corner(), corner, "{points:?}");
        }
    }

    #[test]
    fn labels_are_cut_to_their_room() {
        let long = "a label that is much longer than a fifth of the plot";
        let ticks = ["0", long, "2", "3", "4"].map(str::to_owned).to_vec();
        let plot = Plot { ticks, ..Plot::new("ticks".to_owned(), plot().lines) };
        assert_eq!(plot.ends().0, [-0.5, 1.5]);
        let shown = [-0.5, 0.0, 0.5, 1.0, 2.001, 5.0].map(|x| plot.tick(x));
        assert_eq!(shown, ["", "0", "", "a label that is …", "2", ""]);
        assert!(plot.svg().contains("a label that is …"));
    }

    #[test]
    fn numbers_on_axes_have_no_empty_decimals() {
        for (value, text) in [(0.0, "0"), (1000.0, "1000"), (0.25, "0.25"), (1.200_000_001, "1.2")]
        {
            assert_eq!(number(&value), text);
        }
    }

    #[test]
    fn its_file_is_called_as_it_is() {
        assert_eq!(plot().file_name(), "recovery-3-of-9-nodes.svg");
    }
}
