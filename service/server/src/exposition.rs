//! Metrics as text, and the metrics shown by every process of a cluster.
//!
//! A scraper that accepts OpenMetrics gets OpenMetrics; a scraper without OpenMetrics gets the
//! plain text format that Prometheus has always read. Both formats show identical figures.

use std::fmt::{self, Write as _};

use lotus_fabric::env::{Env, Nanos};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelValue, LabelValueEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// Label value chosen outside the server, escaped as both formats demand (I341).
#[derive(Clone, Copy, Debug)]
pub(crate) struct LabelValue<'a>(pub(crate) &'a str);

impl EncodeLabelValue for LabelValue<'_> {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '\\' => encoder.write_str("\\\\")?,
                '"' => encoder.write_str("\\\"")?,
                '\n' => encoder.write_str("\\n")?,
                letter => encoder.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// A figure of a process, read at each scrape.
pub struct Gauge {
    /// Name, without the prefix `lotus_`; the unit comes last.
    pub name: &'static str,
    /// Help text.
    pub help: &'static str,
    /// Label for telling gauges of the same name apart, as name and value.
    pub label: Option<(&'static str, String)>,
    /// Returns the value; the gauge is hidden while there is no value. Must not block for long.
    pub read: Box<dyn Fn() -> Option<f64> + Send + Sync>,
}

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gauge").field(&self.name).finish()
    }
}

/// Text format of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    Plain,
    Open,
}

impl Format {
    /// Returns the format for an `Accept` header: OpenMetrics, if the header names OpenMetrics and
    /// gives plain text no greater weight.
    pub(crate) fn accepted(accept: &str) -> Self {
        let mut weights = [0.0_f64; 2];
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let place = match parts.next() {
                Some("application/openmetrics-text") => 1,
                Some("text/plain" | "text/*" | "*/*") => 0,
                _ => continue,
            };
            let weight = parts.find_map(|part| part.strip_prefix("q="));
            let weight = weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0));
            weights[place] = weights[place].max(weight);
        }
        let [plain, open] = weights;
        if open > 0.0 && open >= plain { Self::Open } else { Self::Plain }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Self::Open => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Encodes all registered metrics.
    pub(crate) fn encode(self, registry: &Registry) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, registry)?;
        Ok(if self == Self::Plain { plain(&text) } else { text })
    }
}

/// Converts OpenMetrics to the plain format: a counter's name includes its ending, units are part
/// of names only, and no line marks the end of the text.
fn plain(open: &str) -> String {
    let mut plain = String::with_capacity(open.len());
    let counters: Vec<&str> = open
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    for line in open.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF") {
        let about = ["# HELP ", "# TYPE "].iter().find_map(|head| {
            let rest = line.strip_prefix(head)?;
            let (name, rest) = rest.split_once(' ')?;
            counters.contains(&name).then(|| format!("{head}{name}_total {rest}\n"))
        });
        match about {
            Some(about) => plain.push_str(&about),
            None => {
                plain.push_str(line);
                plain.push('\n');
            }
        }
    }
    plain
}

/// Metrics of every process: cost, age, and version.
pub(crate) struct Process {
    env: Env,
    began: Nanos,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("began", &self.began).finish_non_exhaustive()
    }
}

impl Process {
    /// Creates the metrics of a process that begins about now.
    pub(crate) fn new(env: Env) -> Self {
        Self { began: env.now(), env }
    }

