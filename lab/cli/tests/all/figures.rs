//! `lotus-lab figures`: experiments in files of the user, short enough for a test.

use std::fs;

use serde_json::Value;

use crate::common::{Scratch, lab};

/// A swept series of two points, and one without a sweep. Simulated, so that it repeats itself.
const SMALL: &str = "
title = 'Two <kinds> of locks'
source = 'a paper & its figure'
testbed = '''--profile ideal --cns 1 --mns 1 --replicas 1 --lock-table 1M --vt-cache 64
--secs 0.001 --warmup 0.0005'''
remarks = 'Small.'

[[series]]
name = 'store'
bench = 'kvs --keys 500'
sweep = ['1x1', '1x4']

[[series.points]]
label = 'words'
flags = '--locks cas'

[[series.points]]
label = 'tables'
published = 1.0
band = [0.0, 1000.0]
accepted = true

[[series]]
name = 'bank'
bench = 'smallbank --accounts 500 --threads 1 --coroutines 2'

[[series.points]]
label = 'one'
flags = '--threads 1 --coroutines 2'

[[series.points]]
label = 'other'
flags = '--threads 1 --coroutines 2 --vt-cache 0'
published = 1.0
";

/// Writes the file into the scratch directory, and returns its path.
fn small(scratch: &Scratch, name: &str) -> String {
    let path = scratch.path(&format!("{name}.toml"));
    fs::write(&path, SMALL).expect("writable");
    path
}

fn said(output: &std::process::Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_sweep_shows_the_largest_throughput_and_draws_its_curves() {
    let scratch = Scratch::new("figures");
    let (file, json, plots) =
        (small(&scratch, "small"), scratch.path("out.json"), scratch.path("plots"));
    let output = lab(&["figures", "run", &file, "--json", &json, "--plots", &plots]);
    let (out, err) = said(&output);
    assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
    assert_eq!(err.lines().count(), 6, "a line for each measurement: {err}");
    assert!(err.starts_with("small: store, words, 1x1 (1 of 6)\n"), "{err}");
    assert!(out.contains("| in band |") && out.contains("in band: "), "{out}");
    for plot in ["small-store-P50", "small-store-P99", "small-bank"] {
        assert!(out.contains(&format!("drawn: {plots}/{plot}.svg")), "{out}");
        let svg = fs::read_to_string(format!("{plots}/{plot}.svg")).expect("it was drawn");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{plot}");
    }
    let rows = fs::read(&json).expect("it was written");
    let rows: Vec<Value> = serde_json::from_slice(&rows).expect("JSON");
    assert_eq!(rows.len(), 4);
    let tps = |value: &Value| value["throughput_tps"].as_f64().expect("a number");
    for row in &rows[..2] {
        let curve = row["curve"].as_array().expect("a list");
        let most = curve.iter().map(tps).fold(0.0, f64::max);
        assert_eq!((curve.len(), tps(&row["report"])), (2, most), "{row}");
    }
    assert_eq!(rows[1]["judged"]["in_band"], true);
    assert!(rows[2].get("curve").is_none());
}

#[test]
fn an_accepted_point_out_of_its_band_is_a_fault() {
    let scratch = Scratch::new("figures-fallen");
    let file = small(&scratch, "fallen");
    let text =
        fs::read_to_string(&file).expect("readable").replace("[0.0, 1000.0]", "[0.0, 0.001]");
    fs::write(&file, text).expect("writable");
    let output = lab(&["figures", "run", &file, "--plots", &scratch.path("plots")]);
    let (out, err) = said(&output);
    assert_eq!(output.status.code(), Some(1), "{out}\n{err}");
    assert!(out.contains("OUT OF ITS BAND, in which it was: store, tables\n"), "{out}");
}

/// Whether the elements of a page are closed in the order in which they were opened. Rows and cells
/// of tables close themselves, as HTML has it.
fn assert_well_formed(html: &str) {
    const UNCLOSED: [&str; 7] = ["meta", "br", "tr", "td", "th", "p", "!DOCTYPE"];
    let body = match (html.find("<style>"), html.find("</style>")) {
        (Some(from), Some(to)) => [&html[..from], &html[to + "</style>".len()..]].concat(),
        _ => panic!("there is no style"),
    };
    let mut open: Vec<&str> = Vec::new();
    for tag in body.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        let name = tag.trim_start_matches('/').split([' ', '\n', '/']).next().expect("a name");
        if UNCLOSED.contains(&name) || tag.ends_with('/') {
            continue;
        }
        match tag.starts_with('/') {
            true => assert_eq!(open.pop(), Some(name)),
            false => open.push(name),
        }
    }
    assert_eq!(open, [""; 0]);
}

