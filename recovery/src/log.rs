//! Write-log entries: bytes and places.
//!
//! # Purpose of an entry
//! A committing coordinator writes to each memory node, on one connection and in this order, the
//! log entry, the records and the cells (H12). An entry names the *whole* write set, so a single
//! surviving copy is enough to find everything possibly touched by the transaction. Old versions
//! are the undo log (LOTUS §5.1), so an entry holds addresses and no data.
//!
//! # Format 1, in 8-byte little-endian words
//! ```text
//! word    bits 0..                                                          written by
//! 0       transaction id:63 | zero:1            0 = the slot is empty       the coordinator
//! 1       epoch:32 | writes:16 | zero:8 | format:8                          the coordinator
//! 2       checksum of all words but 2 and 3, never 0                        the coordinator
//! 3       decision: 0 undecided, 1 back, all ones done,
//!         else (top bit clear) forward at that timestamp                    see below
//! 4+2i    CVT offset:40 | group:8 | cell index:8 | kind:8                   the coordinator
//! 5+2i    record offset:40 | table:16 | zero:8                              the coordinator
//! ```
//! Offsets are within the replica group. Two writes make exactly one cache line.
//!
//! # When an entry counts
//! The words of an entry land in any order, 8 bytes at a time, and may land in part (H14, H16). An
//! entry counts only if its checksum holds; a partial entry is no entry, and since cells follow the
//! entry on every connection, nothing that the missing words would name was written to that memory
//! node. Only the format byte is believed before the checksum, because a single word does not tear.
//!
//! # The decision word
//! Word 3 is outside the checksum because it changes after the entry is written. A successful
//! commit leaves it at 0. Otherwise it takes two steps, 0 → decision → done, each on every
//! surviving log before the next action: the decision before any cell is repaired, done before any
//! lock is released. Recovery swaps the word by compare-and-swap (H17); a live coordinator that is
//! forced to abort uses plain writes (H12). A decision on record means held locks and possibly
//! remaining work; done forbids a late recoverer to touch any cell.
//!
//! **A slot whose decision word is not 0 must have it zeroed, by an earlier verb on the same
//! connection, before the next entry is written**; otherwise an entry landing without word 3 would
//! inherit its predecessor's verdict. This holds across incarnations too.
//!
//! # What it is not
//! This module decides nothing; see [`crate::resolve`].

use lotus_fabric::ids::{Epoch, RemoteAddr, TableId, TxnId};
use lotus_mvcc::Timestamp;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};
use zerocopy::IntoBytes;

#[cfg(not(target_endian = "little"))]
compile_error!("remote words are little-endian and checksums are taken over their bytes");

/// Format that this module reads and writes.
pub const FORMAT: u8 = 1;
/// Words before the first write.
pub const HEADER_WORDS: usize = 4;
/// Words for each write.
pub const WRITE_WORDS: usize = 2;
/// Index of the decision word in the entry: the target of recovery's compare-and-swap.
pub const DECISION_WORD: usize = 3;
/// Largest write set that [`LogGeometry`] makes room for by default.
pub const DEFAULT_MAX_WRITES: u16 = 512;

const ID_WORD: usize = 0;
const SHAPE_WORD: usize = 1;
const CHECKSUM_WORD: usize = 2;
const WORD_BYTES: u64 = 8;
const LINE_BYTES: u64 = 64;
const OFFSET_BITS: u32 = RemoteAddr::OFFSET_BITS;
const MAX_OFFSET: u64 = RemoteAddr::MAX_OFFSET;

const _: () = {
    assert!(HEADER_WORDS == DECISION_WORD + 1, "writes follow the decision word");
    assert!(Timestamp::LOADED.raw() == 1, "1 commits no transaction, so it can mean back");
    assert!(OFFSET_BITS + 8 + 8 + 8 == 64, "a write's first word is full");
    assert!(OFFSET_BITS + 16 + 8 == 64, "a write's second word is full");
    assert!(entry_words(2) as u64 * WORD_BYTES == LINE_BYTES, "two writes make one line");
    assert!(entry_words(DEFAULT_MAX_WRITES as usize) as u64 * WORD_BYTES == 8224);
};

