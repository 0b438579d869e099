//! Parsers of single command-line values: syntax and permitted range.

use clap::builder::{PossibleValuesParser, TypedValueParser};

/// Maximum length of a run, in seconds.
const MAX_SECS: f64 = 86_400.0;
const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;

/// Parses a name from a list of names.
pub fn one_of<T: Copy + Send + Sync + 'static>(
    values: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.iter().map(|(name, _)| *name)).map(move |given| {
        let found = values.iter().find(|(name, _)| *name == given);
        found.expect("clap accepts nothing but these names").1
    })
}

/// Parses a count between one and `most`.
pub fn count(most: u16) -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u16).range(1..=i64::from(most)).map(usize::from)
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "it is not a number".to_owned())
}

fn within(text: &str, allowed: impl Fn(f64) -> bool, range: &str) -> Result<f64, String> {
    let number = number(text)?;
    if allowed(number) { Ok(number) } else { Err(format!("it is not {range}")) }
}

/// Parses a ratio.
pub fn ratio(text: &str) -> Result<f64, String> {
    within(text, |ratio| (0.0..=1.0).contains(&ratio), "between 0 and 1")
}

/// Parses a skew.
pub fn skew(text: &str) -> Result<f64, String> {
    within(text, |theta| (0.0..=10.0).contains(&theta), "between 0 and 10")
}

/// Parses a time, in seconds.
pub fn secs(text: &str) -> Result<f64, String> {
    within(text, |secs| (0.0..=MAX_SECS).contains(&secs), "between 0 and 86400 seconds")
}

/// Length of a run in seconds, as given or by default; the maximum where a number of operations
/// ends the run.
pub fn run_secs(given: Option<f64>, default: f64, operations: Option<u64>) -> f64 {
    let longest = if operations.is_some() { MAX_SECS } else { default };
    given.unwrap_or(longest)
}

/// Length of a warm-up in seconds, as given or by default; zero where a number of operations ends
/// the run.
pub fn warmup_secs(given: Option<f64>, run_secs: f64, operations: Option<u64>) -> f64 {
    let default = if operations.is_some() { 0.0 } else { (run_secs / 10.0).min(1.0) };
    given.unwrap_or(default)
}

/// Parses a time, in microseconds.
pub fn micros(text: &str) -> Result<f64, String> {
    within(text, |us| (0.0..=1e6).contains(&us), "between 0 and 1000000 microseconds")
}

/// Parses a positive time, in seconds.
pub fn positive_secs(text: &str) -> Result<f64, String> {
    let allowed = |secs| secs > 0.0 && secs <= MAX_SECS;
    within(text, allowed, "more than 0 and at most 86400 seconds")
}

/// Parses a time in milliseconds, up to the maximum of a virtual clock.
pub fn millis(text: &str) -> Result<f64, String> {
    let allowed = |millis| (0.0..=MAX_SECS * 1000.0).contains(&millis);
    within(text, allowed, "0 to 86400000 milliseconds")
}

/// Parses a rate.
pub fn rate(text: &str) -> Result<f64, String> {
    let allowed = |tps| tps > 0.0 && tps <= 1e9;
    within(text, allowed, "more than 0 and at most 10^9 transactions a second")
}

/// Parses the size of a lock table.
pub fn lock_table_bytes(text: &str) -> Result<u64, String> {
    bytes(text, 64..=64 * GIB, "between 64 bytes and 64 GiB")
}

/// Parses the size of a memory node.
pub fn memory_bytes(text: &str) -> Result<u64, String> {
    bytes(text, KIB * KIB..=KIB * GIB, "between 1 MiB and 1 TiB")
}

/// Parses a number of bytes with an optional unit: K, M or G, each 1,024 times the previous unit.
fn bytes(
    text: &str,
    range: std::ops::RangeInclusive<u64>,
    range_text: &str,
) -> Result<u64, String> {
    let bytes = parse_size::Config::new().with_binary().parse_size(text);
    let bytes =
        bytes.map_err(|_| "it is not a number of bytes such as 1048576, 1024K or 1M".to_owned())?;
    range.contains(&bytes).then_some(bytes).ok_or_else(|| format!("it is not {range_text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_units() {
        let cases = [
            ("64", Ok(64)),
            ("1K", Ok(1 << 10)),
            ("32M", Ok(32 << 20)),
            ("2GiB", Ok(2 << 30)),
            ("63", Err(())),
            ("65G", Err(())),
            ("99999999999999999999", Err(())),
            ("18446744073709551615G", Err(())),
            ("-1", Err(())),
            ("1.5M", Ok(3 << 19)),
            ("M", Err(())),
            ("1T", Err(())),
            ("", Err(())),
        ];
        for (text, expected) in cases {
            assert_eq!(lock_table_bytes(text).map_err(drop), expected, "{text}");
        }
    }

    #[test]
    fn numbers_keep_to_their_ranges() {
        assert_eq!(ratio("0.25"), Ok(0.25));
        for text in ["-0.1", "1.1", "nan", "inf", "half", ""] {
            assert!(ratio(text).is_err(), "{text}");
        }
        for text in ["0", "-1", "inf", "nan", "1e9"] {
            assert!(positive_secs(text).is_err(), "{text}");
        }
        assert_eq!(secs("0"), Ok(0.0));
    }
}
