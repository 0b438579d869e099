//! Lock systems whose state is in words of memory nodes.
//!
//! # What it is
//! Locks that compute nodes operate by verbs alone, without a server: those of DSLR and of the
//! systems that it is compared with. Each is a state machine ([`LockSystem`]) over the words that
//! its verbs find, and in some over what uses of a lock tell one another; a [`Client`] drives the
//! machines of one lane over the fabric.
//!
//! # What it is not
//! The locks of LOTUS, which are tables of compute nodes: they are in `lotus-locktable`.
//! FissLock's locks are the state of a switch ([`fisslock`], and [`switched`] over a fabric).
//!
//! # Fencing
//! The published systems take a lock from a holder that is late, and do not keep that holder from
//! acting on. [`Recovery::Paper`] is that. With [`Recovery::Fenced`] nothing is taken from anybody
//! who can still act (H2, H4): a lock is reset when each of its users has answered that it is done
//! with it, or can reach the memory no more ([`reset`]).
//!
//! # Rooms
//! Folders, top floor first; each imports only from those below it.
//!
//! | folder | holds |
//! |---|---|
//! | `trial` | load and judges, for tests and simulation |
//! | `ideal` | the traffic of a lock without exclusion, for a bound; a feature |
//! | `service` | locks of transactions, on a client |
//! | `switched` | FissLock over a fabric |
//! | `servers` | locks kept by servers: tables of nodes, and clients that ask them |
//! | `locker` | locks by number, wherever their state is |
//! | `local` | locks that the clients of one node share before they ask for them |
//! | `client` | the uses of one lane: acquisition, release, ghosts, resets |
//! | `systems` | the lock systems |
//! | `fisslock` | a lock service of a switch and machines; apart from the others |
//! | `contract` | the trait of a lock system; names of requests, places of locks, membership |
//! | `reset` | decisions of the quiescing reset |
//! | `word` | bit layouts, and what a word says to whoever finds it |

#![forbid(unsafe_code)]

mod client;
mod contract;
pub mod fisslock;
#[cfg(feature = "sabotage")]
pub mod ideal;
pub mod local;
mod locker;
pub mod reset;
pub mod servers;
mod service;
pub mod switched;
pub mod systems;
pub mod trial;
pub mod word;

pub use client::{
    Acquiring, Begun, Client, Hold, Identity, Leaving, Limits, Releasing, Roster, Wait,
};
pub use contract::{
    Backoff, Counts, Event, Keeping, LockSpace, LockSystem, Member, NotHeld, Notice, Pacing, Peer,
    Peers, PeersFuture, Promises, Recovery, Request, Said, SpaceError, Step, Verb, View, Waiter,
    WideVerb,
};
pub use locker::{Locker, Words};
pub use service::{MemoryLocks, ObjectOf};
pub use word::Mode;
