//! Memory nodes, from the view of a compute node: those in use, and their free slots.
//!
//! * `configuration`, `placement`, `filled`, `memory_life`, `silent`: memory nodes in use, their
//!   lives, and those that do not answer;
//! * `slots`, `slot_requests`, `tombstones`, `trims`: free slots, requests for more, and rows to
//!   purge or trim.

pub(crate) mod configuration;
pub(crate) mod filled;
pub(crate) mod memory_life;
pub(crate) mod placement;
pub(crate) mod silent;
pub(crate) mod slot_requests;
pub(crate) mod slots;
pub(crate) mod tombstones;
pub(crate) mod trims;
