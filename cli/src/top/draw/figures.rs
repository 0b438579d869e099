//! Figures as text, short enough for a column.

use std::collections::BTreeMap;

use lotus_benchmarks::report::grouped;

/// Placeholder for an unknown figure.
pub const UNKNOWN: &str = "-";

/// A rate per second: with one decimal below a hundred, in millions from ten million on.
pub fn rate(value: f64) -> String {
    match value {
        value if value >= 1e7 => format!("{:.1}M", value / 1e6),
        value if value >= 99.95 => grouped(value.round() as u64),
        value if value < 0.05 => "0".to_owned(),
        value => format!("{value:.1}"),
    }
}

/// A figure with three digits.
pub fn digits(value: f64) -> String {
    match value {
        value if value >= 99.95 => grouped(value.round() as u64),
        value if value >= 9.995 => format!("{value:.1}"),
        value if value >= 0.9995 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

/// A time in microseconds, with its unit.
pub fn micros(us: f64) -> String {
    match us {
        us if us >= 999_500.0 => format!("{} s", digits(us / 1e6)),
        us if us >= 999.5 => format!("{} ms", digits(us / 1e3)),
        us => format!("{} µs", digits(us)),
    }
}

/// A share, in percent.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A figure that may be unknown.
pub fn or_unknown<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), show)
}

/// Aborts per second, in total and by reason, most frequent first.
pub fn aborts(by_reason: &BTreeMap<String, f64>) -> String {
    let all: f64 = by_reason.values().sum();
    let mut reasons: Vec<_> = by_reason.iter().collect();
    reasons.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let reasons: Vec<_> =
        reasons.into_iter().map(|(reason, value)| format!("{reason} {}", rate(*value))).collect();
    match reasons.is_empty() {
        true => format!("{}/s", rate(all)),
        false => format!("{}/s: {}", rate(all), reasons.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let rates =
            [(0.0, "0"), (0.3, "0.3"), (99.9, "99.9"), (99.96, "100"), (12_345.6, "12,346")];
        for (value, said) in rates.into_iter().chain([(1.25e7, "12.5M")]) {
            assert_eq!(rate(value), said);
        }
        for (value, said) in
            [(0.0123, "0.012"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,235")]
        {
            assert_eq!(digits(value), said, "{value}");
        }
        for (us, said) in [(36.2, "36.2 µs"), (1_480.0, "1.48 ms"), (2_500_000.0, "2.50 s")] {
            assert_eq!(micros(us), said);
        }
        assert_eq!((percent(0.885), or_unknown(None, percent)), ("88.5 %".into(), "-".into()));
    }

    #[test]
    fn aborts_are_named_with_the_most_frequent_first() {
        let aborts_of = |pairs: &[(&str, f64)]| {
            aborts(&pairs.iter().map(|(reason, rate)| ((*reason).to_owned(), *rate)).collect())
        };
        assert_eq!(aborts_of(&[]), "0/s");
        assert_eq!(aborts_of(&[("a", 1.0), ("b", 200.0)]), "201/s: b 200, a 1.0");
    }
}
