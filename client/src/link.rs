//! One connection at work: a loop that writes what was queued and takes in what comes.
//!
//! Clients and servers run the same loop, each with its own [`Receiver`]. Any thread may queue
//! bytes in the [`Outbox`]; the loop is woken for the first of them and then writes all that has
//! gathered with one call, so the busier a connection is, the fewer wakes and calls a message
//! takes. There is one task for a connection, and one buffer in each direction.
//!
//! # What bounds it
//! Frames have a limit, the receiver decides when there is enough in flight, and a peer that does
//! not read is given up after a time. So what a connection holds is bounded by its limits.

use std::future::poll_fn;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::frame::{Incoming, Oversized};
use crate::protocol::Garbage;
use crate::stream::Stream;

/// How much is read with one call, in bytes.
const READ_BYTES: usize = 64 << 10;
/// A buffer that has grown beyond this is given back when it is empty.
const KEPT_BYTES: usize = 1 << 20;

/// What waits to be written. Any thread may append to it.
#[derive(Debug, Default)]
pub struct Outbox {
    state: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// The loop, if it waits for bytes.
    waker: Option<Waker>,
    closed: bool,
}

/// The connection is closed, or about to be; nothing was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

impl Outbox {
    /// Appends what `write` appends.
    ///
    /// # Errors
    /// [`Closed`]; `write` is then not called.
    pub fn push(&self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Closed> {
        let mut state = self.lock();
        if state.closed {
            return Err(Closed);
        }
        write(&mut state.bytes);
        wake(state);
        Ok(())
    }

    /// Takes nothing more. The loop ends when what is queued has been written.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        wake(state);
    }

    /// Whether there is something to take, or nothing will come any more.
    fn poll_ready(&self, cx: &Context<'_>) -> Poll<Result<(), Closed>> {
        let mut state = self.lock();
        if !state.bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if state.closed {
            return Poll::Ready(Err(Closed));
        }
        // Without regard to an older one: there is only one loop.
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Exchanges what is queued for an empty buffer.
    fn swap(&self, empty: &mut Vec<u8>) {
        std::mem::swap(&mut self.lock().bytes, empty);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the loop without holding the lock that it will want.
fn wake(mut state: MutexGuard<'_, Waiting>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// What becomes of the frames that come.
pub trait Receiver {
    /// Takes a frame.
    ///
    /// # Errors
    /// [`Garbage`], which ends the connection.
    fn receive(&mut self, frame: &[u8]) -> Result<(), Garbage>;

    /// All frames that came together have been taken.
    fn received(&mut self) {}

    /// Whether another frame may be taken now. If not, it is asked again after [`Outbox::push`].
    fn is_ready(&self) -> bool {
        true
    }
}

/// Bounds of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The longest frame that is taken, in bytes.
    pub frame_bytes: usize,
    /// How long the peer may read nothing of what waits for it.
    pub write_patience: Duration,
}

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    /// This side has closed it, and all that was queued is written.
    #[error("this side closed the connection")]
    Closed,
    /// The other side has closed it.
    #[error("the other side closed the connection")]
    Hangup,
    /// What came makes no sense.
    #[error(transparent)]
    Garbage(#[from] Garbage),
    /// More came than is taken.
    #[error(transparent)]
    Oversized(#[from] Oversized),
    /// The other side does not read.
    #[error("the other side did not read for {0:?}")]
    Stalled(Duration),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
}

/// Runs a connection to its end. `incoming` may hold bytes that came with the handshake.
pub async fn run(
    stream: &mut Stream,
    outbox: &Outbox,
    incoming: &mut Incoming,
    receiver: &mut impl Receiver,
    bounds: Bounds,
) -> End {
    let ended = match stream {
        Stream::Plain(socket) => exchange(socket.split(), outbox, incoming, receiver, bounds).await,
        Stream::Sealed(sealed) => {
            exchange(tokio::io::split(sealed), outbox, incoming, receiver, bounds).await
        }
    };
    match ended {
        Ok(never) => match never {},
        Err(end) => end,
    }
}

async fn exchange(
    (mut reader, mut writer): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    outbox: &Outbox,
    incoming: &mut Incoming,
    receiver: &mut impl Receiver,
    bounds: Bounds,
) -> Result<std::convert::Infallible, End> {
    let (mut outgoing, mut written) = (Vec::new(), 0);
    incoming.set_limit(bounds.frame_bytes);
    loop {
        take_in(incoming, receiver)?;
        if written == outgoing.len() {
            written = 0;
            outgoing.clear();
            if outgoing.capacity() > KEPT_BYTES {
                outgoing = Vec::new();
            }
        }
        let is_writing = !outgoing.is_empty();
        tokio::select! {
            // In this order: answers leave before more work is taken in.
            biased;
            count = patiently(bounds.write_patience, writer.write(&outgoing[written..])),
                if is_writing => written += count?,
            ready = poll_fn(|cx| outbox.poll_ready(cx)), if !is_writing => {
                ready.map_err(|Closed| End::Closed)?;
                outbox.swap(&mut outgoing);
            }
            count = reader.read_buf(incoming.space(READ_BYTES)), if receiver.is_ready() => {
                if count? == 0 {
                    return Err(End::Hangup);
                }
            }
        }
    }
}

/// Takes in the whole frames that have come, as many of them as the receiver is ready for.
fn take_in(incoming: &mut Incoming, receiver: &mut impl Receiver) -> Result<(), End> {
    let mut any = false;
    while receiver.is_ready()
        && let Some(frame) = incoming.take_frame()?
    {
        receiver.receive(frame)?;
        any = true;
    }
    if any {
        receiver.received();
    }
    Ok(())
}

async fn patiently(
    patience: Duration,
    write: impl Future<Output = io::Result<usize>>,
) -> Result<usize, End> {
    match tokio::time::timeout(patience, write).await {
        Ok(Ok(0)) => Err(End::Hangup),
        Ok(count) => Ok(count?),
        Err(_) => Err(End::Stalled(patience)),
    }
}
