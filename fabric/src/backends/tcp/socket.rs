//! Non-blocking sockets: buffers of words, and notification when a socket is ready.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use zerocopy::IntoBytes;

use super::limits::KEPT_WORDS;
use crate::contract::region::WORD_BYTES;
use crate::contract::transport::{Sleep, Wake};

/// Result of one read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fill {
    /// No bytes were available.
    Nothing,
    /// Some bytes, fewer than there was room for.
    Drained,
    /// As many bytes as there was room for.
    Full,
    /// The end: no more bytes will arrive.
    Closed,
}

/// Buffer of received words not yet taken, of fixed capacity.
pub(super) struct Input {
    words: Box<[u64]>,
    taken_words: usize,
    filled_bytes: usize,
}

impl Input {
    pub(super) fn new(words: usize) -> Self {
        Self { words: vec![0; words].into(), taken_words: 0, filled_bytes: 0 }
    }

    /// Capacity in words.
    pub(super) fn capacity(&self) -> usize {
        self.words.len()
    }

    /// Returns the whole words received and not yet taken.
    #[inline]
    pub(super) fn words(&self) -> &[u64] {
        &self.words[self.taken_words..self.filled_bytes / WORD_BYTES]
    }

    /// Removes the first `words` buffered words.
    #[inline]
    pub(super) fn take(&mut self, words: usize) {
        self.taken_words += words;
        debug_assert!(self.taken_words * WORD_BYTES <= self.filled_bytes);
        if self.taken_words * WORD_BYTES == self.filled_bytes {
            (self.taken_words, self.filled_bytes) = (0, 0);
        }
    }

    /// Whether nothing is buffered, not even part of a word.
    pub(super) fn is_empty(&self) -> bool {
        self.filled_bytes == 0
    }

    /// Discards the buffered words.
    pub(super) fn clear(&mut self) {
        (self.taken_words, self.filled_bytes) = (0, 0);
    }

