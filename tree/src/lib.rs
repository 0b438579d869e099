//! Nodes of a B+tree as bytes, and the decisions about them.
//!
//! # What it is
//! A [`Node`] is a view of the bytes of one node: a leaf with keys and values in ascending order of
//! the keys, or an inner node with a child for each interval of keys. [`edit`] makes the bytes of
//! the next state: with an entry more or less, split, or merged. [`Inner`] is an inner node
//! unpacked, to be remembered. [`whole`] makes and checks trees.
//!
//! # What it is not
//! This crate reads and writes no memory, and knows no transaction: `lotus-txn` keeps each node in
//! a row of a table. A node's number is the row's key; [`ROOT`] is the root's number, which never
//! changes.
//!
//! # Fences
//! A node is responsible for the keys from its *low* fence up to, not including, its *high* fence.
//! In every committed state the leaves' intervals follow each other without gap or overlap from the
//! empty key to no bound. So a leaf that [covers](Node::covers) a key is the key's only place,
//! however it was found: inner nodes may be cached and out of date, as in Sherman.
//!
//! # Bytes
//! ```text
//! level:8  flags:8  count:16  low length:8  high length:8  | offset:16 of each entry
//! low fence | high fence | entries: key length:8, key, payload
//! ```
//! Little-endian. An entry ends where the next entry begins, the last entry with the node. The
//! payload of a leaf's entry is the value; the payload of an inner node's entry is the child's
//! number in eight bytes, and its key is the low fence of the child. Leaves have level 0. Flag 1:
//! the node has a high fence.

#![forbid(unsafe_code)]

pub mod edit;
mod inner;
mod node;
pub mod whole;

pub use inner::Inner;
pub use node::{Node, Seek};

/// Number of the root.
pub const ROOT: u64 = 0;
/// Largest length of a key, in bytes.
pub const MAX_KEY_BYTES: usize = u8::MAX as usize;
/// Number of the longest entries that a node must have room for: with two, a node that has grown
/// too large can always be split into two nodes of allowed size ([`edit::split`]).
pub const MIN_ENTRIES: usize = 2;
/// Number of the longest entries that a node has room for where its size is not bounded by more.
pub const USUAL_ENTRIES: usize = 4;

/// Bytes of the fields before the offsets.
const HEADER_BYTES: usize = 6;
/// Bytes of an entry beyond its key and payload: its offset, and the length of its key.
pub const ENTRY_BYTES: usize = 3;
/// Bytes of a child's number, and the least size that is reckoned for an entry's payload.
pub const CHILD_BYTES: usize = size_of::<u64>();

/// Number of rows of the node with these first eight bytes: the entries of a leaf, or zero.
pub const fn rows_of(first: u64) -> u64 {
    let [level, _, low, high, ..] = first.to_le_bytes();
    if level == 0 { u16::from_le_bytes([low, high]) as u64 } else { 0 }
}

/// Number of rows of the node with these bytes, as [`rows_of`] counts them. 0 if the bytes are not
/// a node.
pub fn rows_in(node: &[u8]) -> u64 {
    let Some(begin) = node.first_chunk::<4>() else { return 0 };
    let mut first = [0; size_of::<u64>()];
    first[..begin.len()].copy_from_slice(begin);
    rows_of(u64::from_le_bytes(first))
}

/// Bytes that a node needs to hold [`MIN_ENTRIES`] entries, whose keys and values have at most the
/// given lengths.
pub const fn least_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    bytes_of(MIN_ENTRIES, key_bytes, value_bytes)
}

/// As [`least_bytes`], for [`USUAL_ENTRIES`] entries.
pub const fn usual_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    bytes_of(USUAL_ENTRIES, key_bytes, value_bytes)
}

const fn bytes_of(entries: usize, key_bytes: usize, value_bytes: usize) -> usize {
    let payload = if value_bytes > CHILD_BYTES { value_bytes } else { CHILD_BYTES };
    HEADER_BYTES + 2 * key_bytes + entries * (ENTRY_BYTES + key_bytes + payload)
}
