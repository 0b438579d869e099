//! A running benchmark at a Unix socket (`--live`): a line of JSON, a [`LiveFrame`], to each reader
//! four times a second.
//!
//! # Readers
//! A reader that does not read costs the run nothing. Lines without room in the reader's socket are
//! dropped as a whole, and after `MOST_MISSED` dropped lines in a row the reader is disconnected.
//! Input from readers is ignored.
//!
//! # The file
//! A socket without a listening process is replaced; a socket in use, and any other file, are
//! refused. Commands that open the same socket take turns by a lock on its directory. The file is
//! removed at the end, unless another file has replaced it.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use lotus_benchmarks::live::{LiveClock, LiveFrame, LiveTitle};
use lotus_benchmarks::progress::Progress;
use lotus_fabric::env::Env;

/// Interval of the lines.
const INTERVAL: Duration = Duration::from_millis(250);
/// Number of lines in a row that a reader may miss: ten seconds.
const MOST_MISSED: usize = 40;
/// Maximum number of concurrent readers.
const MOST_READERS: usize = 32;

/// Refusal of a socket, as a sentence.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The path is another kind of file. Name another path.
    #[error("--live names {}, which exists and is no socket", .0.display())]
    NoSocket(PathBuf),
    /// Another benchmark uses the socket. Name another path.
    #[error("--live names {}, at which another benchmark is shown", .0.display())]
    InUse(PathBuf),
    /// The system's error.
    #[error("cannot show the benchmark at {}: {}", .0.display(), .1)]
    System(PathBuf, io::Error),
}

/// A socket that shows a benchmark. Dropping the value removes the file.
#[derive(Debug)]
pub struct LiveSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode number of the file, to distinguish it from a later file.
    file: (u64, u64),
}

impl LiveSocket {
    /// Listens at a path.
    ///
    /// # Errors
    /// [`LiveError`].
    pub fn open(path: &Path) -> Result<Self, LiveError> {
        let failed = |error| LiveError::System(path.to_owned(), error);
        // Held until the end of the function.
        let _turn = take_turn(path).map_err(failed)?;
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
            Ok(found) if !found.file_type().is_socket() => {
                return Err(LiveError::NoSocket(path.to_owned()));
            }
            Ok(_) => match UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
                Ok(_) => return Err(LiveError::InUse(path.to_owned())),
            },
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        let file = file_of(path).map_err(failed)?;
        let socket = Self { listener, path: path.to_owned(), file };
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
        socket.listener.set_nonblocking(true).map_err(failed)?;
        Ok(socket)
    }
}