    /// Returns a copy for one scrape.
    pub(crate) fn shown(&self) -> Self {
        Self { began: self.began, env: self.env.clone() }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let seconds = used.tv_sec as f64 + used.tv_nsec as f64 / 1e9;
        let help = "Processor time that the process has used";
        let mut counter =
            encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        counter.encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
        if let Some(bytes) = resident_bytes() {
            let help = "Memory of the process that is in use, memory that it shares included";
            gauge(encoder, "process_resident_memory_bytes", help, bytes as i64)?;
        }
        let up = self.env.now().since(self.began);
        gauge(encoder, "lotus_uptime_seconds", "Since the process began", up.as_secs_f64())?;
        let help = "1, of the version that runs";
        let mut build =
            encoder.encode_descriptor("lotus_build_info", help, None, MetricType::Gauge)?;
        build.encode_family(&[("version", env!("CARGO_PKG_VERSION"))])?.encode_gauge(&1_i64)
    }
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Encodes gauges of the program that runs the process; gauges with the same name stand together.
pub(crate) fn gauges(encoder: &mut DescriptorEncoder<'_>, gauges: &[Gauge]) -> fmt::Result {
    for (place, first) in gauges.iter().enumerate() {
        if gauges[..place].iter().any(|before| before.name == first.name) {
            continue;
        }
        let same = gauges.iter().filter(|gauge| gauge.name == first.name);
        let values: Vec<_> = same.filter_map(|gauge| Some((gauge, (gauge.read)()?))).collect();
        if values.is_empty() {
            continue;
        }
        let mut encoder =
            encoder.encode_descriptor(first.name, first.help, None, MetricType::Gauge)?;
        for (gauge, value) in values {
            match &gauge.label {
                Some((name, label)) => {
                    encoder.encode_family(&[(*name, LabelValue(label))])?.encode_gauge(&value)?;
                }
                None => encoder.encode_gauge(&value)?,
            }
        }
    }
    Ok(())
}

pub(crate) fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: impl EncodeGaugeValue,
) -> fmt::Result {
    let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    encoder.encode_gauge(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_those_who_ask_for_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0,\
                          application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let cases = [
            ("", Format::Plain),
            ("*/*", Format::Plain),
            ("text/plain; version=0.0.4", Format::Plain),
            ("application/json", Format::Plain),
            (prometheus, Format::Open),
            ("application/openmetrics-text", Format::Open),
            ("text/plain;q=0.9, application/openmetrics-text; q=0.8", Format::Plain),
            ("application/openmetrics-text; q=0", Format::Plain),
        ];
        for (accept, expected) in cases {
            assert_eq!(Format::accepted(accept), expected, "{accept}");
        }
    }

    /// One name with a quotation mark once made the whole text unreadable.
    #[test]
    fn labels_are_escaped_in_both_formats() {
        let read: fn() -> _ = || Some(1.0);
        let label = |value: &str| Some(("table", value.to_owned()));
        let gauge =
            |value| Gauge { name: "b", help: "B", label: label(value), read: Box::new(read) };
        let gauges = ["a\"b", "a\\", "a\nlotus_forged 1", "\\n"].map(gauge);
        struct All(Vec<Gauge>);
        impl fmt::Debug for All {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("All")
            }
        }
        impl Collector for All {
            fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
                super::gauges(&mut encoder, &self.0)
            }
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(All(gauges.into())));
        for format in [Format::Plain, Format::Open] {
            let text = format.encode(&registry).expect("into a string");
            let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("b{")).collect();
            let expected = [
                r#"b{table="a\"b"} 1.0"#,
                r#"b{table="a\\"} 1.0"#,
                r#"b{table="a\nlotus_forged 1"} 1.0"#,
                r#"b{table="\\n"} 1.0"#,
            ];
            assert_eq!(lines, expected, "{text}");
            assert!(!text.lines().any(|line| line.starts_with("lotus_forged")), "{text}");
        }
    }

    #[test]
    fn the_plain_format_names_counters_as_their_samples_are_named() {
        let open = "# HELP lotus_hits Hits.\n# TYPE lotus_hits counter\nlotus_hits_total 3\n\
                    # HELP lotus_wait_seconds Wait.\n# TYPE lotus_wait_seconds histogram\n\
                    # UNIT lotus_wait_seconds seconds\nlotus_wait_seconds_count 1\n# EOF\n";
        let expected = "# HELP lotus_hits_total Hits.\n# TYPE lotus_hits_total counter\n\
                        lotus_hits_total 3\n# HELP lotus_wait_seconds Wait.\n\
                        # TYPE lotus_wait_seconds histogram\nlotus_wait_seconds_count 1\n";
        assert_eq!(plain(open), expected);
    }
}
