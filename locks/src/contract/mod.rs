//! Plain values and traits that define a lock system, its users and its cluster.

mod backoff;
mod keeper_rules;
mod notice;
mod peers;
mod space;
mod system;
mod waiter;
mod wide;

pub use backoff::{Backoff, Pacing};
pub use keeper_rules::KeeperRules;
pub use notice::{Notice, NoticeKind, Peer};
pub use peers::{Member, Peers, PeersFuture};
pub use space::{LockSpace, SpaceError};
pub use system::{
    Counts, Event, Guarantees, LockSystem, NotHeld, Recovery, Request, Step, Verb, View,
};
pub use waiter::Waiter;
pub use wide::WideVerb;
