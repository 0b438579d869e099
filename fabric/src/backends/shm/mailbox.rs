//! A lane's mailbox: shared memory with one ring of messages for each sending lane.
//!
//! # Ownership of words
//! The host of the receiving node makes the mailbox, gives each sender a separate ring and counts
//! the rings. A ring has a [`Producer`] and a [`Consumer`]. Producer and consumer keep their own
//! cursors in private memory, publish copies, and read only the opposite cursor. So a process
//! killed at any moment leaves no partial message: unpublished words are never read.
//!
//! # Trust
//! No process is trusted. Many processes map a mailbox, and some may be half dead or hostile. A
//! cursor out of range, or an impossible length, loses the messages of the affected ring and
//! nothing else; every index is masked. A message is copied out before it is examined.
//!
//! # Sleeping
//! Before sleeping, a receiver sets the word `ASLEEP`, then checks for input once more. A sender
//! publishes, then reads `ASLEEP`, and rings the receiver's bell if the word is set. Receiver and
//! sender have a sequentially consistent fence between their two steps, so the receiver sees the
//! message or the sender sees the word.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::memfd::{self, PAGE_BYTES};
use crate::contract::ids::{Endpoint, LaneId, NodeId};
use crate::contract::region::{Memory, WORD_BYTES};
use crate::contract::transport::MAX_MESSAGE_BYTES;

/// Largest number of lanes that can send to a lane.
pub(super) const RINGS: usize = 128;
/// Words of messages in a ring: twice the fragments of the largest request. Pages that no message
/// has reached take no memory.
const RING_WORDS: u64 = 1 << 18;

/// Word: set when the receiving lane is gone; senders must look the lane up anew.
const CLOSED: usize = 0;
/// Word: set while the receiver's thread sleeps.
const ASLEEP: usize = 16;
/// Word: number of rings given to senders.
const SENDERS: usize = 32;
const HEADER_WORDS: usize = PAGE_BYTES / WORD_BYTES;
/// Word in the head of a ring: number of words ever published by the producer.
const PRODUCED: usize = 0;
/// Word in the head of a ring: number of words ever taken by the consumer.
const CONSUMED: usize = 16;
const RING_BYTES: usize = PAGE_BYTES + RING_WORDS as usize * WORD_BYTES;
const MAILBOX_BYTES: usize = PAGE_BYTES + RINGS * RING_BYTES;

const MESSAGE_WORDS: usize = 1 + MAX_MESSAGE_BYTES.div_ceil(WORD_BYTES);
const _: () = assert!(RING_WORDS.is_power_of_two() && RING_WORDS >= 256 * MESSAGE_WORDS as u64);

/// The shared memory of one lane's mailbox.
pub(super) struct Mailbox {
    memory: Memory,
}

impl Mailbox {
    /// Creates a file for an empty mailbox.
    pub(super) fn file() -> io::Result<OwnedFd> {
        memfd::small(MAILBOX_BYTES)
    }