/// Words in an entry that names `writes` writes.
pub const fn entry_words(writes: usize) -> usize {
    HEADER_WORDS + WRITE_WORDS * writes
}

/// Effect of a write on its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WriteKind {
    /// A new version of a key that exists.
    Update = 1,
    /// The first version of a key, in a CVT that the transaction also claimed.
    Insert = 2,
    /// A tombstone.
    Delete = 3,
    /// No version at all: the overflow word of the bucket at `cvt` names the empty bucket at
    /// `record`. Recovery writes a missing link, independent of the decision, on every replica, to
    /// keep replicas alike; an empty bucket in a chain is harmless.
    Link = 4,
    /// End of a deleted row: the CVT is zeroed. While zeroing is under way the named cell is
    /// INVISIBLE with the transaction's tag, and its version word is the last to be zeroed on each
    /// replica. An entry with a purge has no other writes. If recovery finds the tag on a replica,
    /// recovery zeroes the CVT on all replicas, the tag last; without a tag recovery has nothing to
    /// do.
    Purge = 5,
    /// End of a version that is not the row's newest: the named cell gives up its version and its
    /// slot; `record` is 0. While the trim is under way the cell's version word is INVISIBLE with
    /// the transaction's tag, and it is the last word to be zeroed on each replica. Recovery undoes
    /// a trim like an update, which leaves the cell as the transaction would have.
    Trim = 6,
}

impl WriteKind {
    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Update),
            2 => Some(Self::Insert),
            3 => Some(Self::Delete),
            4 => Some(Self::Link),
            5 => Some(Self::Purge),
            6 => Some(Self::Trim),
            _ => None,
        }
    }
}

/// One write, as the log names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggedWrite {
    /// Replica group that holds the key.
    pub group: u8,
    /// Table that holds the key.
    pub table: TableId,
    /// Effect of the write.
    pub kind: WriteKind,
    /// Byte offset of the CVT (of a link: the bucket) within the group.
    pub cvt: u64,
    /// Index of the CVT's cell that takes the new version.
    pub cell: u8,
    /// Byte offset of the record within the group.
    pub record: u64,
}

impl LoggedWrite {
    fn pack(self) -> [u64; WRITE_WORDS] {
        assert!(self.cvt <= MAX_OFFSET && self.record <= MAX_OFFSET, "offsets have 40 bits");
        let place = self.cvt
            | u64::from(self.group) << OFFSET_BITS
            | u64::from(self.cell) << (OFFSET_BITS + 8)
            | (self.kind as u64) << (OFFSET_BITS + 16);
        [place, self.record | u64::from(self.table.0) << OFFSET_BITS]
    }

    fn unpack(words: &[u64; WRITE_WORDS]) -> Option<Self> {
        let [place, data] = *words;
        if data >> (OFFSET_BITS + 16) != 0 {
            return None;
        }
        Some(Self {
            group: (place >> OFFSET_BITS) as u8,
            table: TableId((data >> OFFSET_BITS) as u16),
            kind: WriteKind::from_byte((place >> (OFFSET_BITS + 16)) as u8)?,
            cvt: place & MAX_OFFSET,
            cell: (place >> (OFFSET_BITS + 8)) as u8,
            record: data & MAX_OFFSET,
        })
    }
}

/// State of a transaction's decision: the meaning of word 3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecisionWord {
    /// Not decided yet.
    Undecided,
    /// Undo the transaction.
    Back,
    /// Committed at this time, later than [`Timestamp::LOADED`].
    Forward(Timestamp),
    /// Every cell has been repaired, whatever the decision was.
    Done,
}

impl DecisionWord {
    /// The encoded word.
    ///
    /// # Panics
    /// If the timestamp is [`Timestamp::LOADED`] or earlier, which no transaction commits at.
    pub const fn word(self) -> u64 {
        match self {
            Self::Undecided => 0,
            Self::Back => 1,
            Self::Forward(time) => {
                assert!(time.raw() > Timestamp::LOADED.raw(), "not a commit timestamp");
                time.raw()
            }
            Self::Done => u64::MAX,
        }
    }

