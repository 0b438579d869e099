//! The page of a report: HTML with style and plots embedded, without scripts and external
//! resources.
//!
//! Pure. All text is escaped.

use std::fmt::Write as _;

use lotus_benchmarks::origin::Origin;

use super::store::MeasuredPoint;
use crate::figures::experiment::{Block, Findings, Tally};
use crate::figures::grid::{Column, Grid};

const STYLE: &str = include_str!("style.css");
/// Namespace of the plots, not needed in HTML.
const NAMESPACE: &str = " xmlns=\"http://www.w3.org/2000/svg\"";
/// Columns whose cells say yes or no about a result.
const VERDICTS: [&str; 2] = ["in band", "same sign"];

/// An experiment on the page.
pub(super) struct Section {
    pub name: String,
    pub title: String,
    pub source: String,
    /// Whether the experiment is built in.
    pub is_known: bool,
    pub content: Content,
}

/// Content of an experiment's section.
pub(super) enum Content {
    /// All points have been measured.
    Whole(Findings, Vec<MeasuredPoint>),
    /// A point could not be measured; the sentence says why.
    Failed(String),
    /// Points are missing: number of missing points, and of all points.
    Missing(usize, usize),
}

impl Section {
    /// Identifier of the section within the page.
    fn id(&self) -> String {
        crate::figures::plot::hyphenated(&self.name)
    }

    /// Counts of published values in and out of band, and a word on the state.
    fn state(&self) -> (Tally, String) {
        match &self.content {
            Content::Whole(findings, _) => {
                let failed = findings.unsound.len();
                let audits = match failed {
                    0 => String::new(),
                    some => format!("<span class=bad>{some} audits failed</span>"),
                };
                let fallen = match findings.fallen.len() {
                    0 => String::new(),
                    some => format!("<span class=bad>{some} left their bands</span>"),
                };
                (findings.tally, [audits, fallen].join(" ").trim().to_owned())
            }
            Content::Failed(_) => (Tally::default(), "<span class=bad>failed</span>".to_owned()),
            Content::Missing(missing, all) => {
                let state = format!("<span class=faint>{missing} of {all} points missing</span>");
                (Tally::default(), state)
            }
        }
    }
}

/// The whole page.
pub(super) fn page(sections: &[Section], origin: &Origin, short: bool) -> String {
    let mut html =
        String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.push_str("<title>Published results and ours</title>\n");
    // Writing into a string cannot fail.
    let _ = writeln!(html, "<style>\n{STYLE}</style>\n</head>\n<body>");
    head(&mut html, origin, short);
    contents(&mut html, sections);
    for section in sections {
        show(&mut html, section);
    }
    html.push_str("</body>\n</html>\n");
    html
}

fn head(html: &mut String, origin: &Origin, short: bool) {
    let Origin { version, commit, host, date } = origin;
    let commit = commit.as_deref().map_or_else(|| "no commit".to_owned(), escaped);
    let host_name = host.name.as_deref().map_or_else(|| "a host".to_owned(), escaped);
    let _ = writeln!(html, "<h1>Published results and ours</h1>");
    let _ = writeln!(
        html,
        "<p class=faint>lotus {}, commit <code>{commit}</code>; page of {}, made on {host_name} \
         with {} cores.</p>",
        escaped(version),
        escaped(date),
        host.cores
    );
    html.push_str(
        "<p>Every experiment is simulated on the testbed of its paper. Ratios of two points are \
         compared with the published ones, not absolute values. A ratio is in band if it is within \
         15 % of the published one, or within the band that the experiment states.</p>\n",
    );
    if short {
        html.push_str(
            "<p class=bad>Short mode: each point was measured for a moment, and sweeps at three \
             loads. These are orders of magnitude.</p>\n",
        );
    }
}

