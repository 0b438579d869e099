//! Format of a snapshot file.
//!
//! # What it is
//! All numbers are little-endian. A head of 12 bytes, `magic:64 format:32`, then blocks:
//!
//! ```text
//! kind:32 | payload_bytes:32 | checksum:64 | payload
//! ```
//! | kind | payload | how many |
//! |---|---|---|
//! | 1 begin | `timestamp:64 sequence:64 taken:64 life:64 cluster:64 id:64` | one, first |
//! | 2 table | the specification, as in the catalogue | one for each table, before its rows |
//! | 3 rows | rows of the table before: `key_bytes:8 key value_bytes:32 value` | any number |
//! | 4 end | `tables:32 stored rows:64`, then notes of the taker | one, last; nothing follows |
//! | 5 dropped | `count:32`: numbers of dropped tables that come next | any, from format 3 on |
//! | 6 secret | `secret:128`, of the names of rows | at most one, second; from format 5 on |
//!
//! A begin block has the first three words in formats 2 and 3, and only the first word in format 1.
//!
//! A checksum is xxh3 over kind, length and payload, seeded with the checksum of the block before
//! (for the first, with the hash of the head). So a block that is missing, repeated, moved or from
//! another snapshot is detected as surely as a flipped bit, and a truncated file lacks its end
//! block.
//!
//! # What it is not
//! Remote memory: the file has no versions, addresses or writers, so it can be read into any
//! cluster. Nor is it encrypted: a reader of the file has the rows, and the secret of their names.

use std::io::{self, Read, Write};

use lotus_fabric::env::Nanos;
use lotus_mvcc::table::{MAX_TABLE_IDS, StoredRows};
use lotus_mvcc::{PrimaryKey, Secret, TableSpec, Timestamp};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::error::SnapshotError;
use crate::node::agreed::catalogue::{decode_spec, encode_spec};

const MAGIC: [u8; 8] = *b"LOTUSNAP";
/// Format that this module writes. It also reads format 1, which has no labels, format 2, which has
/// no dropped tables, format 3, whose labels have no life, and format 4, which has no secret: the
/// restoring cluster draws a secret.
pub(crate) const FORMAT: u32 = 5;
const UNLABELLED: u32 = 1;
const WITHOUT_DROPPED: u32 = 2;
const WITHOUT_LIFE: u32 = 3;
const WITHOUT_SECRET: u32 = 4;
pub(super) const HEAD_BYTES: usize = 12;
pub(super) const BLOCK_HEAD_BYTES: usize = 16;
/// Largest payload, in bytes.
const MAX_PAYLOAD_BYTES: usize = 1 << 24;
/// Payload size, in bytes, from which a block of rows is ended.
pub(crate) const ROWS_BYTES: usize = 64 << 10;

const BEGIN: u32 = 1;
const TABLE: u32 = 2;
const ROWS: u32 = 3;
const END: u32 = 4;
const DROPPED: u32 = 5;
const SECRET: u32 = 6;

/// A life of a cluster: from its beginning, with a snapshot or afresh, until its memory is gone.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct SnapshotLife {
    /// Number among the lives of the cluster, from 1 on; 0 if lives were not counted.
    pub number: u64,
    /// Id of the cluster, the same in all of its lives.
    pub cluster: u64,
    /// Id of the life. Two lives that do not know of each other have different ids, though they may
    /// have the same number.
    pub id: u64,
}

/// Place of a snapshot in the order of its directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct SnapshotLabel {
    /// Life of the cluster in which the snapshot was taken.
    pub life: SnapshotLife,
    /// Sequence number, growing from one snapshot to the next, also across lives of a cluster; 0 if
    /// snapshots were not counted.
    pub sequence: u64,
    /// Clock time at the beginning of the snapshot. The snapshot timestamp may be ahead of it.
    pub taken: Nanos,
}

/// Head of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotHead {
    /// Snapshot timestamp: the file has all data committed up to this time, and nothing else.
    /// Nanoseconds since the Unix epoch, as far as the cluster's clocks were right.
    pub timestamp: Timestamp,
    /// Life, sequence number and clock time; for format 1, no life, 0 and the timestamp.
    pub label: SnapshotLabel,
}

impl SnapshotHead {
    /// Creates a head of format 1.
    fn unlabelled(timestamp: Timestamp) -> Self {
        let taken = Nanos(timestamp.raw());
        Self { timestamp, label: SnapshotLabel { taken, ..SnapshotLabel::default() } }
    }

