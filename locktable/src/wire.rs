//! The lock protocol as bytes: messages between coordinators of different compute nodes.
//!
//! A datagram is a head of 8 bytes and a number of items, little-endian throughout. Every item
//! begins with the same 16 bytes. The item of a lock request is followed by an age if the request
//! may wait, and by the locks, 16 bytes each. Each item is answered by one item, followed by an
//! owner if a lock was requested from the wrong node; so a reply is never longer than its request.
//!
//! ```text
//! head  version 1 | zero 1 | items 2 | configuration epoch 4
//! item  kind 1 | refusal 1 | count or index 2 | round 2 | fragment 2 | transaction 8
//! lock  key 8 | shard epoch 4 | table 2 | flags 1 (bit 0 write, bit 1 bucket) | zero 1
//! owner node 2 | zero 2 | shard epoch 4
//! age   microseconds since the transaction's first attempt began 4 | zero 4
//! ```
//!
//! A transaction locks in rounds, one per execution; the locks of a round at one owner travel in
//! fragments small enough for a datagram. The answer echoes round and fragment number, which have
//! no meaning to the server: repeating a fragment is harmless, and the numbers only tell the asker
//! to which question an answer belongs.
//!
//! A request that may wait is answered at once, with *waiting* if it waits; the outcome is sent
//! later as an unsolicited reply. A repeated request is answered with the current state, so a lost
//! outcome is merely delayed.
//!
//! Requests and replies carry the sender's configuration epoch, so that a node with an old
//! configuration notices with the grant or the unlock itself (H23).
//!
//! Decoding does not trust its input: every length, reserved byte, flag and id is checked, and a
//! violation is a [`DecodeError`].

use lotus_fabric::ids::{Epoch, Key, NodeId, TableId, TxnId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::lock_key::{LockKey, LockMode, LockRequest, LockSpace};
use crate::slot::Refusal;

/// Version of this format.
pub const VERSION: u8 = 3;
/// Bytes of a datagram's head.
pub const HEAD_BYTES: usize = 8;
/// Bytes of an item without its locks.
pub const ITEM_BYTES: usize = 16;
/// Bytes of one lock in a request.
pub const LOCK_BYTES: usize = 16;
/// Bytes of the age in a request that may wait.
pub const AGE_BYTES: usize = 8;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    version: u8,
    zero: u8,
    items: U16,
    epoch: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LockItem {
    kind: u8,
    refusal: u8,
    count: U16,
    round: U16,
    fragment: U16,
    txn: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Lock {
    key: U64,
    epoch: U32,
    table: U16,
    flags: u8,
    zero: u8,
}

/// Owner of a shard, as far as the sender knows.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct OwnerHint {
    node: U16,
    zero: U16,
    epoch: U32,
}

/// Age of the transaction of a request that may wait.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Age {
    us: U32,
    zero: U32,
}

const _: () = assert!(size_of::<Age>() == AGE_BYTES);
const _: () =
    assert!(size_of::<OwnerHint>() <= LOCK_BYTES, "it answers a request of a lock at least");
const _: () = assert!(size_of::<Head>() == HEAD_BYTES);
const _: () = assert!(size_of::<LockItem>() == ITEM_BYTES);
const _: () = assert!(size_of::<Lock>() == LOCK_BYTES);

/// Item kinds. Zero is unused, so that a zeroed buffer is not a message.
mod kind {
    pub(super) const LOCK: u8 = 1;
    pub(super) const END: u8 = 2;
    pub(super) const GRANTED: u8 = 3;
    pub(super) const REFUSED: u8 = 4;
    pub(super) const WRONG_OWNER: u8 = 5;
    pub(super) const STALE: u8 = 6;
    pub(super) const EXPELLED: u8 = 7;
    pub(super) const ENDED: u8 = 8;
    pub(super) const LOCK_OR_WAIT: u8 = 9;
    pub(super) const WAITING: u8 = 10;
}

/// Flags of a lock.
mod flag {
    pub(super) const WRITE: u8 = 1;
    pub(super) const BUCKET: u8 = 2;
}

/// Refusals by their code on the wire.
const REFUSALS: [Refusal; 5] = [
    Refusal::Conflict,
    Refusal::BucketFull,
    Refusal::OwnBucketFull,
    Refusal::TooManyReaders,
    Refusal::QueueFull,
];

