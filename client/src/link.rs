//! One connection at work: a loop that writes what was queued and takes in what comes.
//!
//! Clients and servers run the same loop, each with its own [`Receiver`] and over its own [`Wire`]:
//! a client on its `tokio` runtime, a server on a coordinator's executor. Any thread may queue
//! bytes in the [`Outbox`]; the loop is woken for the first of them and then writes all that has
//! gathered with one call, so the busier a connection is, the fewer wakes and calls a message
//! takes. There is one task for a connection, and one buffer in each direction.
//!
//! # What bounds it
//! Frames have a limit, the receiver decides when there is enough in flight, and a peer that does
//! not read is given up after a time. So what a connection holds is bounded by its limits.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWrite};

use crate::frame::{Incoming, Oversized};
use crate::protocol::Garbage;
use crate::stream::Stream;

/// How much is read with one call, in bytes.
const READ_BYTES: usize = 64 << 10;
/// How often a connection is read before others have their turn.
const READS_IN_A_ROW: usize = 8;
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
    /// How many messages they are.
    messages: usize,
    /// The loop, if it waits for bytes.
    waker: Option<Waker>,
    closed: bool,
    /// Nobody waits for what is queued to be written.
    cut: bool,
}

/// The connection is closed, or about to be; nothing was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

impl Outbox {
    /// Appends the message that `write` appends.
    ///
    /// # Errors
    /// [`Closed`]; `write` is then not called.
    pub fn push(&self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Closed> {
        let mut state = self.lock();
        if state.closed {
            return Err(Closed);
        }
        write(&mut state.bytes);
        state.messages += 1;
        wake(state);
        Ok(())
    }

    /// Takes nothing more. The loop ends when what is queued has been written.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        wake(state);
    }

    /// The same, and the loop ends as soon as it is told, whatever has not been written.
    pub fn cut(&self) {
        let mut state = self.lock();
        (state.closed, state.cut) = (true, true);
        wake(state);
    }