/// The table of contents, with the total of all verdicts.
fn contents(html: &mut String, sections: &[Section]) {
    let sum =
        sections.iter().map(|section| section.state().0).fold(Tally::default(), |sum, one| Tally {
            inside: sum.inside + one.inside,
            outside: sum.outside + one.outside,
        });
    let without = sections.iter().filter(|section| section.state().0 == Tally::default()).count();
    let _ = writeln!(
        html,
        "<p><b>{}</b> of {} published values are in band. Of {} experiments, {without} have no \
         published numbers.</p>",
        sum.inside,
        sum.inside + sum.outside,
        sections.len(),
    );
    html.push_str("<div class=wide><table>\n<tr><th>experiment<th>what<th>source");
    html.push_str("<th class=number>in band<th class=number>out of band<th>\n");
    for section in sections {
        let (tally, state) = section.state();
        let count = |count: usize, class: &str| match (tally == Tally::default(), count) {
            (true, _) => String::new(),
            (false, 0) => "0".to_owned(),
            (false, some) => format!("<span class={class}>{some}</span>"),
        };
        let _ = writeln!(
            html,
            "<tr><td><a href=\"#{}\">{}</a><td class=words>{}<td class=words>{}<td class=number>{}\
             <td class=number>{}<td>{state}",
            section.id(),
            escaped(&section.name),
            escaped(&section.title),
            escaped(&section.source),
            count(tally.inside, "good"),
            count(tally.outside, "bad"),
        );
    }
    html.push_str("</table></div>\n");
}

fn show(html: &mut String, section: &Section) {
    let _ = writeln!(html, "<section id=\"{}\">", section.id());
    let _ = writeln!(html, "<h2>{}</h2>", escaped(&section.title));
    let command = match section.is_known {
        true => format!(" · <code>lotus-lab figures run {}</code>", escaped(&section.name)),
        false => format!(" · {}", escaped(&section.name)),
    };
    let _ = writeln!(html, "<p class=source>{}{command}</p>", escaped(&section.source));
    match &section.content {
        Content::Failed(why) => {
            let _ = writeln!(html, "<p class=bad>Not measured: {}</p>", escaped(why));
        }
        Content::Missing(missing, all) => {
            let _ = writeln!(html, "<p>{missing} of {all} points are still to be measured.</p>");
        }
        Content::Whole(findings, kept) => whole(html, findings, kept),
    }
    html.push_str("</section>\n");
}

fn whole(html: &mut String, findings: &Findings, kept: &[MeasuredPoint]) {
    for label in &findings.unsound {
        let _ = writeln!(html, "<p class=bad>Audit failed: {}</p>", escaped(label));
    }
    for label in &findings.fallen {
        let _ = writeln!(html, "<p class=bad>Was in its band once: {}</p>", escaped(label));
    }
    html.push_str("<div class=plots>\n");
    for plot in &findings.plots {
        let _ = writeln!(html, "<div class=plot>{}</div>", plot.svg().replace(NAMESPACE, ""));
    }
    html.push_str("</div>\n");
    for block in &findings.blocks {
        match block {
            Block::Table(grid) => table(html, grid),
            Block::Heading(heading) => {
                let _ = writeln!(html, "<h3>{}</h3>", escaped(heading));
            }
        }
    }
    if !findings.remarks.trim().is_empty() {
        html.push_str("<div class=remarks>\n");
        for paragraph in findings.remarks.trim().split("\n\n") {
            let _ = writeln!(html, "<p>{}</p>", escaped(paragraph));
        }
        html.push_str("</div>\n");
    }
    commands(html, findings, kept);
}

fn table(html: &mut String, grid: &Grid) {
    let class = |index: usize| if index < grid.words { "" } else { " class=number" };
    html.push_str("<div class=wide><table>\n<tr>");
    for (index, column) in grid.columns.iter().enumerate() {
        let _ = write!(html, "<th{}>{}", class(index), escaped(&column.title));
    }
    html.push('\n');
    for row in 0..grid.rows {
        html.push_str("<tr>");
        for (index, column) in grid.columns.iter().enumerate() {
            let _ = write!(html, "<td{}>{}", class(index), cell(column, row));
        }
        html.push('\n');
    }
    html.push_str("</table></div>\n");
}

fn cell(column: &Column, row: usize) -> String {
    let text = &column.cells[row];
    match text.as_str() {
        "yes" if VERDICTS.contains(&column.title.as_str()) => {
            "<span class=good>yes</span>".to_owned()
        }
        "no" if VERDICTS.contains(&column.title.as_str()) => "<span class=bad>no</span>".to_owned(),
        text => escaped(text),
    }
}

