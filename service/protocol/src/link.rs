//! The loop of one connection: writes queued bytes and takes in received frames.
//!
//! Clients and servers run the same loop, each with its own [`Receiver`] and over its own [`Wire`]:
//! a client on its `tokio` runtime, a server on a coordinator's executor or, within TLS, on a
//! `tokio` runtime of its own. Any thread may queue bytes in the [`Outbox`]; the first queued bytes
//! wake the loop, which then writes everything gathered so far with one call, so the busier a
//! connection is, the fewer wakes and calls a message takes. A connection has one task, and one
//! buffer per direction.
//!
//! # Bounds
//! Frames have a limit, and the receiver decides when enough is in flight or unsent ([`outbox`]):
//! then the loop stops reading. A poll takes a bounded number of frames and then yields to other
//! tasks. A peer that takes or sends too few bytes in an interval is given up ([`progress`]).

pub mod outbox;
pub mod progress;

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWrite};

use crate::frame::{Incoming, KEPT_BYTES, Oversized};
use crate::messages::Garbage;
use crate::stream::Stream;

pub use outbox::{Budget, Closed, Outbox};
pub use progress::MinimumProgress;
use progress::Position;

/// Bytes asked for with one read.
const READ_BYTES: usize = 64 << 10;
/// Reads of a connection before the loop yields to other tasks.
const READS_IN_A_ROW: usize = 8;
/// Frames taken before the loop yields to other tasks: some frames are answered at once, and one
/// read may bring thousands.
const FRAMES_IN_A_ROW: usize = 64;

/// Handler of received frames.
pub trait Receiver {
    /// Takes a frame.
    ///
    /// # Errors
    /// [`Garbage`], which ends the connection.
    fn receive(&mut self, frame: &[u8]) -> Result<(), Garbage>;

    /// Called after all frames received together have been taken.
    fn received(&mut self) {}

    /// Whether enough messages are under way for the `_waiting` messages to wait for them.
    fn has_more_coming(&self, _waiting: usize) -> bool {
        false
    }

    /// Whether another frame may be taken now. If not, the loop asks again after [`Outbox::push`].
    fn is_ready(&self) -> bool {
        true
    }
}

/// Bounds of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The longest accepted frame, in bytes.
    pub frame_bytes: usize,
    /// Least speed at which the peer must take queued bytes, and send the rest of a frame it has
    /// begun.
    pub patience: MinimumProgress,
}

/// Reason for a connection's end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    /// This side has closed the connection, after writing all queued bytes.
    #[error("this side closed the connection")]
    Closed,
    /// The other side has closed the connection.
    #[error("the other side closed the connection")]
    Hangup,
    /// A frame does not decode, or does not fit the protocol.
    #[error(transparent)]
    Garbage(#[from] Garbage),
    /// A frame is longer than the limit.
    #[error(transparent)]
    Oversized(#[from] Oversized),
    /// The other side reads too slowly, or not at all.
    #[error("the other side took less of what waits for it than {0}")]
    SlowReader(MinimumProgress),
    /// The other side has begun a frame and sends the rest too slowly, or not at all.
    #[error("the other side sent less of a frame that it had begun than {0}")]
    SlowSender(MinimumProgress),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
}

/// Bytes and clock of a connection, on the runtime that drives the loop.
pub trait Wire {
    /// A future that waits.
    type Timer: Future<Output = ()>;

    /// Appends received bytes to `into`, up to its free capacity; zero bytes mean the end.
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<io::Result<usize>>;

    /// Writes some of `bytes`.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Ready when waiting longer to gather answers does not pay; polled only while more answers are
    /// expected.
    fn poll_gathered(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Returns a future that is ready after this time.
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

/// Runs a connection to its end. `incoming` may hold bytes received with the handshake.
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
        patience: bounds.patience,
        outgoing: Vec::new(),
        written: 0,
        sent: 0,
        received: 0,
        reading: false,
        interval: None,
    };
    let end = poll_fn(|cx| exchange.poll(cx)).await;
    outbox.give_up();
    end
}

/// Both directions of a connection.
struct Exchange<'c, W: Wire, R> {
    wire: &'c mut W,
    outbox: &'c Outbox,
    incoming: &'c mut Incoming,
    receiver: &'c mut R,
    patience: MinimumProgress,
    outgoing: Vec<u8>,
    /// Bytes of `outgoing` that have been written.
    written: usize,
    /// Bytes written and read since the connection began.
    sent: u64,
    received: u64,
    /// Whether this side waits for the peer to send; false while this side does not read.
    reading: bool,
    interval: Option<Interval<W::Timer>>,
}

