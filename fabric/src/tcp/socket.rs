//! Sockets without waiting: buffers of words, and who is told when a socket is ready.

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
use crate::region::WORD_BYTES;
use crate::transport::{Sleep, Wake};

/// What a read brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fill {
    /// Nothing: there was nothing.
    Nothing,
    /// All that there was.
    Drained,
    /// As much as there was room for.
    Full,
    /// The end: nothing will come any more.
    Closed,
}

/// Words that have arrived and were not yet taken. Its capacity is its bound.
pub(super) struct Input {
    words: Box<[u64]>,
    taken_words: usize,
    filled_bytes: usize,
}

impl Input {
    pub(super) fn new(words: usize) -> Self {
        Self { words: vec![0; words].into(), taken_words: 0, filled_bytes: 0 }
    }

    /// The most words that may wait.
    pub(super) fn capacity(&self) -> usize {
        self.words.len()
    }

    /// The whole words that wait.
    #[inline]
    pub(super) fn words(&self) -> &[u64] {
        &self.words[self.taken_words..self.filled_bytes / WORD_BYTES]
    }

    /// Takes the first `words` of them.
    #[inline]
    pub(super) fn take(&mut self, words: usize) {
        self.taken_words += words;
        debug_assert!(self.taken_words * WORD_BYTES <= self.filled_bytes);
        if self.taken_words * WORD_BYTES == self.filled_bytes {
            (self.taken_words, self.filled_bytes) = (0, 0);
        }
    }

    /// Whether nothing waits, not even part of a word.
    pub(super) fn is_empty(&self) -> bool {
        self.filled_bytes == 0
    }

    /// Throws away what waits.
    pub(super) fn clear(&mut self) {
        (self.taken_words, self.filled_bytes) = (0, 0);
    }

    /// Reads once, as much as fits.
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

    /// Moves what waits to the front when it has come past the middle.
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

/// Words that wait to be sent. Whoever appends looks at [`Output::len`] first, and so bounds it.
#[derive(Default)]
pub(super) struct Output {
    /// Appended to directly.
    pub(super) words: Vec<u64>,
    sent_bytes: usize,
}

impl Output {
    /// Words that wait, or have been sent but not yet been forgotten.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Writes once, as much as the socket takes.
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

/// Starts to connect. The socket becomes writable once that is done; then ask [`connected`].
///
/// # Errors
/// The system refuses at once.
pub(super) fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Whether the socket is connected by now.
///
/// # Errors
/// It never will be.
pub(super) fn connected(stream: &TcpStream) -> io::Result<bool> {
    sockopt::socket_error(stream)??;
    match rustix::net::getpeername(stream) {
        Ok(_) => Ok(true),
        Err(Errno::NOTCONN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Prepares an accepted socket: no waiting, no delay, and the kernel looks after peers that have
/// vanished without a word.
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

/// What a socket is watched for.
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

/// Names a socket to whoever watches it.
pub(super) type Tag = u64;

/// Watches sockets, level-triggered, and a bell that other threads may ring.
pub(super) struct Watch {
    epoll: OwnedFd,
    bell: OwnedFd,
    spin: Duration,
}

/// The bell's own tag.
pub(super) const BELL: Tag = Tag::MAX;
/// The tag of what only ends a sleep: somebody else looks at it.
pub(super) const OTHERS: Tag = Tag::MAX - 1;
/// Events taken in one go.
const EVENTS: usize = 64;

/// Sockets that are ready.
pub(super) type Ready = Vec<epoll::Event>;

impl Watch {
    /// A watch over nothing but its bell; whoever sleeps on it looks again for `spin` first.
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

    /// Watches a socket for something else.
    ///
    /// # Errors
    /// It is not watched.
    pub(super) fn change(&self, socket: impl AsFd, tag: Tag, what: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(tag), what.flags())?)
    }

    /// Watches a socket no longer.
    ///
    /// # Errors
    /// It is not watched.
    pub(super) fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Puts into `ready` who is ready, after at most `timeout`.
    #[inline]
    pub(super) fn wait(&self, ready: &mut Ready, timeout: Duration) {
        ready.clear();
        ready.reserve(EVENTS);
        let timeout = timespec(timeout);
        // Fails only for an interrupted wait: then nobody was ready.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(ready), Some(&timeout));
    }

    /// Whether somebody is ready, or becomes so within `timeout`. Forgets nothing.
    pub(super) fn is_ready_within(&self, timeout: Duration) -> bool {
        let mut one = [MaybeUninit::<epoll::Event>::uninit()];
        let timeout = timespec(timeout);
        epoll::wait(&self.epoll, &mut one, Some(&timeout)).is_ok_and(|(ready, _)| !ready.is_empty())
    }

    /// Lets the bell be rung again.
    pub(super) fn silence(&self) {
        // Not readable means silent already.
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

impl Sleep for Watch {
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

impl Wake for Watch {
    /// Rings the bell.
    fn wake(&self) {
        // Fails only if the count would overflow: then it rings anyway.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}