    fn encode(&self) -> [u8; 48] {
        let mut bytes = [0; 48];
        let SnapshotLabel { life, sequence, taken } = self.label;
        let label = [sequence, taken.0, life.number, life.cluster, life.id];
        let words = [self.timestamp.raw()].into_iter().chain(label);
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(payload: &[u8], format: u32) -> Option<Self> {
        let (words, []) = payload.as_chunks::<8>() else { return None };
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        match (format, &words[..]) {
            (UNLABELLED, [timestamp]) => Some(Self::unlabelled(Timestamp::new(*timestamp)?)),
            (WITHOUT_DROPPED | WITHOUT_LIFE, [timestamp, sequence, taken]) => Some(Self {
                timestamp: Timestamp::new(*timestamp)?,
                label: SnapshotLabel {
                    sequence: *sequence,
                    taken: Nanos(*taken),
                    life: SnapshotLife::default(),
                },
            }),
            (WITHOUT_SECRET..=FORMAT, [timestamp, sequence, taken, number, cluster, id]) => {
                Some(Self {
                    timestamp: Timestamp::new(*timestamp)?,
                    label: SnapshotLabel {
                        life: SnapshotLife { number: *number, cluster: *cluster, id: *id },
                        sequence: *sequence,
                        taken: Nanos(*taken),
                    },
                })
            }
            _ => None,
        }
    }
}

/// Summary of a complete snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// Head of the snapshot.
    pub head: SnapshotHead,
    /// Number of tables.
    pub tables: u32,
    /// Number of rows, of all tables together; for an ordered table, the rows in its leaves.
    pub rows: u64,
    /// Size of the file, in bytes.
    pub bytes: u64,
    /// Notes added by the process that took the snapshot.
    pub notes: Vec<u8>,
}

/// Appends a row to the payload of a block of rows.
pub(crate) fn push_row(payload: &mut Vec<u8>, key: &PrimaryKey, value: &[u8]) {
    payload.push(key.byte_count() as u8);
    payload.extend_from_slice(key.as_bytes());
    payload.extend((value.len() as u32).to_le_bytes());
    payload.extend_from_slice(value);
}

/// Returns the first bytes of a file of this format.
pub(super) fn magic(format: u32) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..].copy_from_slice(&format.to_le_bytes());
    head
}

/// Returns the head of a block. `before` is the checksum of the previous block, and becomes the
/// checksum of this block.
pub(super) fn block_head(before: &mut u64, kind: u32, payload: &[u8]) -> [u8; BLOCK_HEAD_BYTES] {
    *before = checksum(*before, kind, payload);
    let mut head = [0; BLOCK_HEAD_BYTES];
    head[..4].copy_from_slice(&kind.to_le_bytes());
    head[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    head[8..].copy_from_slice(&before.to_le_bytes());
    head
}

pub(super) fn checksum(before: u64, kind: u32, payload: &[u8]) -> u64 {
    let mut hash = Xxh3::with_seed(before);
    hash.update(&kind.to_le_bytes());
    hash.update(&(payload.len() as u32).to_le_bytes());
    hash.update(payload);
    hash.digest()
}

/// Writes a snapshot.
pub(crate) struct Writer<'a> {
    sink: &'a mut dyn Write,
    head: SnapshotHead,
    /// Checksum of the previous block.
    checksum: u64,
    /// The table whose rows are written.
    spec: Option<TableSpec>,
    tables: u32,
    rows: Count,
    bytes: u64,
}

/// Rows of a file.
#[derive(Clone, Copy, Default)]
struct Count {
    /// Rows as stored in the file: for an ordered table, the nodes of its tree.
    stored: u64,
    /// Rows as the application counts them.
    rows: u64,
}

impl<'a> Writer<'a> {
    /// Begins a snapshot.
    pub(crate) fn begin(sink: &'a mut dyn Write, head: &SnapshotHead) -> io::Result<Self> {
        let magic = magic(FORMAT);
        sink.write_all(&magic)?;
        let (checksum, bytes) = (xxh3_64(&magic), HEAD_BYTES as u64);
        let (spec, rows) = (None, Count::default());
        let mut writer = Self { sink, head: *head, checksum, spec, tables: 0, rows, bytes };
        writer.block(BEGIN, &head.encode())?;
        Ok(writer)
    }

    /// Adds the secret of the names of rows, before all tables.
    pub(crate) fn secret(&mut self, secret: Secret) -> io::Result<()> {
        self.block(SECRET, &secret.to_bytes())
    }

    /// Begins a table.
    pub(crate) fn table(&mut self, spec: &TableSpec) -> io::Result<()> {
        let mut payload = Vec::new();
        encode_spec(spec, &mut payload);
        self.tables += 1;
        self.spec = Some(spec.clone());
        self.block(TABLE, &payload)
    }

    /// Records that the next `count` table numbers belong to dropped tables.
    pub(crate) fn dropped(&mut self, count: u32) -> io::Result<()> {
        self.block(DROPPED, &count.to_le_bytes())
    }

