//! Multi-version tables in remote memory: byte layouts and the rules for reading them.
//!
//! # What this crate is
//!
//! The pure half of LOTUS's memory store (LOTUS §4.4, §7.1): names ([`key`], [`naming`],
//! [`key_range`], [`table`]), bytes ([`layout`]), and decisions over bytes that were read
//! ([`index`], [`visibility`], [`acceptance`], [`chain`]). The crate also has the state that a
//! compute node keeps about remote memory: the [`address_cache`], the [`version_table_cache`], the
//! [`slab`] sub-allocator with the slots that [`retention`] keeps back, the snapshots that define
//! the [`horizon`], and the embedded [`timestamp`] clock.
//!
//! # What it is not
//!
//! The crate posts no verbs and takes no row locks. Only the clients of timestamp sources wait, and
//! read a clock. The engine reads words, calls this crate to interpret them, and carries out the
//! answer. So every rule can be, and
//! is, tested with a table of examples.
//!
//! # Ownership of words
//!
//! Remote memory belongs to no node: only the holder of the covering lock may write a word.
//! `docs/memory-layout.md` names the lock of every word. Offsets are bytes within the region of one
//! replica group, the same on all replicas of the group.

#![forbid(unsafe_code)]

pub mod acceptance;
pub mod address_cache;
pub mod chain;
pub mod horizon;
pub mod index;
pub mod key;
pub mod key_range;
pub mod layout;
pub mod loader;
pub mod naming;
pub mod oracle;
pub mod retention;
pub mod shown;
pub mod slab;
pub mod table;
pub mod timestamp;
pub mod version_table_cache;
pub mod visibility;

pub use key::{CriticalField, PrimaryKey};
pub use key_range::KeyRange;
pub use lotus_fabric::ids::TableId;
pub use naming::{Naming, RowName, Secret};
pub use table::{Inline, TableDef, TableSpec};
pub use timestamp::Timestamp;