    /// Decodes a word; `None` if it encodes no decision.
    pub const fn from_word(word: u64) -> Option<Self> {
        match (word, Timestamp::new(word)) {
            (0, _) => Some(Self::Undecided),
            (1, _) => Some(Self::Back),
            (_, Some(time)) => Some(Self::Forward(time)),
            (u64::MAX, None) => Some(Self::Done),
            (_, None) => None,
        }
    }
}

/// Reason why the words of a slot are not an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The slot has never been used, or was cleared; no transaction needs resolving.
    #[error("the log slot is empty")]
    Empty,
    /// The entry landed in part and does not count: no write of the entry went through this memory
    /// node (H16).
    #[error("the log entry is incomplete")]
    Torn,
    /// The entry was written by a different version of this program, or by a broken program; only a
    /// program with knowledge of format `found` may resolve the entry.
    #[error("the log entry has format {found}, and this program reads format {FORMAT}")]
    Format {
        /// The format byte in the entry.
        found: u8,
    },
}

/// A whole entry, seen in place.
#[derive(Clone, Copy, Debug)]
pub struct LogEntry<'a> {
    txn: TxnId,
    epoch: Epoch,
    decision: DecisionWord,
    writes: &'a [[u64; WRITE_WORDS]],
}

impl<'a> LogEntry<'a> {
    /// Writes the entry of `txn`, undecided, to the front of `into`; returns its length in words.
    ///
    /// # Panics
    /// If `writes` is empty, the transaction id is zero, or `into` is shorter than [`entry_words`]:
    /// the caller has refused the transaction when its write set grew.
    #[inline]
    pub fn encode<W>(into: &mut [u64], txn: TxnId, epoch: Epoch, writes: W) -> usize
    where
        W: IntoIterator<Item = LoggedWrite, IntoIter: ExactSizeIterator>,
    {
        let writes = writes.into_iter();
        let count = u16::try_from(writes.len()).expect("a write set has at most 65535 writes");
        assert!(count > 0 && txn.raw() != 0, "an entry names a transaction and its writes");
        let words = entry_words(usize::from(count));
        let (header, body) = into[..words].split_at_mut(HEADER_WORDS);
        for (place, write) in body.as_chunks_mut::<WRITE_WORDS>().0.iter_mut().zip(writes) {
            *place = write.pack();
        }
        header[ID_WORD] = txn.raw();
        header[SHAPE_WORD] = u64::from(epoch.0) | u64::from(count) << 32 | u64::from(FORMAT) << 56;
        header[CHECKSUM_WORD] = checksum(header, body);
        header[DECISION_WORD] = DecisionWord::Undecided.word();
        words
    }

    /// Reads the entry at the front of a slot's words. Words behind the entry are left over from
    /// longer predecessors and are ignored.
    ///
    /// # Errors
    /// See [`LogError`]; a slot too short for its claimed number of writes is [`LogError::Torn`].
    pub fn decode(slot: &'a [u64]) -> Result<Self, LogError> {
        let (header, rest) = slot.split_at_checked(HEADER_WORDS).ok_or(LogError::Torn)?;
        let (id, shape) = (header[ID_WORD], header[SHAPE_WORD]);
        if id == 0 {
            return Err(LogError::Empty);
        }
        if shape == 0 {
            return Err(LogError::Torn);
        }
        let found = (shape >> 56) as u8;
        if found != FORMAT {
            return Err(LogError::Format { found });
        }
        let count = usize::from((shape >> 32) as u16);
        let body = rest.get(..WRITE_WORDS * count).ok_or(LogError::Torn)?;
        if header[CHECKSUM_WORD] != checksum(header, body) {
            return Err(LogError::Torn);
        }
        // The checksum holds: errors from here on are the writer's.
        let malformed = LogError::Format { found };
        let writes = body.as_chunks::<WRITE_WORDS>().0;
        let sound = count > 0
            && id >> 63 == 0
            && (shape >> 48) as u8 == 0
            && writes.iter().all(|words| LoggedWrite::unpack(words).is_some());
        if !sound {
            return Err(malformed);
        }
        Ok(Self {
            txn: TxnId::from_raw(id),
            epoch: Epoch(shape as u32),
            decision: DecisionWord::from_word(header[DECISION_WORD]).ok_or(malformed)?,
            writes,
        })
    }