    /// Adds `count` stored rows of the table, as [`push_row`] has written them.
    pub(crate) fn rows(&mut self, payload: &[u8], count: u64) -> io::Result<()> {
        self.rows.stored += count;
        self.rows.rows += match &self.spec {
            Some(spec) if spec.ordered => rows_of_nodes(spec, payload),
            _ => count,
        };
        self.block(ROWS, payload)
    }

    /// Ends the snapshot.
    pub(crate) fn end(mut self, notes: Vec<u8>) -> io::Result<SnapshotInfo> {
        let mut payload = self.tables.to_le_bytes().to_vec();
        payload.extend(self.rows.stored.to_le_bytes());
        payload.extend_from_slice(&notes);
        self.block(END, &payload)?;
        let Self { head, tables, rows: Count { rows, .. }, bytes, .. } = self;
        Ok(SnapshotInfo { head, tables, rows, bytes, notes })
    }

    fn block(&mut self, kind: u32, payload: &[u8]) -> io::Result<()> {
        let too_long = "a block of a snapshot is too long";
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, too_long));
        }
        self.sink.write_all(&block_head(&mut self.checksum, kind, payload))?;
        self.sink.write_all(payload)?;
        self.bytes += (BLOCK_HEAD_BYTES + payload.len()) as u64;
        Ok(())
    }
}

/// Number of application rows in stored rows of an ordered table.
fn rows_of_nodes(spec: &TableSpec, mut payload: &[u8]) -> u64 {
    let mut rows = 0;
    while let Some((_, value, behind)) = split_row(payload) {
        (rows, payload) = (rows + spec.rows_in(value), behind);
    }
    rows
}

/// Visitor of a snapshot's tables, each followed by its rows.
pub trait SnapshotVisitor {
    /// Visits a table.
    ///
    /// # Errors
    /// The visitor's own; the visit ends with such an error.
    fn table(&mut self, spec: TableSpec) -> Result<(), SnapshotError>;

    /// Visits the secret of the names of rows, before all tables, if the file has one.
    ///
    /// # Errors
    /// As [`Self::table`].
    fn secret(&mut self, secret: Secret) -> Result<(), SnapshotError> {
        let _ = secret;
        Ok(())
    }

    /// Visits `count` numbers of dropped tables, which precede the next table's number or end the
    /// list.
    ///
    /// # Errors
    /// As [`Self::table`].
    fn dropped(&mut self, count: u32) -> Result<(), SnapshotError> {
        let _ = count;
        Ok(())
    }

    /// Visits a row of the last table.
    ///
    /// # Errors
    /// As [`Self::table`].
    fn row(&mut self, key: PrimaryKey, value: &[u8]) -> Result<(), SnapshotError>;
}

/// Ignores tables and rows, to check a file only.
impl SnapshotVisitor for () {
    fn table(&mut self, _: TableSpec) -> Result<(), SnapshotError> {
        Ok(())
    }

    fn row(&mut self, _: PrimaryKey, _: &[u8]) -> Result<(), SnapshotError> {
        Ok(())
    }
}

/// Reads the head of a snapshot. The rest of the file is not checked.
///
/// # Errors
/// `Foreign`, `OtherFormat`, `Cut`, `Damaged` or `Io`.
pub fn read_snapshot_head(source: &mut dyn Read) -> Result<SnapshotHead, SnapshotError> {
    Reader::begin(source)?.head()
}

/// Reads a snapshot from its first byte to its last. The visited tables and rows are valid only if
/// this succeeds.
///
/// # Errors
/// `Foreign`, `OtherFormat`, `Cut`, `Damaged` or `Io`; or the visitor's own.
pub fn read_snapshot(
    source: &mut dyn Read,
    visitor: &mut dyn SnapshotVisitor,
) -> Result<SnapshotInfo, SnapshotError> {
    let mut reader = Reader::begin(source)?;
    let head = reader.head()?;
    let (mut tables, mut rows, mut spec) = (0, Count::default(), None);
    let mut is_second = true;
    loop {
        let (kind, payload) = reader.block()?;
        let begins = std::mem::replace(&mut is_second, false);
        match kind {
            SECRET if begins && reader.format > WITHOUT_SECRET => {
                let secret = payload.try_into().map_err(|_| SnapshotError::Damaged)?;
                visitor.secret(Secret::from_bytes(secret))?;
            }
            TABLE => {
                let (found, []) = decode_spec(&payload).ok_or(SnapshotError::Damaged)? else {
                    return Err(SnapshotError::Damaged);
                };
                found.validate().map_err(|_| SnapshotError::Damaged)?;
                tables += 1;
                spec = Some(found.clone());
                visitor.table(found)?;
            }
            ROWS => {
                let spec = spec.as_ref().ok_or(SnapshotError::Damaged)?;
                let shown = show_rows(spec, &payload, visitor)?;
                rows = Count { stored: rows.stored + shown.stored, rows: rows.rows + shown.rows };
            }
            DROPPED if reader.format > WITHOUT_DROPPED => {
                let count = <[u8; 4]>::try_from(&payload[..]).map(u32::from_le_bytes);
                let count = count.ok().filter(|count| (1..MAX_TABLE_IDS as u32).contains(count));
                spec = None;
                visitor.dropped(count.ok_or(SnapshotError::Damaged)?)?;
            }
            END => {
                let counted = (u32::to_le_bytes(tables), u64::to_le_bytes(rows.stored));
                let (found, notes) = payload.split_at_checked(12).ok_or(SnapshotError::Damaged)?;
                if found[..4] != counted.0 || found[4..] != counted.1 {
                    return Err(SnapshotError::Damaged);
                }
                let (bytes, notes, rows) = (reader.end()?, notes.to_vec(), rows.rows);
                return Ok(SnapshotInfo { head, tables, rows, bytes, notes });
            }
            _ => return Err(SnapshotError::Damaged),
        }
    }
}

