//! Streams whose reader may go away before the end of the output, as `head` does.
//!
//! A reader that has seen enough is no error and does not change the result of the command: the
//! remaining output is dropped, and the exit code stays the same.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the reader of the standard output has gone.
static GONE: AtomicBool = AtomicBool::new(false);

/// A stream that drops its bytes once the reader has gone.
#[derive(Debug)]
pub struct ClosedPipeTolerant<W>(pub W);

/// The standard output: commands write to it only through this type.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandardOutput;

/// Whether the standard output is a terminal.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether the reader of the standard output was found to have gone: a command that only writes to
/// the standard output may end.
pub fn reader_has_gone() -> bool {
    GONE.load(Ordering::Relaxed)
}

fn indulge<T>(outcome: io::Result<T>, dropped: T) -> io::Result<(T, bool)> {
    match outcome {
        Ok(done) => Ok((done, false)),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok((dropped, true)),
        Err(error) => Err(error),
    }
}

impl<W: Write> Write for ClosedPipeTolerant<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        indulge(self.0.write(bytes), bytes.len()).map(|(written, _)| written)
    }

    fn flush(&mut self) -> io::Result<()> {
        indulge(self.0.flush(), ()).map(drop)
    }
}

impl StandardOutput {
    fn note<T>((done, is_gone): (T, bool)) -> T {
        if is_gone {
            GONE.store(true, Ordering::Relaxed);
        }
        done
    }
}

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        indulge(io::stdout().write(bytes), bytes.len()).map(Self::note)
    }

    fn flush(&mut self) -> io::Result<()> {
        indulge(io::stdout().flush(), ()).map(Self::note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_reads_is_dropped_and_other_errors_are_told() {
        struct Fails(io::ErrorKind);
        impl Write for Fails {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(self.0.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Err(self.0.into())
            }
        }
        let mut closed = ClosedPipeTolerant(Fails(io::ErrorKind::BrokenPipe));
        closed.write_all(b"some lines").expect("no fault");
        closed.flush().expect("no fault");
        let mut full = ClosedPipeTolerant(Fails(io::ErrorKind::StorageFull));
        assert!(full.write_all(b"some lines").is_err() && full.flush().is_err());
    }
}
