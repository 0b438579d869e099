//! `lotus figures`: experiments in files of the user, short enough for a test.

use std::fs;

use serde_json::Value;

use crate::common::{Scratch, lotus};

/// A swept series of two points, and one without a sweep. Simulated, so that it repeats itself.
const SMALL: &str = "
title = 'Two <kinds> of locks'
source = 'a paper & its figure'
testbed = '--profile ideal --cns 2 --secs 0.002 --warmup 0.001'
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
    let output = lotus(&["figures", "run", &file, "--json", &json, "--plots", &plots]);
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
    let output = lotus(&["figures", "run", &file, "--plots", &scratch.path("plots")]);
    let (out, err) = said(&output);
    assert_eq!(output.status.code(), Some(1), "{out}\n{err}");
    assert!(out.contains("OUT OF ITS BAND, in which it was: store, tables\n"), "{out}");
}