/// Reason why bytes are not a message. Drop the datagram: the sender will repeat the request, or
/// has a different version and will never get an answer, which should be reported to the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The datagram ends before its items do; drop it.
    #[error("the datagram is cut short")]
    Truncated,
    /// Bytes follow the last item; drop the datagram.
    #[error("the datagram is longer than its items")]
    Trailing,
    /// The sender uses a different version; drop the datagram and count it.
    #[error("the datagram has version {0}, not {VERSION}")]
    Version(u8),
    /// An item that does not exist on this side of the protocol; drop the datagram.
    #[error("no item of kind {0} belongs here")]
    Kind(u8),
    /// A reserved byte or flag is set, or a code is out of range; drop the datagram.
    #[error("a reserved field is not zero or a code is unknown")]
    Reserved,
}

/// A message does not fit into the rest of the buffer: send the buffer first, then the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the buffer is full")]
pub struct BufferFull;

/// One lock in a request to a remote node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteLock {
    /// The lock and its mode.
    pub request: LockRequest,
    /// Shard epoch under which the asker believes the node to own the shard (H4, H19).
    pub shard_epoch: u32,
}

impl RemoteLock {
    fn encode(&self) -> Lock {
        let LockRequest { name, mode } = self.request;
        let write = if mode == LockMode::Write { flag::WRITE } else { 0 };
        let bucket = if name.space == LockSpace::Bucket { flag::BUCKET } else { 0 };
        Lock {
            key: name.key.0.into(),
            epoch: self.shard_epoch.into(),
            table: name.table.0.into(),
            flags: write | bucket,
            zero: 0,
        }
    }

    fn decode(lock: &Lock) -> Self {
        let has = |flag| lock.flags & flag != 0;
        let name = LockKey {
            table: TableId(lock.table.get()),
            space: if has(flag::BUCKET) { LockSpace::Bucket } else { LockSpace::Row },
            key: Key(lock.key.get()),
        };
        let mode = if has(flag::WRITE) { LockMode::Write } else { LockMode::Read };
        Self { request: LockRequest { name, mode }, shard_epoch: lock.epoch.get() }
    }
}

/// Identifies the question of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question {
    /// Attempt that asks.
    pub txn: TxnId,
    /// Number of the attempt's execution.
    pub round: u16,
    /// Number of the fragment of the round's locks.
    pub fragment: u16,
}

/// A decoded request.
#[derive(Clone, Copy, Debug)]
pub enum LockMessage<'a> {
    /// Take all of `locks`, or no lock.
    Lock {
        /// Question, echoed in the answer.
        question: Question,
        /// Locks to take.
        locks: Locks<'a>,
        /// Microseconds since the transaction's first attempt began, if the request may wait. The
        /// locks are then in ascending [`WaitOrder`](crate::WaitOrder), above all locks of the
        /// attempt.
        age_us: Option<u32>,
    },
    /// The attempt and all earlier attempts of its slot are over: release their locks.
    End {
        /// Latest finished attempt.
        txn: TxnId,
    },
}

/// Locks of one request, validated but still encoded.
#[derive(Clone, Copy)]
pub struct Locks<'a>(&'a [Lock]);

impl Locks<'_> {
    /// Locks in the order of the request.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = RemoteLock> + '_ {
        self.0.iter().map(RemoteLock::decode)
    }
}

impl std::fmt::Debug for Locks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A decoded reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Answer to a lock request.
    Lock {
        /// The answered question.
        question: Question,
        /// Result of the request.
        answer: LockAnswer,
    },
    /// The attempt and all earlier attempts of its slot hold no locks at the replying node.
    Ended {
        /// Latest finished attempt.
        txn: TxnId,
    },
}

/// Result of a lock request. With answers other than [`LockAnswer::Granted`] and
/// [`LockAnswer::Waiting`] the request took no further locks; an upgrade that was made while the
/// request waited stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockAnswer {
    /// All locks are held.
    Granted,
    /// The request waits for one lock, and holds the lower locks; the outcome follows.
    Waiting,
    /// One lock was refused; the refusal says how to react.
    Refused {
        /// Index of the lock in the request.
        index: u16,
        /// Reason of the refusal.
        refusal: Refusal,
    },
    /// The node does not own this lock's shard in this epoch: abort, learn the owner, retry.
    WrongOwner {
        /// Index of the lock in the request.
        index: u16,
        /// Owner of the shard, as far as the node knows. [`crate::NO_OWNER`] if the node has
        /// stopped granting the shard's locks, for a hand-over.
        owner: NodeId,
        /// First shard epoch of this owner.
        shard_epoch: u32,
    },
    /// The attempt is over, or a later attempt of its slot has begun: ignore the answer (H9).
    Stale,
    /// The asker's incarnation has been expelled: it must stop (H2).
    Expelled,
}