    /// Maps a mailbox made by a host.
    pub(super) fn map(file: &OwnedFd) -> io::Result<Self> {
        let memory = Memory::of_file(file)?;
        let right = memory.bytes() == MAILBOX_BYTES;
        if right { Ok(Self { memory }) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Tells senders that the lane is gone.
    pub(super) fn close(&self) {
        self.memory.word(CLOSED).store(1, Ordering::Release);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.memory.word(CLOSED).load(Ordering::Relaxed) != 0
    }

    /// Lets the receiver read the first `count` rings.
    pub(super) fn set_senders(&self, count: usize) {
        self.memory.word(SENDERS).store(count as u64, Ordering::Release);
    }

    fn senders(&self) -> usize {
        (self.memory.word(SENDERS).load(Ordering::Acquire) as usize).min(RINGS)
    }

    /// Whether the receiver is marked as asleep and must be woken. True once for each sleep.
    fn take_sleeper(&self) -> bool {
        let asleep = self.memory.word(ASLEEP);
        fence(Ordering::SeqCst);
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::AcqRel) != 0
    }

    fn ring(index: usize) -> usize {
        HEADER_WORDS + index * (RING_BYTES / WORD_BYTES)
    }

    /// Visits, in order, the one or two pieces of ring `ring` that hold the `words` words from
    /// `cursor` on. Passes the piece's index in the mailbox, and the piece's begin and end among
    /// the words.
    #[inline]
    fn pieces(ring: usize, cursor: u64, words: usize, mut visit: impl FnMut(usize, usize, usize)) {
        let at = (cursor & (RING_WORDS - 1)) as usize;
        let first = words.min(RING_WORDS as usize - at);
        let data = Self::ring(ring) + HEADER_WORDS;
        visit(data + at, 0, first);
        if first < words {
            visit(data, first, words);
        }
    }
}

/// The word before a message: length in bytes and sender.
fn header(from: Endpoint, bytes: usize) -> u64 {
    u64::from(from.node.0) << 48 | u64::from(from.lane.0) << 32 | bytes as u64
}

/// Sender and length in a header; `None` if no producer can have written the header.
fn parse(header: u64) -> Option<(Endpoint, usize)> {
    let node = NodeId((header >> 48) as u16);
    let bytes = header as u32 as usize;
    let from = Endpoint { node, lane: LaneId((header >> 32) as u16) };
    (bytes <= MAX_MESSAGE_BYTES).then_some((from, bytes))
}

/// The sending end of one ring.
pub(super) struct Producer {
    mailbox: Mailbox,
    ring: usize,
    produced: u64,
    /// The consumer's cursor when it was last read.
    consumed: u64,
    words: Box<[u64; MESSAGE_WORDS]>,
}

impl Producer {
    /// Continues a ring where the previous producer left off; `None` if the mailbox has no ring
    /// `ring`.
    pub(super) fn new(mailbox: Mailbox, ring: usize) -> Option<Self> {
        if ring >= RINGS {
            return None;
        }
        let produced = mailbox.memory.word(Mailbox::ring(ring) + PRODUCED).load(Ordering::Acquire);
        // Assumes a full ring, so that the first message reads the consumer's cursor.
        let consumed = produced.wrapping_sub(RING_WORDS);
        Some(Self { mailbox, ring, produced, consumed, words: Box::new([0; MESSAGE_WORDS]) })
    }

    /// The mailbox that contains the ring.
    pub(super) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Puts a message into the ring, or drops the message if there is no room. Returns whether the
    /// receiver must be woken.
    pub(super) fn send(&mut self, from: Endpoint, bytes: &[u8]) -> bool {
        let words = 1 + bytes.len().div_ceil(WORD_BYTES);
        let memory = &self.mailbox.memory;
        let used = |consumed: u64| self.produced.wrapping_sub(consumed);
        if used(self.consumed) + words as u64 > RING_WORDS {
            self.consumed =
                memory.word(Mailbox::ring(self.ring) + CONSUMED).load(Ordering::Acquire);
            // Also taken for an impossible consumer cursor.
            if used(self.consumed).saturating_add(words as u64) > RING_WORDS {
                self.consumed = self.produced.wrapping_sub(RING_WORDS);
                return false;
            }
        }
        self.words[0] = header(from, bytes.len());
        let (whole, rest) = bytes.as_chunks::<WORD_BYTES>();
        for (word, bytes) in self.words[1..].iter_mut().zip(whole) {
            *word = u64::from_le_bytes(*bytes);
        }
        if !rest.is_empty() {
            let mut last = [0; WORD_BYTES];
            last[..rest.len()].copy_from_slice(rest);
            self.words[words - 1] = u64::from_le_bytes(last);
        }
        Mailbox::pieces(self.ring, self.produced, words, |at, from, to| {
            memory.write(at, &self.words[from..to]);
        });
        self.produced = self.produced.wrapping_add(words as u64);
        memory.word(Mailbox::ring(self.ring) + PRODUCED).store(self.produced, Ordering::Release);
        self.mailbox.take_sleeper()
    }
}

/// The receiving end of all rings of a mailbox.
pub(super) struct Consumer {
    mailbox: Arc<Mailbox>,
    /// By ring: number of words taken.
    consumed: Vec<u64>,
    words: Box<[u64; MESSAGE_WORDS]>,
    message: Box<[u8; MAX_MESSAGE_BYTES]>,
}

impl Consumer {
    /// The first consumer of a mailbox.
    pub(super) fn new(mailbox: Arc<Mailbox>) -> Self {
        let (words, message) = (Box::new([0; MESSAGE_WORDS]), Box::new([0; MAX_MESSAGE_BYTES]));
        Self { mailbox, consumed: Vec::new(), words, message }
    }

