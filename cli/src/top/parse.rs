//! Metrics in Prometheus's plain text format, and a node's figures among them. Pure.
//!
//! Text that is not metrics, or lacks the metrics of every cluster process, is refused as a whole:
//! a node that sends nonsense in one line is not trusted in the next.

use std::collections::BTreeMap;

/// A line of metrics: a name, labels, a value.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

/// Largest accepted figure: 2 to the 53rd, the limit for exact counts and differences.
const LARGEST: f64 = 9_007_199_254_740_992.0;

/// Parses all metrics of a text.
///
/// # Errors
/// The number of the first invalid line.
pub fn metrics(text: &str) -> Result<Vec<Metric>, usize> {
    let lines = (1_usize..).zip(text.lines());
    let mut found = Vec::new();
    for (number, line) in lines {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            found.push(metric(line).ok_or(number)?);
        }
    }
    Ok(found)
}

fn metric(line: &str) -> Option<Metric> {
    let of_names = |letter: char| letter.is_ascii_alphanumeric() || "_:".contains(letter);
    let end = line.find(|letter| !of_names(letter))?;
    let (name, rest) = line.split_at(end);
    if name.is_empty() || name.starts_with(|letter: char| letter.is_ascii_digit()) {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let mut words = rest.split_ascii_whitespace();
    let value = words.next()?.parse().ok()?;
    // A timestamp may follow.
    let ends =
        words.next().is_none_or(|time| time.parse::<f64>().is_ok()) && words.next().is_none();
    ends.then(|| Metric { name: name.to_owned(), labels, value })
}

/// The labels up to the closing brace, and the text after the brace.
fn labels(text: &str) -> Option<(Vec<(String, String)>, &str)> {
    let (mut found, mut rest) = (Vec::new(), text);
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((found, behind));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let (mut value, mut letters) = (String::new(), quoted.char_indices());
        let end = loop {
            match letters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match letters.next()?.1 {
                    'n' => '\n',
                    letter => letter,
                }),
                (_, letter) => value.push(letter),
            }
        };
        found.push((name.trim().to_owned(), value));
        rest = &quoted[end + 1..];
    }
}

/// Figures of a node at one moment; counters count from the start of its process.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sample {
    pub uptime_s: f64,
    pub processor_s: f64,
    /// Memory of the process, in bytes.
    pub resident: Option<f64>,
    pub committed: f64,
    /// Aborted attempts, by reason.
    pub aborts: BTreeMap<String, f64>,
    /// Upper bounds of latency, in seconds, with cumulative numbers of transactions.
    pub latencies: Vec<(f64, f64)>,
    /// Requested locks owned by the node itself, and by other nodes.
    pub own_locks: f64,
    pub far_locks: f64,
    pub shards: Option<f64>,
    pub shards_moved: f64,
    pub epoch: Option<f64>,
    pub takes_part: Option<bool>,
    /// Time until the node counts as dead, in seconds.
    pub lease_left_s: Option<f64>,
    /// Memory of memory nodes by their names: allocated bytes, and limit in bytes.
    pub memory: BTreeMap<String, (f64, f64)>,
    /// Names of the memory nodes that do not answer this node.
    pub silent: Vec<String>,
    /// Memory that a memory node has touched, and its limit, in bytes.
    pub region: Option<(f64, f64)>,
}