    /// How many messages there are to take, once there are any; or nothing will come any more.
    fn poll_ready(&self, cx: &Context<'_>) -> Poll<Result<usize, Closed>> {
        let mut state = self.lock();
        if !state.cut && !state.bytes.is_empty() {
            return Poll::Ready(Ok(state.messages));
        }
        if state.closed {
            return Poll::Ready(Err(Closed));
        }
        // Without regard to an older one: there is only one loop.
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Whether what is queued is given up; if not, the loop is woken when it is.
    fn poll_cut(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.cut {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Exchanges what is queued for an empty buffer.
    fn swap(&self, empty: &mut Vec<u8>) {
        let mut state = self.lock();
        std::mem::swap(&mut state.bytes, empty);
        state.messages = 0;
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

    /// Whether so much is under way here that the `_waiting` messages should wait for it.
    fn has_more_coming(&self, _waiting: usize) -> bool {
        false
    }

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

/// A connection's bytes and clock, on whatever runs the loop.
pub trait Wire {
    /// How time passes there.
    type Timer: Future<Output = ()>;

    /// Appends what has come to `into`, as much as it has room for; zero bytes are the end.
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<io::Result<usize>>;

    /// Writes some of `bytes`.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Waits for a moment in which it does not pay any more to let answers gather; only asked
    /// while there are more to come.
    fn poll_gathered(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Waits so long.
    fn timer(&self, time: Duration) -> Self::Timer;
}

impl Wire for Stream {
    type Timer = tokio::time::Sleep;

    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        pin!(self.read_buf(into)).poll(cx)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write(cx, bytes)
    }

    fn timer(&self, time: Duration) -> Self::Timer {
        tokio::time::sleep(time)
    }
}

/// Runs a connection to its end. `incoming` may hold bytes that came with the handshake.
pub async fn run<W: Wire>(
    wire: &mut W,
    outbox: &Outbox,
    incoming: &mut Incoming,
    receiver: &mut impl Receiver,
    bounds: Bounds,
) -> End {
    incoming.set_limit(bounds.frame_bytes);
    let mut exchange = Exchange {
        wire,
        outbox,
        incoming,
        receiver,
        patience: bounds.write_patience,
        outgoing: Vec::new(),
        written: 0,
        stalled: None,
    };
    poll_fn(|cx| exchange.poll(cx)).await
}

/// Both directions of a connection.
struct Exchange<'c, W: Wire, R> {
    wire: &'c mut W,
    outbox: &'c Outbox,
    incoming: &'c mut Incoming,
    receiver: &'c mut R,
    patience: Duration,
    outgoing: Vec<u8>,
    /// How much of it has been written.
    written: usize,
    /// Runs while nothing can be written.
    stalled: Option<Pin<Box<W::Timer>>>,
}

impl<W: Wire, R: Receiver> Exchange<'_, W, R> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        for _ in 0..READS_IN_A_ROW {
            if let Err(end) = self.take_in() {
                return Poll::Ready(end);
            }
            // Answers leave before more work is taken in.
            if let Poll::Ready(end) = self.poll_send(cx) {
                return Poll::Ready(end);
            }
            if !self.receiver.is_ready() {
                return Poll::Pending;
            }
            match self.wire.poll_read(cx, self.incoming.space(READ_BYTES)) {
                Poll::Ready(Ok(0)) => return Poll::Ready(End::Hangup),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                Poll::Pending => return Poll::Pending,
            }
        }
        // One that has so much to say lets others have their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes in the whole frames that have come, as many of them as the receiver is ready for.
    fn take_in(&mut self) -> Result<(), End> {
        let mut any = false;
        while self.receiver.is_ready()
            && let Some(frame) = self.incoming.take_frame()?
        {
            self.receiver.receive(frame)?;
            any = true;
        }
        if any {
            self.receiver.received();
        }
        Ok(())
    }

    /// Writes what is queued, as much of it as can be written now. Ready only at the end.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            if self.written == self.outgoing.len() {
                self.written = 0;
                self.outgoing.clear();
                if self.outgoing.capacity() > KEPT_BYTES {
                    self.outgoing = Vec::new();
                }
                match ready!(self.outbox.poll_ready(cx)) {
                    Err(Closed) => return Poll::Ready(End::Closed),
                    Ok(waiting) if self.receiver.has_more_coming(waiting) => {
                        ready!(self.wire.poll_gathered(cx));
                    }
                    Ok(_) => {}
                }
                self.outbox.swap(&mut self.outgoing);
            }
            match self.wire.poll_write(cx, &self.outgoing[self.written..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(End::Hangup),
                Poll::Ready(Ok(count)) => {
                    self.written += count;
                    self.stalled = None;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                Poll::Pending => {
                    if self.outbox.poll_cut(cx).is_ready() {
                        return Poll::Ready(End::Closed);
                    }
                    let (wire, patience) = (&self.wire, self.patience);
                    let timer = || Box::pin(wire.timer(patience));
                    ready!(self.stalled.get_or_insert_with(timer).as_mut().poll(cx));
                    return Poll::Ready(End::Stalled(patience));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Takes all that is written, in batches; nothing ever comes, and nobody stops gathering.
    #[derive(Default)]
    struct Sink(Vec<Vec<u8>>);

    impl Wire for Sink {
        type Timer = std::future::Pending<()>;

        fn poll_read(&mut self, _: &mut Context<'_>, _: &mut Vec<u8>) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_write(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.0.push(bytes.to_vec());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_gathered(&mut self, _: &mut Context<'_>) -> Poll<()> {
            Poll::Pending
        }

        fn timer(&self, _: Duration) -> Self::Timer {
            std::future::pending()
        }
    }

    /// Whose requests are under way.
    struct Desk<'c>(&'c Cell<usize>);

    impl Receiver for Desk<'_> {
        fn receive(&mut self, _: &[u8]) -> Result<(), Garbage> {
            Err(Garbage)
        }

        fn has_more_coming(&self, waiting: usize) -> bool {
            self.0.get() > waiting
        }
    }

    #[test]
    fn messages_wait_for_as_many_as_are_said_to_come_and_leave_together() {
        let (outbox, under_way) = (Outbox::default(), Cell::new(5));
        let (mut sink, mut incoming) = (Sink::default(), Incoming::new(8));
        let mut desk = Desk(&under_way);
        let bounds = Bounds { frame_bytes: 8, write_patience: Duration::from_secs(1) };
        let mut cx = Context::from_waker(Waker::noop());
        {
            let mut link = pin!(run(&mut sink, &outbox, &mut incoming, &mut desk, bounds));
            for answered in 1..=5 {
                under_way.set(5 - answered);
                outbox.push(|out| out.push(answered as u8)).unwrap();
                assert!(link.as_mut().poll(&mut cx).is_pending());
            }
            outbox.close();
            assert!(matches!(link.as_mut().poll(&mut cx), Poll::Ready(End::Closed)));
        }
        // One waits for four more and two for three; three do not wait for two.
        assert_eq!(sink.0, [vec![1, 2, 3], vec![4], vec![5]]);
    }
}
