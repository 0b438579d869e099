//! RedLock, the lock of Redis: a key with a time to live on a majority of servers.
//!
//! # What it is
//! The baseline of ShiftLock's and FissLock's banks (ShiftLock §4.5, FissLock §7.9). A client sets
//! the key of a lock to a random token, on each server where the key is not set yet, and holds the
//! lock if a majority did so in time. To release, the client deletes the key on servers that still
//! have the token. Readers are exclusive as well. Clients do not queue: a refused client tries
//! again after a random time.
//!
//! [`Redis`] is a server reduced to what RedLock needs, and [`rules`] has the clients' decisions;
//! both are pure. [`RedLockClient`] carries the rules out over a [`RedisLink`]: messages of a
//! fabric, or, with the feature `redis`, sockets to real servers.
//!
//! # What it does not promise
//! A slow holder loses its lock when the time to live is over, and nothing keeps the holder from
//! acting further: RedLock has no fence (H4). So RedLock is never a lock of the engine.
//! [`Locker::is_valid`] tells a holder that asks, and a late release reports [`NotHeld::Reset`].
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
