//! Checks a history file: `cargo run --release -p lotus-checker --example check -- h.jsonl strict`.

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, Write};

use lotus_checker::{History, Options, RealTime, check};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which file?")?;
    let strict = arguments.next().is_some();
    let real_time = if strict { RealTime::Enforced } else { RealTime::Ignored };
    let history = History::read(BufReader::with_capacity(1 << 20, File::open(path)?))?;
    let report = check(&history, &Options { real_time, ..Options::default() });
    writeln!(std::io::stdout(), "{report}")?;
    Ok(())
}
