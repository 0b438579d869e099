//! The log of a node: one line for each event on standard error, of level `info` and above, or as
//! `RUST_LOG` says.

use tracing::warn;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Variable with the filter of the log: a level, or `TARGET=LEVEL`, with commas.
const VARIABLE: &str = "RUST_LOG";

/// Starts to log the events of this process.
pub fn start() {
    let written = std::env::var(VARIABLE).unwrap_or_default();
    let filter = filter(&written);
    let misread = filter.is_none();
    let filter = filter.unwrap_or_else(usual);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    // A subscriber that is there already is as good.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    if misread {
        warn!("{VARIABLE} is {written:?}, which is no list of LEVEL and TARGET=LEVEL");
    }
}

fn usual() -> Targets {
    Targets::new().with_default(LevelFilter::INFO)
}

/// Parses a filter; `None` if it is invalid.
fn filter(written: &str) -> Option<Targets> {
    if written.is_empty() { Some(usual()) } else { written.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn levels_and_targets_are_as_they_are_written() {
        let logs = |written: &str, target: &str, level: &Level| {
            filter(written).expect("it makes sense").would_enable(target, level)
        };
        assert!(logs("", "lotus", &Level::INFO) && !logs("", "lotus", &Level::DEBUG));
        assert!(logs("debug", "lotus", &Level::DEBUG));
        assert!(!logs("error", "lotus", &Level::WARN));
        let one = "warn,lotus_server=debug";
        assert!(
            logs(one, "lotus_server::door", &Level::DEBUG) && !logs(one, "lotus", &Level::INFO)
        );
        assert!(filter("lotus=loud").is_none());
    }
}