/// Returns the configuration epoch of a datagram's sender.
///
/// # Errors
/// If the bytes do not begin with a head of this version.
pub fn sender_epoch(datagram: &[u8]) -> Result<Epoch, DecodeError> {
    let (head, _) = head(datagram)?;
    Ok(Epoch(head.epoch.get()))
}

/// Requests in a datagram; ends after the first error.
pub fn requests(datagram: &[u8]) -> impl Iterator<Item = Result<LockMessage<'_>, DecodeError>> {
    items(datagram, take_request)
}

/// Replies in a datagram; ends after the first error.
pub fn replies(datagram: &[u8]) -> impl Iterator<Item = Result<Reply, DecodeError>> {
    items(datagram, take_reply)
}

fn head(datagram: &[u8]) -> Result<(&Head, &[u8]), DecodeError> {
    let (head, rest) = Head::ref_from_prefix(datagram).map_err(|_| DecodeError::Truncated)?;
    match head {
        Head { version: VERSION, zero: 0, .. } => Ok((head, rest)),
        Head { version: VERSION, .. } => Err(DecodeError::Reserved),
        Head { version, .. } => Err(DecodeError::Version(*version)),
    }
}

/// Decodes a datagram item by item.
fn items<'a, T>(
    datagram: &'a [u8],
    take: impl Fn(&mut &'a [u8]) -> Result<T, DecodeError>,
) -> impl Iterator<Item = Result<T, DecodeError>> {
    let mut state = head(datagram).map(|(head, rest)| (head.items.get(), rest));
    let mut next = move || match &mut state {
        Err(error) => Err(*error),
        Ok((0, [])) => Ok(None),
        Ok((0, _)) => Err(DecodeError::Trailing),
        Ok((left, rest)) => {
            *left -= 1;
            take(rest).map(Some)
        }
    };
    let mut failed = false;
    std::iter::from_fn(move || {
        let item = if failed { None } else { next().transpose() };
        failed = matches!(item, Some(Err(_)));
        item
    })
}

fn take_item<'a>(rest: &mut &'a [u8]) -> Result<(&'a LockItem, TxnId), DecodeError> {
    let (item, after) = LockItem::ref_from_prefix(rest).map_err(|_| DecodeError::Truncated)?;
    *rest = after;
    match item.txn.get() {
        raw if raw >> 63 == 0 => Ok((item, TxnId::from_raw(raw))),
        _ => Err(DecodeError::Reserved),
    }
}

fn take_request<'a>(rest: &mut &'a [u8]) -> Result<LockMessage<'a>, DecodeError> {
    let (item, txn) = take_item(rest)?;
    let (round, fragment, count) = (item.round.get(), item.fragment.get(), item.count.get());
    match (item.kind, item.refusal, round, fragment, count) {
        (kind::LOCK | kind::LOCK_OR_WAIT, 0, ..) => {
            let age_us = match item.kind {
                kind::LOCK_OR_WAIT => Some(take_age(rest)?),
                _ => None,
            };
            let (locks, after) = <[Lock]>::ref_from_prefix_with_elems(rest, count.into())
                .map_err(|_| DecodeError::Truncated)?;
            let known = |lock: &Lock| lock.flags <= flag::WRITE | flag::BUCKET && lock.zero == 0;
            if !locks.iter().all(known) {
                return Err(DecodeError::Reserved);
            }
            *rest = after;
            let question = Question { txn, round, fragment };
            Ok(LockMessage::Lock { question, locks: Locks(locks), age_us })
        }
        (kind::END, 0, 0, 0, 0) => Ok(LockMessage::End { txn }),
        (kind::LOCK | kind::LOCK_OR_WAIT | kind::END, ..) => Err(DecodeError::Reserved),
        (kind, ..) => Err(DecodeError::Kind(kind)),
    }
}

fn take_age(rest: &mut &[u8]) -> Result<u32, DecodeError> {
    let (age, after) = Age::ref_from_prefix(rest).map_err(|_| DecodeError::Truncated)?;
    *rest = after;
    if age.zero.get() == 0 { Ok(age.us.get()) } else { Err(DecodeError::Reserved) }
}

