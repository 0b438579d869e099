//! Lock systems beside those that transactions use, and trials of all of them.
//!
//! # What it is
//! Baselines of DSLR, ShiftLock and DecLock on memory nodes, which a [`lotus_locks::Client`]
//! drives; FissLock, whose locks a switch grants ([`fisslock`] is the protocol, [`switched`] puts
//! it on a fabric); locks that [`servers`] keep in tables of a node; RedLock, whose locks are keys
//! of a Redis. Loads use every system as a [`Locker`].
//!
//! # What it is not
//! The locks of transactions: tables of compute nodes in `lotus-locktable`, and words of memory
//! nodes in `lotus-locks`. The store imports nothing from here.
//!
//! # Rooms
//! Folders, top floor first; each imports only from those below it.
//!
//! | folder | holds |
//! |---|---|
//! | `trial` | load and judges, for tests and simulation |
//! | `lock_spec` | names of all locks, as on the command line |
//! | `switched` | FissLock over a fabric |
//! | `redlock` | RedLock: keys of a Redis, and clients that set them |
//! | `servers` | locks kept by servers: tables of nodes, and clients that ask them |
//! | `locker` | locks by number, wherever their state is |
//! | `local` | locks that the clients of one node share before they ask for them |
//! | `systems` | further lock systems on memory nodes, and the choice of any by its name |
//! | `fisslock` | a lock service of a switch and machines; apart from the others |
//! | `word` | bit layouts of the words of `systems` |

#![forbid(unsafe_code)]

pub mod fisslock;
pub mod local;
mod lock_spec;
mod locker;
pub mod redlock;
pub mod servers;
pub mod switched;
pub mod systems;
pub mod trial;
pub mod word;

pub use lock_spec::{LockSpec, UnsupportedLockOption};
pub use locker::{Locker, Split, SplitHeld, Words};