    /// Reads once, as many bytes as fit.
    ///
    /// # Errors
    /// The connection is broken.
    #[inline]
    pub(super) fn fill(&mut self, from: &mut impl Read) -> io::Result<Fill> {
        self.make_room();
        let room = &mut self.words.as_mut_bytes()[self.filled_bytes..];
        if room.is_empty() {
            return Ok(Fill::Full);
        }
        match from.read(room) {
            Ok(0) => Ok(Fill::Closed),
            Ok(bytes) => {
                let full = bytes == room.len();
                self.filled_bytes += bytes;
                Ok(if full { Fill::Full } else { Fill::Drained })
            }
            Err(error) if is_not_now(&error) => Ok(Fill::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Moves the buffered words to the front once more than half of the buffer has been taken.
    #[inline]
    fn make_room(&mut self) {
        if self.taken_words > self.words.len() / 2 {
            let taken = self.taken_words * WORD_BYTES;
            self.words.as_mut_bytes().copy_within(taken..self.filled_bytes, 0);
            self.filled_bytes -= taken;
            self.taken_words = 0;
        }
    }
}

/// Words to be sent. Callers check [`Output::len`] before appending, and so bound the buffer.
#[derive(Default)]
pub(super) struct Output {
    /// Callers append directly.
    pub(super) words: Vec<u64>,
    sent_bytes: usize,
}

impl Output {
    /// Returns the number of words not yet sent, or sent but not yet removed.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Writes once, as many bytes as the socket takes.
    ///
    /// # Errors
    /// The connection is broken.
    #[inline]
    pub(super) fn flush(&mut self, into: &mut impl Write) -> io::Result<()> {
        if self.words.is_empty() {
            return Ok(());
        }
        let waiting = &self.words.as_bytes()[self.sent_bytes..];
        match into.write(waiting) {
            Ok(bytes) if bytes == waiting.len() => self.clear(),
            Ok(bytes) => {
                self.sent_bytes += bytes;
                self.words.drain(..self.sent_bytes / WORD_BYTES);
                self.sent_bytes %= WORD_BYTES;
            }
            Err(error) if is_not_now(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.words.clear();
        self.words.shrink_to(KEPT_WORDS);
        self.sent_bytes = 0;
    }
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Starts to connect. The socket becomes writable when connecting ends; then check [`connected`].
/// The kernel breaks the connection once sent bytes lack acknowledgement for the time
/// `unacknowledged` (I346).
///
/// # Errors
/// The system refuses at once.
pub(super) fn connect(to: SocketAddr, unacknowledged: Duration) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_tcp_user_timeout(&socket, unacknowledged.as_millis() as u32)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Whether the socket is connected now.
///
/// # Errors
/// Connecting failed.
pub(super) fn connected(stream: &TcpStream) -> io::Result<bool> {
    sockopt::socket_error(stream)??;
    match rustix::net::getpeername(stream) {
        Ok(_) => Ok(true),
        Err(Errno::NOTCONN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Prepares an accepted socket: non-blocking, without delay, and with keep-alive, so that the
/// kernel detects vanished peers.
///
/// # Errors
/// The socket is broken already.
pub(super) fn prepare(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    const PROBES: u32 = 3;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let second = Duration::from_secs(1);
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, silence.max(second))?;
    sockopt::set_tcp_keepintvl(stream, (silence / PROBES).max(second))?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, 2 * silence.as_millis() as u32)?;
    Ok(())
}

/// Readiness that a socket is watched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Interest {
    pub(super) read: bool,
    pub(super) write: bool,
}

impl Interest {
    pub(super) const READ: Self = Self { read: true, write: false };
    pub(super) const WRITE: Self = Self { read: false, write: true };

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN | epoll::EventFlags::RDHUP, self.read);
        flags.set(epoll::EventFlags::OUT, self.write);
        flags
    }
}

/// Identifies a socket in the events of a [`SocketWatch`].
pub(super) type Tag = u64;

/// Watches sockets, level-triggered, and an event counter (the bell) written by other threads.
pub(super) struct SocketWatch {
    epoll: OwnedFd,
    bell: OwnedFd,
    spin: Duration,
}

/// Tag of the bell.
pub(super) const BELL: Tag = Tag::MAX;
/// Tag of descriptors that only end a sleep; other code reads the descriptors.
pub(super) const OTHERS: Tag = Tag::MAX - 1;
/// Events taken with one call.
const EVENTS: usize = 64;

/// Sockets that are ready.
pub(super) type Ready = Vec<epoll::Event>;

impl SocketWatch {
    /// Creates a watch over its bell alone; a thread polls for `spin` before sleeping on the watch.
    ///
    /// # Errors
    /// The process has too many files open.
    pub(super) fn new(spin: Duration) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let watch = Self { epoll, bell, spin };
        watch.add(&watch.bell, BELL, Interest::READ)?;
        Ok(watch)
    }

    /// Watches a socket until it is closed.
    ///
    /// # Errors
    /// The system is out of memory.
    pub(super) fn add(&self, socket: impl AsFd, tag: Tag, what: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(tag), what.flags())?)
    }

    /// Changes the watched readiness of a socket.
    ///
    /// # Errors
    /// The socket is not watched.
    pub(super) fn change(&self, socket: impl AsFd, tag: Tag, what: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(tag), what.flags())?)
    }

    /// Stops watching a socket.
    ///
    /// # Errors
    /// The socket is not watched.
    pub(super) fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Puts the events of ready sockets into `ready`; waits for at most `timeout`.
    #[inline]
    pub(super) fn wait(&self, ready: &mut Ready, timeout: Duration) {
        ready.clear();
        ready.reserve(EVENTS);
        let timeout = timespec(timeout);
        // Fails only if interrupted, when no socket was ready.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(ready), Some(&timeout));
    }

    /// Whether a socket is ready, or becomes ready within `timeout`. Consumes no event.
    pub(super) fn is_ready_within(&self, timeout: Duration) -> bool {
        let mut one = [MaybeUninit::<epoll::Event>::uninit()];
        let timeout = timespec(timeout);
        epoll::wait(&self.epoll, &mut one, Some(&timeout)).is_ok_and(|(ready, _)| !ready.is_empty())
    }

    /// Resets the bell.
    pub(super) fn silence(&self) {
        // An error means that the bell was reset already.
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

impl Sleep for SocketWatch {
    fn spin(&self) -> Duration {
        self.spin
    }

    fn sleep(&self, at_most: Duration) {
        self.is_ready_within(at_most);
    }

    fn watch(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        self.add(other, OTHERS, Interest::READ)
    }
}

impl Wake for SocketWatch {
    /// Rings the bell.
    fn wake(&self) {
        // Fails only if the counter would overflow; such a counter is readable anyway.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A connection over a cut path held what was sent for a quarter of an hour, and for most of a
    /// minute after the path was mended. The peer here never reads, which leaves the sender with
    /// bytes that it cannot get rid of as well.
    #[test]
    fn a_connection_that_its_peer_takes_nothing_from_breaks_by_itself() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there are ports");
        let address = listener.local_addr().expect("it is bound");
        let mut stream = connect(address, Duration::from_millis(300)).expect("it listens");
        let _never_reads = listener.accept().expect("it connects");
        let block = vec![7_u64; 1 << 13];
        let mut output = Output::default();
        let error = loop {
            if output.len() < block.len() {
                output.words.extend(&block);
            }
            match output.flush(&mut stream) {
                Ok(()) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }
}