fn take_reply(rest: &mut &[u8]) -> Result<Reply, DecodeError> {
    let (item, txn) = take_item(rest)?;
    let question = Question { txn, round: item.round.get(), fragment: item.fragment.get() };
    let index = item.count.get();
    let answer = match (item.kind, item.refusal, index) {
        (kind::GRANTED, 0, 0) => LockAnswer::Granted,
        (kind::REFUSED, code, _) => {
            let refusal = *REFUSALS.get(usize::from(code)).ok_or(DecodeError::Reserved)?;
            LockAnswer::Refused { index, refusal }
        }
        (kind::WRONG_OWNER, 0, _) => {
            let (hint, after) =
                OwnerHint::ref_from_prefix(rest).map_err(|_| DecodeError::Truncated)?;
            if hint.zero.get() != 0 {
                return Err(DecodeError::Reserved);
            }
            *rest = after;
            let (owner, shard_epoch) = (NodeId(hint.node.get()), hint.epoch.get());
            LockAnswer::WrongOwner { index, owner, shard_epoch }
        }
        (kind::WAITING, 0, 0) => LockAnswer::Waiting,
        (kind::STALE, 0, 0) => LockAnswer::Stale,
        (kind::EXPELLED, 0, 0) => LockAnswer::Expelled,
        (kind::ENDED, 0, 0) if question.round == 0 && question.fragment == 0 => {
            return Ok(Reply::Ended { txn });
        }
        (kind::GRANTED..=kind::ENDED | kind::WAITING, ..) => return Err(DecodeError::Reserved),
        (kind, ..) => return Err(DecodeError::Kind(kind)),
    };
    Ok(Reply::Lock { question, answer })
}

/// Writes a datagram's items into the caller's buffer.
#[derive(Debug)]
struct Writer<'a> {
    buffer: &'a mut [u8],
    used: usize,
    items: u16,
}

impl<'a> Writer<'a> {
    fn new(buffer: &'a mut [u8]) -> Self {
        assert!(buffer.len() >= HEAD_BYTES, "a datagram has a head");
        Self { buffer, used: HEAD_BYTES, items: 0 }
    }

    /// Writes a whole item or no bytes; returns the room for the `following` bytes.
    fn push(&mut self, item: &LockItem, following: usize) -> Result<&mut [u8], BufferFull> {
        let bytes = ITEM_BYTES + following;
        let room = self.buffer.get_mut(self.used..self.used + bytes).ok_or(BufferFull)?;
        self.items = self.items.checked_add(1).ok_or(BufferFull)?;
        self.used += bytes;
        let (front, rest) = room.split_at_mut(ITEM_BYTES);
        front.copy_from_slice(item.as_bytes());
        Ok(rest)
    }

    fn finish(self, epoch: Epoch) -> usize {
        let head =
            Head { version: VERSION, zero: 0, items: self.items.into(), epoch: epoch.0.into() };
        self.buffer[..HEAD_BYTES].copy_from_slice(head.as_bytes());
        self.used
    }
}

fn item(kind: u8, question: Question, refusal: u8, count: u16) -> LockItem {
    let Question { txn, round, fragment } = question;
    let (count, round, fragment) = (count.into(), round.into(), fragment.into());
    LockItem { kind, refusal, count, round, fragment, txn: txn.raw().into() }
}

/// Returns the item of an end or its acknowledgement, which do not belong to a round.
fn end_item(kind: u8, txn: TxnId) -> LockItem {
    item(kind, Question { txn, round: 0, fragment: 0 }, 0, 0)
}

/// Writes a datagram of requests. Ends come before locks, because ends may make room for locks.
#[derive(Debug)]
pub struct RequestWriter<'a>(Writer<'a>);