/// An interval over which a peer's progress is judged.
struct Interval<T> {
    timer: Pin<Box<T>>,
    /// Positions of both directions at the beginning of the interval.
    reads: Position,
    sends: Position,
}

impl<W: Wire, R: Receiver> Exchange<'_, W, R> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        match self.poll_both(cx) {
            Poll::Ready(end) => Poll::Ready(end),
            Poll::Pending => self.poll_interval(cx),
        }
    }

    fn poll_both(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.reading = false;
        let mut frames = FRAMES_IN_A_ROW;
        for _ in 0..READS_IN_A_ROW {
            if let Err(end) = self.take_in(&mut frames) {
                return Poll::Ready(end);
            }
            // Answers leave before more work is taken in.
            if let Poll::Ready(end) = self.poll_send(cx) {
                return Poll::Ready(end);
            }
            if frames == 0 {
                break;
            }
            if !self.receiver.is_ready() {
                // This side now holds up the peer, so the peer owes no bytes.
                self.interval.iter_mut().for_each(|interval| interval.sends.owed = 0);
                return Poll::Pending;
            }
            if self.incoming.has_frame() {
                // The frame was left because the receiver was not ready. Writes have since made the
                // receiver ready: neither the socket nor the outbox would wake this loop for the
                // frame.
                continue;
            }
            match self.wire.poll_read(cx, self.incoming.space(READ_BYTES)) {
                Poll::Ready(Ok(0)) => return Poll::Ready(End::Hangup),
                Poll::Ready(Ok(count)) => self.received += count as u64,
                Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                Poll::Pending => {
                    self.reading = true;
                    return Poll::Pending;
                }
            }
        }
        // Yields to other tasks while the peer has this much to say (I191).
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes in complete received frames, as long as the receiver is ready and at most `most`
    /// frames; counts `most` down.
    fn take_in(&mut self, most: &mut usize) -> Result<(), End> {
        let before = *most;
        while *most > 0
            && self.receiver.is_ready()
            && let Some(frame) = self.incoming.take_frame()?
        {
            self.receiver.receive(frame)?;
            *most -= 1;
        }
        if *most < before {
            self.receiver.received();
        }
        Ok(())
    }

    /// Writes as many queued bytes as the wire accepts now. Ready only when the connection ends.
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
                    self.sent += count as u64;
                    self.outbox.taken(count);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                Poll::Pending => {
                    ready!(self.outbox.poll_cut(cx));
                    return Poll::Ready(End::Closed);
                }
            }
        }
    }

    /// Progress of the peer in reading, and in sending the frame that it has begun.
    fn positions(&self) -> (Position, Position) {
        let blocked = self.written < self.outgoing.len();
        let unread = if blocked { self.outbox.unsent() } else { 0 };
        let missing = if self.reading { self.incoming.missing() } else { 0 };
        let reads = Position { moved: self.sent, owed: unread };
        (reads, Position { moved: self.received, owed: missing })
    }

    /// Judges the progress of a peer that owes bytes. Ready only if the peer has not kept up.
    fn poll_interval(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let (reads, sends) = self.positions();
        loop {
            let Some(interval) = &mut self.interval else {
                if reads.owed == 0 && sends.owed == 0 {
                    return Poll::Pending;
                }
                let timer = Box::pin(self.wire.timer(self.patience.interval));
                self.interval = Some(Interval { timer, reads, sends });
                continue;
            };
            ready!(interval.timer.as_mut().poll(cx));
            let MinimumProgress { bytes, .. } = self.patience;
            if !interval.reads.keeps_up(reads, bytes) {
                return Poll::Ready(End::SlowReader(self.patience));
            }
            if !interval.sends.keeps_up(sends, bytes) {
                return Poll::Ready(End::SlowSender(self.patience));
            }
            self.interval = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    /// Takes all that is written, in batches; nothing ever comes, and gathering never ends.
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

    /// A receiver with this many requests under way.
    struct Desk<'c>(&'c Cell<usize>);

    impl Receiver for Desk<'_> {
        fn receive(&mut self, _: &[u8]) -> Result<(), Garbage> {
            Err(Garbage)
        }

        fn has_more_coming(&self, waiting: usize) -> bool {
            self.0.get() > waiting
        }
    }

    /// A peer that has sent much and takes a little at a time, with a clock that is set by hand.
    #[derive(Clone, Default)]
    struct Peer(Rc<PeerState>);

    #[derive(Default)]
    struct PeerState {
        sends: RefCell<Vec<u8>>,
        /// Bytes that it takes before a write has to wait.
        takes: Cell<usize>,
        now_ms: Cell<u64>,
    }

    struct At(Peer, u64);

    impl Future for At {
        type Output = ();

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            let Self(Peer(state), due_ms) = &*self;
            if state.now_ms.get() >= *due_ms { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    impl Wire for Peer {
        type Timer = At;

        fn poll_read(
            &mut self,
            _: &mut Context<'_>,
            into: &mut Vec<u8>,
        ) -> Poll<io::Result<usize>> {
            let mut sends = self.0.sends.borrow_mut();
            let count = sends.len().min(READ_BYTES);
            into.extend(sends.drain(..count));
            if count == 0 { Poll::Pending } else { Poll::Ready(Ok(count)) }
        }

        fn poll_write(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let count = self.0.takes.get().min(bytes.len());
            self.0.takes.set(self.0.takes.get() - count);
            if count == 0 { Poll::Pending } else { Poll::Ready(Ok(count)) }
        }

        fn timer(&self, time: Duration) -> At {
            At(self.clone(), self.0.now_ms.get() + time.as_millis() as u64)
        }
    }

    /// Answers every frame at once with many bytes, as long as few are unsent.
    struct Eager<'c>(&'c Outbox, &'c Cell<usize>);

    const ANSWER: [u8; 1000] = [0; 1000];
    const ENOUGH: usize = 100 * ANSWER.len();

    impl Receiver for Eager<'_> {
        fn receive(&mut self, _: &[u8]) -> Result<(), Garbage> {
            self.1.set(self.1.get() + 1);
            self.0.push(|out| out.extend_from_slice(&ANSWER)).unwrap();
            Ok(())
        }

        fn is_ready(&self) -> bool {
            self.0.unsent() < ENOUGH
        }
    }

    /// Counts how often a loop is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Regression: requests that had come with others waited for ever if the receiver had enough
    /// for a moment, and all of its answers could be written at once.
    #[test]
    fn frames_that_wait_for_the_receiver_are_taken_without_another_wake() {
        let (mut peer, outbox) = (Peer::default(), Outbox::default());
        let count = ENOUGH / ANSWER.len() + 1;
        peer.0.takes.set(usize::MAX);
        peer.0.sends.borrow_mut().extend(asks(count));
        let frames = Cell::new(0);
        let mut receiver = Eager(&outbox, &frames);
        // All that has come before but for one makes enough.
        outbox.push(|out| out.resize(ENOUGH - ANSWER.len(), 0)).unwrap();
        let patience = MinimumProgress::of(Duration::from_secs(1));
        let bounds = Bounds { frame_bytes: 1000, patience };
        let mut incoming = Incoming::new(1000);
        incoming.space(0).append(&mut peer.0.sends.borrow_mut());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let mut link = pin!(run(&mut peer, &outbox, &mut incoming, &mut receiver, bounds));
        let mut polls = 0;
        while polls <= woken.0.load(Ordering::Relaxed) {
            polls += 1;
            assert!(link.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!((frames.get(), outbox.unsent()), (count, 0));
    }

    /// Runs a loop for `ms` milliseconds, calling `each` before each poll. Returns how it has
    /// ended, if it has.
    fn run_for(peer: &Peer, outbox: &Outbox, ms: u64, each: &dyn Fn(u64)) -> Option<End> {
        let (mut wire, mut incoming) = (peer.clone(), Incoming::new(1000));
        let frames = Cell::new(0);
        let mut receiver = Eager(outbox, &frames);
        let patience = MinimumProgress { interval: Duration::from_millis(1000), bytes: 500 };
        let bounds = Bounds { frame_bytes: 1000, patience };
        let mut link = pin!(run(&mut wire, outbox, &mut incoming, &mut receiver, bounds));
        let mut cx = Context::from_waker(Waker::noop());
        for now_ms in 0..ms {
            peer.0.now_ms.set(now_ms);
            each(now_ms);
            let before = frames.get();
            let polled = link.as_mut().poll(&mut cx);
            assert!(frames.get() - before <= FRAMES_IN_A_ROW, "others wait for their turn");
            assert!(outbox.unsent() < ENOUGH + ANSWER.len(), "it reads on");
            if let Poll::Ready(end) = polled {
                return Some(end);
            }
        }
        None
    }

    fn asks(count: usize) -> Vec<u8> {
        let mut asks = Vec::new();
        (0..count).for_each(|_| crate::frame::append(&mut asks, |out| out.push(7)));
        asks
    }

    #[test]
    fn a_peer_that_asks_and_does_not_read_is_not_read_from_and_given_up() {
        let (peer, outbox) = (Peer::default(), Outbox::default());
        peer.0.sends.borrow_mut().extend(asks(1 << 20));
        let end = run_for(&peer, &outbox, 1100, &|_| {});
        assert!(matches!(end, Some(End::SlowReader(_))), "{end:?}");
        assert!(peer.0.sends.borrow().len() > 4 << 20, "most of it was not read");
        assert_eq!(outbox.unsent(), 0, "nothing is kept for it");
    }

    #[test]
    fn a_peer_that_takes_a_byte_now_and_then_is_given_up_and_one_that_takes_enough_is_not() {
        for (every_ms, is_slow) in [(100, true), (3, true), (1, false)] {
            let (peer, outbox) = (Peer::default(), Outbox::default());
            peer.0.sends.borrow_mut().extend(asks(1 << 10));
            let takes =
                |now_ms: u64| peer.0.takes.set(usize::from(now_ms.is_multiple_of(every_ms)));
            let end = run_for(&peer, &outbox, 3500, &takes);
            assert_eq!(matches!(end, Some(End::SlowReader(_))), is_slow, "{end:?}");
        }
    }

    #[test]
    fn a_peer_that_sends_a_frame_byte_by_byte_is_given_up_and_one_that_is_silent_is_not() {
        let mut long = Vec::new();
        crate::frame::append(&mut long, |out| out.extend_from_slice(&[7; 900]));
        for (every_ms, is_slow) in [(100, true), (3, true), (1, false)] {
            let (peer, outbox) = (Peer::default(), Outbox::default());
            peer.0.takes.set(usize::MAX);
            let sends = |now_ms: u64| {
                let at = (now_ms / every_ms) as usize;
                let due = now_ms.is_multiple_of(every_ms) && at < long.len();
                peer.0.sends.borrow_mut().extend(due.then(|| long[at]));
            };
            // All of it has come after 900 ms, or is given up.
            let end = run_for(&peer, &outbox, 5000, &sends);
            assert_eq!(matches!(end, Some(End::SlowSender(_))), is_slow, "{end:?}");
        }
        let (peer, outbox) = (Peer::default(), Outbox::default());
        assert!(run_for(&peer, &outbox, 5000, &|_| {}).is_none());
    }

    #[test]
    fn messages_wait_for_as_many_as_are_said_to_come_and_leave_together() {
        let (outbox, under_way) = (Outbox::default(), Cell::new(5));
        let (mut sink, mut incoming) = (Sink::default(), Incoming::new(8));
        let mut desk = Desk(&under_way);
        let bounds =
            Bounds { frame_bytes: 8, patience: MinimumProgress::of(Duration::from_secs(1)) };
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