impl Sample {
    /// Reads the figures from a text.
    ///
    /// # Errors
    /// The reason why the text is not of a node, as the end of a sentence.
    pub fn read(text: &str) -> Result<Self, String> {
        let found = metrics(text).map_err(|line| format!("line {line} is no metric"))?;
        let Some(uptime_s) = one(&found, "lotus_uptime_seconds") else {
            return Err("these are not the metrics of a node".to_owned());
        };
        let sum = |name: &str| labelled(&found, name).map(|(_, value)| value).sum();
        let plain = |name: &str| one(&found, name);
        let with = |name: &str, wanted: &str| {
            labelled(&found, name)
                .find(|(label, _)| *label == wanted)
                .map_or(0.0, |(_, found)| found)
        };
        let locks = |keeper| with("lotus_locks_asked_total", keeper);
        let allocated = labelled(&found, "lotus_memory_allocated_bytes");
        let answers = labelled(&found, "lotus_memory_node_answers");
        let named = |(label, value): (&str, f64)| (label.to_owned(), value);
        let used = plain("lotus_region_used_bytes").or(plain("lotus_region_bytes"));
        let sample = Self {
            uptime_s,
            processor_s: plain("process_cpu_seconds_total").unwrap_or(0.0),
            resident: plain("process_resident_memory_bytes"),
            committed: with("lotus_transactions_total", "committed"),
            aborts: labelled(&found, "lotus_aborts_total").map(named).collect(),
            latencies: buckets(&found),
            own_locks: locks("here"),
            far_locks: locks("elsewhere"),
            shards: plain("lotus_shards_owned"),
            shards_moved: sum("lotus_shards_moved_total"),
            epoch: plain("lotus_configuration_epoch"),
            takes_part: plain("lotus_takes_part").map(|takes_part| takes_part > 0.0),
            lease_left_s: plain("lotus_lease_margin_seconds"),
            memory: allocated
                .map(|(node, bytes)| {
                    (node.to_owned(), (bytes, with("lotus_memory_limit_bytes", node)))
                })
                .collect(),
            silent: answers
                .filter(|(_, answers)| *answers == 0.0)
                .map(|(node, _)| node.to_owned())
                .collect(),
            region: used.zip(plain("lotus_region_limit_bytes")),
        };
        Ok(sample)
    }
}

/// Whether a figure is plausible for a node.
fn is_sound(value: f64) -> bool {
    (0.0..=LARGEST).contains(&value)
}

/// Value of a metric without labels, if present and sound.
fn one(found: &[Metric], name: &str) -> Option<f64> {
    let metric = found.iter().find(|metric| metric.name == name && metric.labels.is_empty())?;
    Some(metric.value).filter(|value| is_sound(*value))
}

