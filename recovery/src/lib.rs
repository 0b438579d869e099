//! Failure detection, the membership, and recovery of transactions that a dead coordinator left
//! behind.
//!
//! # What it is
//! * [`beat`]: the word that shows a node to be alive.
//! * [`detector`]: leases, and the nodes suspected of being dead.
//! * [`membership`]: the agreed value: live and expelled nodes, and the progress of each recovery.
//! * [`log`]: the bytes of a write-log entry and the place of each coroutine slot's entry.
//! * [`resolve`]: the pure decision about one in-doubt transaction: forward, back, or nothing to
//!   do, and the consequence for every cell that the transaction names.
//!
//! # What it is not
//! This crate reads and writes no remote memory. The engine beats, fences, reads logs and cells,
//! calls these functions, and carries out their decisions (LOTUS §6, `docs/recovery.md`).

#![forbid(unsafe_code)]

pub mod beat;
pub mod detector;
pub mod log;
pub mod membership;
pub mod resolve;

pub use beat::Beat;
pub use detector::{Answers, Detector, Lease, Standoff};
pub use log::{
    DecisionWord, GeometryError, LogEntry, LogError, LogGeometry, LoggedWrite, WriteKind,
};
pub use membership::{LostMemory, Member, Membership, Part, PartId, Standing};
pub use resolve::{
    CellSeen, Contradiction, Decision, Repair, decide, decide_purge, repair, unresolved,
};