impl<'a> RequestWriter<'a> {
    /// Starts a datagram in `buffer`, whose length limits the datagram.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`HEAD_BYTES`].
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self(Writer::new(buffer))
    }

    /// Adds a request for all of `locks`, or no lock.
    ///
    /// # Errors
    /// If the request does not fit; the buffer is unchanged. [`Self::room_for_locks`] gives the
    /// number of locks that would fit.
    pub fn lock(
        &mut self,
        question: Question,
        locks: impl ExactSizeIterator<Item = RemoteLock>,
    ) -> Result<(), BufferFull> {
        self.push_locks(question, None, locks)
    }

    /// As [`Self::lock`], for a request that may wait: its transaction's first attempt began
    /// `age_us` microseconds ago. The locks are in ascending [`WaitOrder`](crate::WaitOrder).
    ///
    /// # Errors
    /// If the item does not fit; the buffer is unchanged.
    pub fn lock_or_wait(
        &mut self,
        question: Question,
        age_us: u32,
        locks: impl ExactSizeIterator<Item = RemoteLock>,
    ) -> Result<(), BufferFull> {
        self.push_locks(question, Some(age_us), locks)
    }

    fn push_locks(
        &mut self,
        question: Question,
        age_us: Option<u32>,
        locks: impl ExactSizeIterator<Item = RemoteLock>,
    ) -> Result<(), BufferFull> {
        let count = u16::try_from(locks.len()).map_err(|_| BufferFull)?;
        let kind = if age_us.is_some() { kind::LOCK_OR_WAIT } else { kind::LOCK };
        let age_bytes = age_us.map_or(0, |_| AGE_BYTES);
        let item = item(kind, question, 0, count);
        let room = self.0.push(&item, age_bytes + locks.len() * LOCK_BYTES)?;
        let (age, room) = room.split_at_mut(age_bytes);
        if let Some(us) = age_us {
            age.copy_from_slice(Age { us: us.into(), zero: 0.into() }.as_bytes());
        }
        for (slot, lock) in room.chunks_exact_mut(LOCK_BYTES).zip(locks) {
            slot.copy_from_slice(lock.encode().as_bytes());
        }
        Ok(())
    }

    /// Adds the end of `txn` and of all earlier attempts of its slot.
    ///
    /// # Errors
    /// If the item does not fit; the buffer is unchanged.
    pub fn end(&mut self, txn: TxnId) -> Result<(), BufferFull> {
        self.0.push(&end_item(kind::END, txn), 0).map(drop)
    }

    /// Number of locks that fit in one more request.
    pub fn room_for_locks(&self) -> usize {
        (self.0.buffer.len() - self.0.used).saturating_sub(ITEM_BYTES) / LOCK_BYTES
    }

    /// Whether the datagram has no items.
    pub fn is_empty(&self) -> bool {
        self.0.items == 0
    }

    /// Completes the datagram, sent under configuration `epoch`; returns its length in bytes.
    pub fn finish(self, epoch: Epoch) -> usize {
        self.0.finish(epoch)
    }
}

/// Writes a datagram of replies.
#[derive(Debug)]
pub(crate) struct ReplyWriter<'a>(Writer<'a>);

/// Room for a datagram with one reply.
pub(crate) const ONE_REPLY_BYTES: usize = HEAD_BYTES + ITEM_BYTES + size_of::<OwnerHint>();

impl<'a> ReplyWriter<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self(Writer::new(buffer))
    }

    pub(crate) fn push(&mut self, reply: Reply) -> Result<(), BufferFull> {
        let item = match reply {
            Reply::Ended { txn } => end_item(kind::ENDED, txn),
            Reply::Lock { question, answer } => {
                let (kind, refusal, index) = match answer {
                    LockAnswer::Granted => (kind::GRANTED, 0, 0),
                    LockAnswer::Waiting => (kind::WAITING, 0, 0),
                    LockAnswer::Refused { index, refusal } => (kind::REFUSED, code(refusal), index),
                    LockAnswer::WrongOwner { index, owner, shard_epoch } => {
                        let (node, zero, epoch) = (owner.0.into(), 0.into(), shard_epoch.into());
                        let item = item(kind::WRONG_OWNER, question, 0, index);
                        let rest = self.0.push(&item, size_of::<OwnerHint>())?;
                        rest.copy_from_slice(OwnerHint { node, zero, epoch }.as_bytes());
                        return Ok(());
                    }
                    LockAnswer::Stale => (kind::STALE, 0, 0),
                    LockAnswer::Expelled => (kind::EXPELLED, 0, 0),
                };
                item(kind, question, refusal, index)
            }
        };
        self.0.push(&item, 0).map(drop)
    }

    pub(crate) fn finish(self, epoch: Epoch) -> usize {
        self.0.finish(epoch)
    }
}

fn code(refusal: Refusal) -> u8 {
    let code = REFUSALS.iter().position(|known| *known == refusal);
    code.expect("every refusal has a code") as u8
}

#[cfg(all(test, not(lotus_loom)))]
mod tests;