/// Origin of each point: command, commit, and busiest resource.
fn commands(html: &mut String, findings: &Findings, kept: &[MeasuredPoint]) {
    let _ = writeln!(
        html,
        "<details><summary>{} measurements: busiest resource, command, commit</summary>",
        kept.len()
    );
    html.push_str("<div class=wide><table>\n<tr><th>point<th>busiest<th>command");
    html.push_str("<th>commit<th>date<th class=number>took s\n");
    let busiest = findings.busiest.iter().map(String::as_str).chain(std::iter::repeat(""));
    for (point, busiest) in kept.iter().zip(busiest) {
        let broken = match point.without.is_empty() {
            true => String::new(),
            false => format!("<br>with these rules broken: {}", escaped(&point.without.join(", "))),
        };
        let commit = point.origin.commit.as_deref().unwrap_or("none");
        let _ = writeln!(
            html,
            "<tr><td class=words>{}<td class=words>{}<td class=words><code>{}</code>{broken}\
             <td><code>{}</code><td>{}<td class=number>{:.1}",
            escaped(&point.label),
            escaped(busiest),
            escaped(&point.command),
            escaped(commit.get(..12).unwrap_or(commit)),
            escaped(&point.origin.date),
            point.took_s,
        );
    }
    html.push_str("</table></div>\n</details>\n");
}

/// Escapes text for HTML.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            other => html.push(other),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use lotus_benchmarks::origin::Machine;

    use super::*;
    use crate::figures::plot::{Line, Plot};

    fn origin() -> Origin {
        let host = Machine { name: Some("a<b>".to_owned()), cores: 2 };
        let date = "2026-01-02T03:04:05Z".to_owned();
        Origin { version: "1.2.3".to_owned(), commit: None, host, date }
    }

    fn section(name: &str, content: Content) -> Section {
        Section {
            name: name.to_owned(),
            title: format!("{name} & <more>"),
            source: "a \"paper\"".to_owned(),
            is_known: false,
            content,
        }
    }

    #[test]
    fn a_page_shows_all_sections_and_links_nowhere_else() {
        let mut grid = Grid::new(1, 1);
        grid.add("point", vec!["<p>".to_owned()]);
        grid.add("in band", vec!["no".to_owned()]);
        let line = Line::ours("ours <1>", vec![(0.0, 1.0), (1.0, 2.0)]);
        let findings = Findings {
            blocks: vec![Block::Heading("a < b".to_owned()), Block::Table(grid)],
            plots: vec![Plot::new("plot".to_owned(), vec![line])],
            remarks: "one & two\n\nthree".to_owned(),
            busiest: vec!["core 3".to_owned()],
            tally: Tally { inside: 2, outside: 1 },
            unsound: vec!["<p>".to_owned()],
            ..Findings::default()
        };
        let kept = MeasuredPoint {
            experiment: "good".to_owned(),
            label: "<p>".to_owned(),
            command: "lotus-lab bench kvs --keys 5".to_owned(),
            without: vec!["a-rule".to_owned()],
            origin: origin(),
            took_s: 1.25,
            result: serde_json::Value::Null,
        };
        let sections = [
            section("good one", Content::Whole(findings, vec![kept])),
            section("bad", Content::Failed("it <broke>".to_owned())),
            section("late", Content::Missing(2, 5)),
        ];
        let html = page(&sections, &origin(), true);
        for expected in [
            "href=\"#good-one\"",
            "section id=\"good-one\"",
            "good one &amp; &lt;more&gt;",
            "a &quot;paper&quot;",
            "<b>2</b> of 3 published values are in band. Of 3 experiments, 2 have no",
            "<span class=bad>no</span>",
            "<h3>a &lt; b</h3>",
            "<p>one &amp; two</p>\n<p>three</p>",
            "core 3",
            "<code>lotus-lab bench kvs --keys 5</code><br>with these rules broken: a-rule",
            "Not measured: it &lt;broke&gt;",
            "2 of 5 points are still to be measured",
            "Audit failed: &lt;p&gt;",
            "Short mode",
            "a&lt;b&gt;",
            "<svg ",
        ] {
            assert!(html.contains(expected), "{expected}\n{html}");
        }
        for absent in ["http", "<script", "src=", "url(", "@import", "<p>in band"] {
            assert!(!html.contains(absent), "{absent}");
        }
    }
}