impl Drop for LiveSocket {
    fn drop(&mut self) {
        let _turn = take_turn(&self.path);
        if file_of(&self.path).is_ok_and(|found| found == self.file) {
            // A leftover file does no harm: the next benchmark replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Locks the directory of a path until the returned file is dropped.
fn take_turn(path: &Path) -> io::Result<File> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let directory = File::open(above.unwrap_or(Path::new(".")))?;
    directory.lock()?;
    Ok(directory)
}

fn file_of(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Display of a running benchmark. Dropping the value ends the display.
pub struct Live {
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Live {
    /// Shows `progress`, on a thread of its own; rates are per simulated time, or per time of this
    /// machine.
    ///
    /// # Errors
    /// [`LiveError::System`]: the thread cannot be started.
    pub fn start(
        socket: LiveSocket,
        title: LiveTitle,
        progress: Arc<Progress>,
        is_virtual: bool,
    ) -> Result<Self, LiveError> {
        let (stop, stopped) = mpsc::channel();
        let path = socket.path.clone();
        let env = Env::real(0);
        let clock = env.clone();
        let body = move || {
            let mut readers = Vec::new();
            let (mut before, mut then) = (progress.read(), clock.now());
            let mut is_over = false;
            while !is_over {
                // The last line, about the run's end, is sent out of turn.
                is_over = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
                let (reading, now) = (progress.read(), clock.now());
                let passed = match is_virtual {
                    true => LiveClock::Virtual,
                    false => LiveClock::Real(now.since(then).as_nanos() as u64),
                };
                let frame = LiveFrame::between(&title, &before, &reading, passed);
                (before, then) = (reading, now);
                accept(&socket.listener, &mut readers);
                let mut line = serde_json::to_vec(&frame).expect("numbers and strings");
                line.push(b'\n');
                readers.retain_mut(|reader| reader.show(&line));
            }
        };
        let thread = env.spawn("lotus-live", body);
        let thread = thread.map_err(|error| LiveError::System(path, error))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Fails if the thread has already ended.
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            // A panic in the thread only ends the display.
            let _ = thread.join();
        }
    }
}

/// Accepts new readers. Drops a reader at once if there are too many, or if its socket cannot be
/// made non-blocking.
fn accept(listener: &UnixListener, readers: &mut Vec<Viewer>) {
    while let Ok((stream, _)) = listener.accept() {
        if readers.len() < MOST_READERS && stream.set_nonblocking(true).is_ok() {
            readers.push(Viewer { stream, rest: Vec::new(), missed: 0 });
        }
    }
}

/// A process that watches the benchmark.
struct Viewer {
    stream: UnixStream,
    /// Unwritten rest of a partly written line.
    rest: Vec<u8>,
    /// Number of lines dropped in a row.
    missed: usize,
}

impl Viewer {
    /// Shows a line, or drops it if there is no room. Returns whether to keep the reader.
    fn show(&mut self, line: &[u8]) -> bool {
        let rest = std::mem::take(&mut self.rest);
        let Ok(written) = write(&self.stream, &rest) else { return false };
        self.rest = rest[written..].to_vec();
        let written = match self.rest.is_empty() {
            true => write(&self.stream, line),
            false => Ok(0),
        };
        match written {
            Err(_) => return false,
            Ok(0) => self.missed += 1,
            Ok(written) => {
                self.rest.extend(&line[written..]);
                self.missed = 0;
            }
        }
        self.missed <= MOST_MISSED
    }
}

/// Writes as many bytes as there is room for.
///
/// # Errors
/// The reader is gone.
fn write(mut stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};

    use super::*;

    fn reader() -> (Viewer, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a socket");
        (Viewer { stream: ours, rest: Vec::new(), missed: 0 }, theirs)
    }

    #[test]
    fn a_reader_that_does_not_read_is_left_and_gets_whole_lines_until_then() {
        let (mut reader, mut theirs) = reader();
        let line = [&[b'x'; 5_000][..], b"\n"].concat();
        let shown = (0..10_000).position(|_| !reader.show(&line)).expect("it is left");
        assert!(shown > MOST_MISSED, "{shown}");
        assert!(reader.rest.len() < line.len());
        drop(reader);
        let mut all = Vec::new();
        theirs.read_to_end(&mut all).expect("it was ended");
        let whole = all.len() / line.len();
        assert!(whole > 0 && all.chunks_exact(line.len()).all(|one| one == line));
    }

    #[test]
    fn a_slow_reader_gets_the_rest_of_its_line_before_another() {
        let (mut reader, theirs) = reader();
        let line = |letter: u8| [&vec![letter; 5_000][..], b"\n"].concat();
        let mut shown = 0;
        while reader.rest.is_empty() && reader.missed == 0 {
            assert!(reader.show(&line(b'a')));
            shown += 1;
        }
        let mut theirs = BufReader::new(theirs);
        let mut text = String::new();
        for _ in 0..shown - 1 {
            text.clear();
            theirs.read_line(&mut text).expect("lines");
            assert_eq!(text.as_bytes(), line(b'a'));
        }
        assert!(reader.show(&line(b'b')));
        assert!(reader.rest.is_empty() && reader.missed == 0);
        drop(reader);
        let left: Vec<String> = theirs.lines().map(|line| line.expect("text")).collect();
        assert!(left.iter().all(|line| line.len() == 5_000), "no line is cut");
        assert!(left.last().is_some_and(|line| line.starts_with('b')));
    }

    #[test]
    fn a_reader_that_is_gone_is_left() {
        let (mut reader, theirs) = reader();
        drop(theirs);
        assert!(!reader.show(b"{}\n"));
    }

    #[test]
    fn sockets_that_nothing_listens_at_are_replaced_and_no_other_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("live.sock");
        drop(UnixListener::bind(&path).expect("it is free"));
        assert!(path.exists(), "a dead benchmark leaves its socket");
        let first = LiveSocket::open(&path).expect("it is stale");
        let refused = LiveSocket::open(&path).expect_err("it is in use").to_string();
        assert!(refused.contains("another benchmark is shown"), "{refused}");
        // The second has replaced the file of the first, which leaves it alone.
        fs::remove_file(&path).expect("it is ours");
        let second = LiveSocket::open(&path).expect("it is free");
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
        fs::write(&path, "text").expect("it is ours");
        let refused = LiveSocket::open(&path).expect_err("a file").to_string();
        assert!(refused.contains("exists and is no socket"), "{refused}");
        assert_eq!(fs::read_to_string(&path).expect("it is left alone"), "text");
        let missing = directory.path().join("none").join("live.sock");
        let refused = LiveSocket::open(&missing).expect_err("no directory").to_string();
        assert!(refused.contains("cannot show the benchmark at"), "{refused}");
    }
}
