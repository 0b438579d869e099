//! Who is dead, what a dead coordinator leaves behind, and what its survivors make of it.
//!
//! # What it is
//! * [`beat`]: the word that shows that a node lives.
//! * [`detector`]: leases, and who is suspected of being dead.
//! * [`membership`]: what all have agreed on: who takes part, and how far each recovery has come.
//! * [`log`]: the bytes of a write-log entry and where each coroutine slot keeps its own.
//! * [`resolve`]: the pure decision about one in-doubt transaction: forward, back, or nothing to
//!   do, and what that means for every cell it names.
//!
//! # What it is not
//! It reads and writes no remote memory. The engine beats, fences, reads logs and cells, asks
//! what is here, and carries the answers out (LOTUS §6, DESIGN §8).

#![forbid(unsafe_code)]

pub mod beat;
pub mod detector;
pub mod log;
pub mod membership;
pub mod resolve;

pub use beat::Beat;
pub use detector::{Answers, Detector, Lease};
pub use log::{
    DecisionWord, GeometryError, LogEntry, LogError, LogGeometry, LoggedWrite, WriteKind,
};
pub use membership::{LostMemory, Member, Membership, Part, PartId, Standing};
pub use resolve::{
    CellSeen, Contradiction, Decision, Repair, decide, decide_purge, repair, unresolved,
};