    /// Receives every available message.
    #[inline]
    pub(super) fn receive(&mut self, mut each: impl FnMut(Endpoint, &[u8])) {
        let senders = self.mailbox.senders();
        // A new producer continues the ring's cursor, and a fresh ring begins at zero.
        self.consumed.resize(senders.max(self.consumed.len()), 0);
        for ring in 0..senders {
            let produced = self.produced(ring);
            if produced != self.consumed[ring] {
                self.consumed[ring] = self.drain(ring, produced, &mut each);
                let head = self.mailbox.memory.word(Mailbox::ring(ring) + CONSUMED);
                head.store(self.consumed[ring], Ordering::Release);
            }
        }
    }

    /// Whether `receive` would find a message.
    pub(super) fn has_input(&self) -> bool {
        let taken = |ring: usize| self.consumed.get(ring).copied().unwrap_or(0);
        (0..self.mailbox.senders()).any(|ring| self.produced(ring) != taken(ring))
    }

    /// Marks the receiver as asleep. Returns whether the receiver may sleep, that is, has no input.
    pub(super) fn go_to_sleep(&self) -> bool {
        self.mailbox.memory.word(ASLEEP).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.has_input()
    }

    /// Marks the receiver as awake.
    pub(super) fn wake_up(&self) {
        self.mailbox.memory.word(ASLEEP).store(0, Ordering::Relaxed);
    }

    #[inline]
    fn produced(&self, ring: usize) -> u64 {
        self.mailbox.memory.word(Mailbox::ring(ring) + PRODUCED).load(Ordering::Acquire)
    }

    /// Receives the messages of a ring up to the first malformed message; the rest is lost. Returns
    /// the new cursor.
    fn drain(&mut self, ring: usize, produced: u64, each: &mut impl FnMut(Endpoint, &[u8])) -> u64 {
        let memory = &self.mailbox.memory;
        let mut cursor = self.consumed[ring];
        if produced.wrapping_sub(cursor) > RING_WORDS {
            return produced;
        }
        while cursor != produced {
            let mut first = 0;
            Mailbox::pieces(ring, cursor, 1, |at, _, _| {
                first = memory.word(at).load(Ordering::Relaxed);
            });
            let left = produced.wrapping_sub(cursor);
            let Some((from, bytes)) = parse(first) else { return produced };
            let words = bytes.div_ceil(WORD_BYTES);
            if words as u64 >= left {
                return produced;
            }
            let copy = &mut self.words[..words];
            Mailbox::pieces(ring, cursor.wrapping_add(1), words, |at, from, to| {
                memory.read(at, &mut copy[from..to]);
            });
            for (bytes, word) in self.message.chunks_exact_mut(WORD_BYTES).zip(copy) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            each(from, &self.message[..bytes]);
            cursor = cursor.wrapping_add(1 + words as u64);
        }
        produced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FROM: Endpoint = Endpoint { node: NodeId(3), lane: LaneId(9) };

    fn ends() -> (Arc<Mailbox>, Producer, Consumer) {
        let file = Mailbox::file().expect("a file");
        let map = || Mailbox::map(&file).expect("maps");
        let receiving = Arc::new(map());
        receiving.set_senders(2);
        let producer = Producer::new(map(), 1).expect("there is such a ring");
        (Arc::clone(&receiving), producer, Consumer::new(receiving))
    }

    fn received(consumer: &mut Consumer) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        consumer.receive(|from, bytes| {
            assert_eq!(from, FROM);
            messages.push(bytes.to_vec());
        });
        messages
    }