/// Visits the rows of a block; returns their number.
fn show_rows(
    spec: &TableSpec,
    payload: &[u8],
    visitor: &mut dyn SnapshotVisitor,
) -> Result<Count, SnapshotError> {
    let (mut rest, mut count) = (payload, Count::default());
    let StoredRows { key_bytes, value_bytes, .. } = spec.stored();
    while !rest.is_empty() {
        let (key, value, behind) = split_row(rest).ok_or(SnapshotError::Damaged)?;
        let fits = key.byte_count() <= key_bytes as usize && value.len() <= value_bytes as usize;
        if !fits {
            return Err(SnapshotError::Damaged);
        }
        count.stored += 1;
        count.rows += spec.rows_in(value);
        visitor.row(key, value)?;
        rest = behind;
    }
    Ok(count)
}

fn split_row(bytes: &[u8]) -> Option<(PrimaryKey, &[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (key, rest) = rest.split_at_checked(usize::from(*length))?;
    let (length, rest) = rest.split_first_chunk()?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((PrimaryKey::try_from(key).ok()?, value, rest))
}

struct Reader<'a> {
    source: &'a mut dyn Read,
    format: u32,
    checksum: u64,
    bytes: u64,
}

impl<'a> Reader<'a> {
    fn begin(source: &'a mut dyn Read) -> Result<Self, SnapshotError> {
        let mut reader = Self { source, format: 0, checksum: 0, bytes: 0 };
        let found: [u8; HEAD_BYTES] = reader.take()?;
        if found[..8] != MAGIC {
            return Err(SnapshotError::Foreign);
        }
        reader.format = u32::from_le_bytes([found[8], found[9], found[10], found[11]]);
        if !(UNLABELLED..=FORMAT).contains(&reader.format) {
            return Err(SnapshotError::OtherFormat { found: reader.format });
        }
        reader.checksum = xxh3_64(&found);
        Ok(reader)
    }

    /// Reads the first block.
    fn head(&mut self) -> Result<SnapshotHead, SnapshotError> {
        let (BEGIN, payload) = self.block()? else { return Err(SnapshotError::Damaged) };
        SnapshotHead::decode(&payload, self.format).ok_or(SnapshotError::Damaged)
    }

    /// Reads the next block: its kind and payload.
    fn block(&mut self) -> Result<(u32, Vec<u8>), SnapshotError> {
        let kind = u32::from_le_bytes(self.take()?);
        let length = u32::from_le_bytes(self.take()?) as usize;
        let expected = u64::from_le_bytes(self.take()?);
        if length > MAX_PAYLOAD_BYTES {
            return Err(SnapshotError::Damaged);
        }
        // An invalid length costs no more memory than the file has bytes.
        let mut payload = Vec::with_capacity(length.min(2 * ROWS_BYTES));
        self.bytes += length as u64;
        let read = (&mut *self.source).take(length as u64).read_to_end(&mut payload)?;
        if read < length {
            return Err(SnapshotError::Cut);
        }
        self.checksum = checksum(self.checksum, kind, &payload);
        if self.checksum != expected {
            return Err(SnapshotError::Damaged);
        }
        Ok((kind, payload))
    }

    /// Checks that nothing follows; returns the number of bytes read.
    fn end(self) -> Result<u64, SnapshotError> {
        let mut more = [0];
        match self.source.read(&mut more)? {
            0 => Ok(self.bytes),
            _ => Err(SnapshotError::Damaged),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), SnapshotError> {
        self.bytes += bytes.len() as u64;
        self.source.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SnapshotError::Cut,
            _ => error.into(),
        })
    }
}

#[cfg(test)]
mod tests;