/// Sound values of all metrics with a name, each with the value of its first label.
fn labelled<'a>(
    found: &'a [Metric],
    name: &'a str,
) -> impl Iterator<Item = (&'a str, f64)> + Clone + 'a {
    let same = found.iter().filter(move |metric| metric.name == name && is_sound(metric.value));
    same.map(|metric| (metric.labels.first().map_or("", |(_, label)| label), metric.value))
}

/// The histogram of latencies, in order of its bounds; empty if invalid.
fn buckets(found: &[Metric]) -> Vec<(f64, f64)> {
    let all = labelled(found, "lotus_transaction_duration_seconds_bucket");
    let buckets = all.map(|(bound, count)| Some((bound.parse::<f64>().ok()?, count)));
    let buckets: Vec<_> = buckets.collect::<Option<_>>().unwrap_or_default();
    let in_order = buckets.windows(2).all(|pair: &[(f64, f64)]| {
        let [(bound, count), (next_bound, next_count)] = pair else { return true };
        bound < next_bound && count <= next_count
    });
    if in_order { buckets } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP lotus_uptime_seconds Since.\n\
        lotus_uptime_seconds 12.5\nprocess_cpu_seconds_total 3\n\
        lotus_transactions_total{outcome=\"committed\"} 100\n\
        lotus_transactions_total{outcome=\"failed\"} 5\n\
        lotus_aborts_total{reason=\"conflict\"} 7\n\
        lotus_transaction_duration_seconds_bucket{le=\"0.001\"} 60\n\
        lotus_transaction_duration_seconds_bucket{le=\"0.01\"} 99\n\
        lotus_transaction_duration_seconds_bucket{le=\"+Inf\"} 100\n\
        lotus_locks_asked_total{keeper=\"here\"} 30\n\
        lotus_locks_asked_total{keeper=\"elsewhere\"} 10\n\
        lotus_shards_owned 2048\nlotus_takes_part 1\nlotus_shards_moved_total 4\n\
        lotus_memory_allocated_bytes{memory_node=\"mn-1\"} 64\n\
        lotus_memory_limit_bytes{memory_node=\"mn-1\"} 256\n\
        lotus_memory_node_answers{memory_node=\"mn-0\"} 0\n\
        lotus_memory_node_answers{memory_node=\"mn-1\"} 1\n";

    #[test]
    fn lines_are_metrics_or_refused() {
        let read = |line: &str| {
            let found = metrics(line).ok()?.pop()?;
            Some((found.name, found.labels.len(), found.value))
        };
        let is = |name: &str, labels, value| Some((name.to_owned(), labels, value));
        let cases = [
            ("a 1", is("a", 0, 1.0)),
            ("a_b:c{x=\"1\",y=\"2\"} 2.5", is("a_b:c", 2, 2.5)),
            ("a{} 1e3 1700000000", is("a", 0, 1e3)),
            ("a{x=\"}\\\"\\n,\"} +Inf", is("a", 1, f64::INFINITY)),
            ("a", None),
            ("a one", None),
            ("1a 1", None),
            ("a{x=\"1} 1", None),
            ("a{x=1} 1", None),
            ("a 1 2 3", None),
            ("<html>", None),
            (" {} 1", None),
        ];
        for (line, expected) in cases {
            assert_eq!(read(line), expected, "{line}");
        }
        assert_eq!(metrics("a 1\n\n# b\nb\n"), Err(4));
        let escaped = metrics("a{x=\"\\\\\\\"\\n\"} 1").expect("a metric");
        assert_eq!(escaped[0].labels, [("x".to_owned(), "\\\"\n".to_owned())]);
    }

    #[test]
    fn a_sample_has_the_figures_of_a_node() {
        let sample = Sample::read(TEXT).expect("a node's");
        assert_eq!((sample.committed, sample.own_locks, sample.far_locks), (100.0, 30.0, 10.0));
        assert_eq!(sample.aborts, BTreeMap::from([("conflict".to_owned(), 7.0)]));
        assert_eq!(sample.latencies, [(0.001, 60.0), (0.01, 99.0), (f64::INFINITY, 100.0)]);
        assert_eq!(sample.memory, BTreeMap::from([("mn-1".to_owned(), (64.0, 256.0))]));
        assert_eq!((sample.silent, sample.takes_part), (vec!["mn-0".to_owned()], Some(true)));
        assert_eq!((sample.shards, sample.epoch, sample.region), (Some(2048.0), None, None));
    }

    #[test]
    fn what_is_no_node_is_refused_and_figures_beyond_belief_are_left_out() {
        let refused = |text: &str| Sample::read(text).expect_err(text);
        assert_eq!(refused("half a li"), "line 1 is no metric");
        assert_eq!(refused("up 1\n"), "these are not the metrics of a node");
        assert_eq!(refused("lotus_uptime_seconds NaN\n"), "these are not the metrics of a node");
        let odd = "lotus_uptime_seconds 1\nlotus_transactions_total{outcome=\"committed\"} 1e300\n\
                   lotus_shards_owned -3\nlotus_aborts_total{reason=\"conflict\"} NaN\n\
                   lotus_transaction_duration_seconds_bucket{le=\"2\"} 5\n\
                   lotus_transaction_duration_seconds_bucket{le=\"1\"} 9\n";
        let sample = Sample::read(odd).expect("a node's");
        assert_eq!(sample, Sample { uptime_s: 1.0, ..Sample::default() });
    }
    #[test]
    fn damaged_text_is_refused_or_read_and_never_more() {
        let damage = ["", "\"", "{", "}", "\\", "=", "\n", "é", "9"];
        for at in (0..TEXT.len()).filter(|at| TEXT.is_char_boundary(*at)) {
            let (head, tail) = TEXT.split_at(at);
            // Whether it is refused does not matter here.
            let _ = Sample::read(head);
            for damage in damage {
                let _ = Sample::read(&format!("{head}{damage}{tail}"));
            }
        }
    }
}