    fn pattern(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|index| (index * 7 + bytes) as u8).collect()
    }

    #[test]
    fn messages_come_out_as_they_went_in_also_around_the_end() {
        let (_, mut producer, mut consumer) = ends();
        for round in 0..2000 {
            let sizes = [0, 1, 7, 8, 9, 1500, MAX_MESSAGE_BYTES, round];
            let sent: Vec<_> = sizes.into_iter().map(pattern).collect();
            sent.iter().for_each(|message| _ = producer.send(FROM, message));
            assert!(received(&mut consumer) == sent, "round {round}");
            assert!(!consumer.has_input());
        }
    }

    #[test]
    fn a_full_ring_drops_and_goes_on_when_there_is_room() {
        let (_, mut producer, mut consumer) = ends();
        let message = pattern(MAX_MESSAGE_BYTES);
        (0..10_000).for_each(|_| _ = producer.send(FROM, &message));
        let fit = RING_WORDS as usize / MESSAGE_WORDS;
        assert_eq!(received(&mut consumer).len(), fit);
        producer.send(FROM, &message);
        assert_eq!(received(&mut consumer), [message]);
    }

    #[test]
    fn a_sender_that_takes_over_a_ring_goes_on_where_the_last_one_ended() {
        let (receiving, mut first, mut consumer) = ends();
        first.send(FROM, b"one");
        // Words that a killed producer wrote but did not publish.
        Mailbox::pieces(1, first.produced, 2, |at, _, _| receiving.memory.write(at, &[!0]));
        let mut second = Producer::new(first.mailbox, 1).expect("there is such a ring");
        second.send(FROM, b"two");
        assert_eq!(received(&mut consumer), [b"one", b"two"]);
        assert!(Producer::new(second.mailbox, RINGS).is_none());
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let (_, mut producer, mut consumer) = ends();
        assert!(!producer.send(FROM, b"awake"));
        assert!(!consumer.go_to_sleep(), "there is input");
        consumer.wake_up();
        received(&mut consumer);
        assert!(consumer.go_to_sleep());
        assert!(producer.send(FROM, b"asleep"));
        assert!(!producer.send(FROM, b"being woken"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Arbitrary words of another process cause no panic.
        #[test]
        fn garbage_costs_only_messages(
            words in prop::collection::vec((0usize..8, any::<u64>()), 1..20),
            cursors in any::<[u64; 2]>(),
            senders: u64,
        ) {
            let (receiving, mut producer, mut consumer) = ends();
            let memory = &receiving.memory;
            for (index, word) in words {
                // Includes small values, which are plausible lengths.
                let word = if index % 2 == 0 { word & 0xFFFF } else { word };
                memory.word(Mailbox::ring(1) + HEADER_WORDS + index).store(word, Ordering::Relaxed);
            }
            memory.word(SENDERS).store(senders, Ordering::Relaxed);
            for produced in [cursors[0] % 9, cursors[0]] {
                memory.word(Mailbox::ring(1) + PRODUCED).store(produced, Ordering::Relaxed);
                consumer.receive(|_, bytes| assert!(bytes.len() <= MAX_MESSAGE_BYTES));
            }
            let head = memory.word(Mailbox::ring(1) + CONSUMED).swap(cursors[1], Ordering::Relaxed);
            let message = pattern(MAX_MESSAGE_BYTES);
            (0..1000).for_each(|_| _ = producer.send(FROM, &message));
            receiving.set_senders(2);
            consumer.receive(|_, _| ());
            // With valid words again, the ring works again.
            memory.word(Mailbox::ring(1) + CONSUMED).store(head, Ordering::Relaxed);
            consumer.consumed[1] = head;
            memory.word(Mailbox::ring(1) + PRODUCED).store(head, Ordering::Relaxed);
            let mut producer = Producer::new(producer.mailbox, 1).expect("there is such a ring");
            let mut last = Vec::new();
            producer.send(FROM, b"last");
            consumer.receive(|_, bytes| last = bytes.to_vec());
            prop_assert_eq!(last, b"last");
        }
    }
}
