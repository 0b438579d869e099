//! The program, the machine and the time of a result.

use std::fs;

use lotus_benchmarks::origin::{Machine, Origin};
use lotus_fabric::env::{Env, Nanos};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Commit of this program, if its sources were a checkout.
const COMMIT: Option<&str> = option_env!("LOTUS_COMMIT");

/// Origin of a result of this process, as of now.
pub fn here() -> Origin {
    let env = Env::real(0);
    // Without a host name from the kernel, the result has none.
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    Origin {
        version: VERSION.to_owned(),
        commit: COMMIT.map(str::to_owned),
        host: Machine { name, cores: env.parallelism() },
        date: date(env.now()),
    }
}

/// A point in time to the second, in UTC (RFC 3339).
fn date(at: Nanos) -> String {
    let at = OffsetDateTime::from_unix_timestamp((at.0 / 1_000_000_000) as i64);
    // 64 bits of nanoseconds end in the year 2554, and the format supports years up to 9999.
    at.ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |secs: u64| date(Nanos(secs * 1_000_000_000 + 999_999_999));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(Nanos(u64::MAX)), "2554-07-21T23:34:33Z");
    }

    #[test]
    fn a_result_of_this_process_names_its_cores() {
        let origin = here();
        assert!(origin.host.cores > 0 && !origin.date.is_empty(), "{origin:?}");
        assert!(origin.commit.as_ref().is_none_or(|commit| commit.len() >= 40), "{origin:?}");
    }
}