#[test]
fn a_report_is_one_page_and_a_second_run_measures_nothing() {
    let scratch = Scratch::new("report");
    let files = ["one", "two"].map(|name| small(&scratch, name));
    let folder = scratch.path("report");
    let report = |flags: &[&str]| {
        let command = [&["figures", "report", "--out", &folder, &files[0], &files[1]], flags];
        let output = lab(&command.concat());
        let (out, err) = said(&output);
        assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
        (out, err, fs::read_to_string(format!("{folder}/index.html")).expect("it was written"))
    };
    let (out, err, page) = report(&[]);
    let expected = "2 experiments, 12 points measured now, 0 earlier";
    assert!(out.contains(expected) && err.lines().count() == 12, "{out}\n{err}");
    assert!(err.contains("two: bank, other (12 of 12), about "), "{err}");
    assert_well_formed(&page);
    for point in ["store, words, 1x1", "store, tables, 1x4", "bank, one", "bank, other"] {
        assert_eq!(page.matches(point).count(), 2, "{point}");
    }
    assert!(
        page.contains("Two &lt;kinds&gt; of locks") && page.contains("a paper &amp; its figure")
    );
    assert_eq!(page.matches("<svg ").count(), 6);
    assert!(page.contains("<code>lotus-lab bench kvs --keys 500 --fabric sim"), "{page}");
    assert!(!page.contains("http") && !page.contains("<script"), "{page}");
    // A point that is missing, as after an interruption, and one that is half written.
    let points = format!("{folder}/points/two");
    let mut names: Vec<_> = fs::read_dir(&points).expect("it is").flatten().collect();
    names.sort_by_key(std::fs::DirEntry::path);
    fs::remove_file(names[1].path()).expect("it is there");
    fs::write(names[2].path(), "{").expect("writable");
    let (out, err, again) = report(&[]);
    assert!(out.contains("2 points measured now, 10 earlier"), "{out}");
    assert_eq!(err.lines().count(), 2, "{err}");
    assert_eq!(again.len() / 100, page.len() / 100, "what is simulated repeats itself");
    let (out, err, _) = report(&[]);
    assert!(out.contains("0 points measured now, 12 earlier") && err.is_empty(), "{out}\n{err}");
    let (out, _, _) = report(&["--again"]);
    assert!(out.contains("12 points measured now, 0 earlier"), "{out}");
}

#[test]
fn a_point_that_cannot_be_measured_is_told_on_the_page() {
    let scratch = Scratch::new("report-failed");
    let (bad, good) = (small(&scratch, "bad"), small(&scratch, "good"));
    let text =
        fs::read_to_string(&bad).expect("readable").replace("--profile ideal", "--profile no");
    fs::write(&bad, text).expect("writable");
    let folder = scratch.path("report");
    let output = lab(&["figures", "report", "--out", &folder, &bad, &good]);
    let (out, err) = said(&output);
    assert_eq!(output.status.code(), Some(1), "{out}\n{err}");
    assert!(err.contains("error: bad: store, words, 1x1: "), "{err}");
    let page = fs::read_to_string(format!("{folder}/index.html")).expect("it was written");
    assert!(page.contains("Not measured: store, words, 1x1: ") && page.contains("bank, other"));
    assert_well_formed(&page);
}
