//! Locks of transactions in words of memory nodes: DSLR, ShiftLock, DecLock, and compare-and-swap.
//!
//! # What it is
//! Compute nodes operate these locks by verbs alone, without a server. Each system is a state
//! machine ([`LockSystem`]) over the words that its verbs find and, in some systems, over notices
//! that the uses of a lock send one another. A [`Client`] drives the machines of one lane over the
//! fabric; [`MemoryLocks`] is the lock service of a transaction on a client.
//!
//! # What it is not
//! The locks of LOTUS, which are tables of compute nodes: they are in `lotus-locktable`. Further
//! lock systems, for comparison, and the trials of all are in `lotus-locksystems`.
//!
//! # Fencing
//! The published systems take a lock from a holder that is late, without stopping the late holder
//! from acting on it. [`Recovery::Paper`] is this behaviour. With [`Recovery::Fenced`] no lock is
//! taken from a holder that can still act (H2, H4): a lock is reset when every user has answered
//! that it is done with the lock, or can no longer reach the memory ([`reset`]).
//!
//! # Rooms
//! Folders, top floor first; each imports only from lower floors.
//!
//! | folder | holds |
//! |---|---|
//! | `ideal` | the traffic of a lock without exclusion, for a bound; a feature |
//! | `service` | locks of transactions, on a client |
//! | `client` | the uses of one lane: acquisition, release, ghosts, resets |
//! | `systems` | the lock systems |
//! | `contract` | the trait of a lock system; names of requests, places of locks, membership |
//! | `reset` | decisions of the quiescing reset |
//! | `word` | bit layouts, and what a word tells its reader |

#![forbid(unsafe_code)]

mod client;
mod contract;
#[cfg(feature = "sabotage")]
pub mod ideal;
pub mod reset;
mod service;
pub mod systems;
pub mod word;

pub use client::{
    Acquiring, Begun, Client, Hold, Identity, Leaving, Limits, Releasing, Roster, Wait,
};
pub use contract::{
    Backoff, Counts, Event, Guarantees, KeeperRules, LockSpace, LockSystem, Member, NotHeld,
    Notice, NoticeKind, Pacing, Peer, Peers, PeersFuture, Recovery, Request, SpaceError, Step,
    Verb, View, Waiter, WideVerb,
};
pub use service::{MemoryLocks, ObjectOf};
pub use word::Mode;
