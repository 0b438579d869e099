//! The log of a node: one line for each event on standard error, of level `info` and above, or as
//! `RUST_LOG` says.
//!
//! A thread of its own writes the lines: a paused terminal, a pipe without a reader, or a slow disk
//! must not hold up the thread that logs, which may be the thread that sends the node's beats.
//! Lines that find [`WAITING_LINES`] lines waiting are dropped.

use std::io::{self, Write};

use lotus_security::printable;
use tracing::warn;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Variable with the filter of the log: a level, or `TARGET=LEVEL`, with commas.
const VARIABLE: &str = "RUST_LOG";

/// Maximum number of waiting lines, of some hundred bytes each.
const WAITING_LINES: usize = 8192;

/// A log that gets each event in a single write. An event takes one line, even with names, keys and
/// error messages of peers.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let mut line = printable(line).into_owned();
        line.push('\n');
        // A log without room, or without a reader, must not end the logging process: the subscriber
        // would report the error on standard error, again the log, and panic.
        let _ = self.0.write_all(line.as_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// Starts to log the events of this process. Waiting lines are written when the guard is dropped,
/// for about a second at most.
pub fn start() -> WorkerGuard {
    let written = std::env::var(VARIABLE).unwrap_or_default();
    let filter = filter(&written);
    let misread = filter.is_none();
    let filter = filter.unwrap_or_else(usual);
    let (log, guard) = aside(io::stderr());
    let lines =
        tracing_subscriber::fmt::layer().with_writer(move || OneLine(log.clone())).with_ansi(false);
    // An existing subscriber is kept.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    if misread {
        warn!("{VARIABLE} is {written:?}, which is no list of LEVEL and TARGET=LEVEL");
    }
    guard
}

/// A writer that never waits: a separate thread writes to `log`.
fn aside(log: impl Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default()
        .buffered_lines_limit(WAITING_LINES)
        .lossy(true)
        .thread_name("lotus-log")
        .finish(log)
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
    fn an_event_takes_one_line() {
        use std::sync::{Arc, Mutex};

        #[derive(Clone, Default)]
        struct LogBuffer(Arc<Mutex<Vec<u8>>>);
        impl Write for LogBuffer {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().expect("no panic").extend_from_slice(bytes);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let buffer = LogBuffer::default();
        let written = buffer.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(move || OneLine(written.clone()))
            .with_ansi(false);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            let name = "a\n2026-01-01 ERROR all is lost\u{1b}[2J";
            warn!(table = %name, "dropped {name}");
        });
        let text = String::from_utf8(buffer.0.lock().expect("no panic").clone()).expect("text");
        assert_eq!((text.lines().count(), text.ends_with('\n')), (1, true), "{text}");
        assert!(text.contains("a\\n2026") && !text.contains('\u{1b}'), "{text}");
    }

    /// The standard error of a node is a file, which a disk or a limit may have no room for.
    #[test]
    fn a_log_that_is_full_ends_nothing() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::FileTooLarge.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::FileTooLarge.into())
            }
        }
        let mut log = OneLine(Full);
        log.write_all(b"an event\n").expect("dropped");
        log.flush().expect("dropped");
    }

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