    /// The writing transaction.
    pub fn txn(&self) -> TxnId {
        self.txn
    }

    /// Configuration epoch in which the transaction committed.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Decision recorded in this copy of the entry.
    pub fn decision(&self) -> DecisionWord {
        self.decision
    }

    /// All writes of the transaction, in logged order.
    pub fn writes(&self) -> impl ExactSizeIterator<Item = LoggedWrite> + 'a {
        self.writes.iter().map(|words| LoggedWrite::unpack(words).expect("checked by decode"))
    }
}

/// Checksum of the id, the shape and all writes; never zero, because a zeroed slot must not be a
/// valid entry.
#[inline]
fn checksum(header: &[u64], body: &[u64]) -> u64 {
    let seed = xxh3_64(header[..CHECKSUM_WORD].as_bytes());
    xxh3_64_with_seed(body.as_bytes(), seed).max(1)
}

/// Reason why a log region cannot be laid out. Correct the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// Compute nodes, slots and writes must each be at least one; name a larger number.
    #[error("a log needs at least one compute node, one slot and one write")]
    Zero,
    /// A slot's number must fit in a transaction id; run fewer coroutines on a compute node.
    #[error("{slots} coroutine slots on a compute node are more than the limit of {limit}",
        limit = TxnId::MAX_SLOT + 1)]
    TooManySlots {
        /// Number of slots asked for.
        slots: u16,
    },
}

/// Place of every coroutine slot's entry in the log region; the same on every memory node.
///
/// One fixed-size place for each (compute node, coroutine slot): no two writers share a line, and a
/// dead node's entries are one contiguous read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogGeometry {
    compute_nodes: u16,
    slots: u16,
    max_writes: u16,
}

impl LogGeometry {
    /// Room for `slots` coroutine slots on each of `compute_nodes` compute nodes, and for write
    /// sets of at most `max_writes` (see [`DEFAULT_MAX_WRITES`]).
    ///
    /// # Errors
    /// See [`GeometryError`].
    pub const fn new(
        compute_nodes: u16,
        slots: u16,
        max_writes: u16,
    ) -> Result<Self, GeometryError> {
        if compute_nodes == 0 || slots == 0 || max_writes == 0 {
            return Err(GeometryError::Zero);
        }
        if slots > TxnId::MAX_SLOT + 1 {
            return Err(GeometryError::TooManySlots { slots });
        }
        Ok(Self { compute_nodes, slots, max_writes })
    }

    /// Largest write set that fits.
    pub const fn max_writes(self) -> u16 {
        self.max_writes
    }

    /// Bytes from one slot to the next: whole cache lines.
    pub const fn slot_bytes(self) -> u64 {
        let bytes = entry_words(self.max_writes as usize) as u64 * WORD_BYTES;
        bytes.next_multiple_of(LINE_BYTES)
    }

    /// Offset of the entry of `slot` on the `compute_node`-th compute node, in bytes from the start
    /// of the region.
    ///
    /// # Panics
    /// If the cluster has no such compute node or slot.
    #[inline]
    pub fn offset(self, compute_node: u16, slot: u16) -> u64 {
        assert!(compute_node < self.compute_nodes && slot < self.slots, "no such log slot");
        let index = u64::from(compute_node) * u64::from(self.slots) + u64::from(slot);
        index * self.slot_bytes()
    }

    /// Bytes in the log region of each memory node.
    pub const fn region_bytes(self) -> u64 {
        self.compute_nodes as u64 * self.slots as u64 * self.slot_bytes()
    }
}

#[cfg(test)]
mod tests;
