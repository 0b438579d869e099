//! Multi-version tables in remote memory: their bytes and the rules for reading them.
//!
//! # What this crate is
//!
//! The pure half of LOTUS's memory store (LOTUS §4.4, §7.1): names ([`key`], [`naming`],
//! [`key_range`], [`table`]), bytes ([`layout`]), and the decisions taken over bytes that were
//! read ([`index`], [`visibility`], [`acceptance`], [`chain`]). Beside them stand the few pieces of
//! state that a compute node keeps about remote memory: the [`address_cache`], the
//! [`version_table_cache`], the [`slab`] sub-allocator with the slots that [`retention`] keeps
//! back, the snapshots that define its [`horizon`], and the embedded [`timestamp`] clock.
//!
//! # What it is not
//!
//! Nothing here posts a verb, waits, takes a lock or reads a clock. The engine reads words, calls
//! this crate to interpret them, and carries out the answer; so every rule below can be tested with
//! a table of examples, and is.
//!
//! # Ownership of words
//!
//! Remote memory belongs to no node: a word may be written only by the holder of the lock that
//! covers it. `docs/memory-layout.md` names that lock for every word. Offsets are bytes within the
//! region of one replica group, alike on all of its replicas.

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
