//! The lock systems of DSLR, DecLock, ShiftLock and FissLock, and their baselines.
//!
//! # What it is
//! Most are locks in words of memory nodes, which compute nodes operate by verbs alone, without a
//! server. Each is a state machine ([`LockSystem`]) over the words that its verbs find, and in some
//! over what uses of a lock tell one another; a [`Client`] drives the machines of one lane over the
//! fabric. The others are asked by messages: FissLock's are granted by a switch ([`fisslock`] is
//! the protocol, [`switched`] puts it on a fabric), those of [`servers`] by tables of a node. Loads
//! use all of them as a [`Locker`].
//!
//! # What it is not
//! The locks of LOTUS, which are tables of compute nodes: they are in `lotus-locktable`.
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
//! | `names` | names of all locks, as on the command line |
//! | `switched` | FissLock over a fabric |
//! | `redlock` | RedLock: keys of a Redis, and clients that set them |
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
mod names;
pub mod redlock;
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
pub use locker::{Locker, Split, SplitHeld, Words};
pub use names::{LockName, LockUnoffered};
pub use service::{MemoryLocks, ObjectOf};
pub use word::Mode;
