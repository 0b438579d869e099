//! RedLock, the lock of Redis: a key with a time to live on a majority of servers.
//!
//! # What it is
//! The baseline of ShiftLock's and FissLock's banks (ShiftLock §4.5, FissLock §7.9). A client sets
//! the key of a lock to a random token, on each server where nobody else has set it, and holds the
//! lock if a majority did so in time. It deletes the key where it is still its own. Readers exclude
//! one another too, nobody queues, and who was refused tries again after a random time.
//!
//! [`Redis`] is a server as far as this needs it, and [`rules`] is what clients decide; both are
//! pure. [`RedLockClient`] carries the rules out over a [`RedisLink`]: messages of a fabric, or,
//! with the feature `redis`, sockets to real servers.
//!
//! # What it does not promise
//! A holder that is slow loses its lock when the time to live is over, and nothing keeps it from
//! acting on: there is no fence (H4). So it is never a lock of the engine. [`Locker::is_valid`]
//! tells a holder that looks, and its release reports [`NotHeld::Reset`].
//!
//! [`Locker::is_valid`]: crate::Locker::is_valid
//! [`NotHeld::Reset`]: lotus_locks::NotHeld::Reset

mod client;
mod node;
mod redis;
#[cfg(feature = "redis")]
mod remote;
#[cfg(feature = "redis")]
mod resp;
pub mod rules;
#[cfg(feature = "redis")]
mod sockets;
mod wire;

pub use client::{RedLockClient, RedLockHeld, RedisLink, Replies};
pub use node::{RedisCore, RpcLink, SharedRedis};
pub use redis::{Command, CommandName, Redis, Sessions, Token};
#[cfg(feature = "redis")]
pub use remote::{Prefix, RedisError, RedisServers};
#[cfg(feature = "redis")]
pub use sockets::SocketLink;
