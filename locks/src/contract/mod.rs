//! Plain values and traits that define a lock system, its users and its cluster.

mod backoff;
mod keeping;
mod notice;
mod peers;
mod space;
mod system;
mod waiter;
mod wide;

pub use backoff::{Backoff, Pacing};
pub use keeping::Keeping;
pub use notice::{Notice, Peer, Said};
pub use peers::{Member, Peers, PeersFuture};
pub use space::{LockSpace, SpaceError};
pub use system::{
    Counts, Event, LockSystem, NotHeld, Promises, Recovery, Request, Step, Verb, View,
};
pub use waiter::Waiter;
pub use wide::WideVerb;
