//! Arguments of `lotus top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// Permitted range of the interval between two polls, in seconds.
const SECONDS: std::ops::RangeInclusive<f64> = 0.1..=60.0;

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Description of a running cluster, or the socket of a running benchmark (--live).
    #[arg(value_name = "CLUSTER.toml|SOCKET")]
    pub target: PathBuf,
    /// Directory of a cluster's process ids, logs and sockets on this host
    /// [default: beside the file, ending in .state].
    #[arg(long, value_name = "DIRECTORY")]
    pub state: Option<PathBuf>,
    /// Prints one frame as plain text, and ends; needs no terminal.
    #[arg(long)]
    pub once: bool,
    /// Time between two looks at a cluster, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
}

/// Parses the interval between two polls.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    let (least, most) = (SECONDS.start(), SECONDS.end());
    match SECONDS.contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(format!("from {least} to {most} seconds")),
    }
}
