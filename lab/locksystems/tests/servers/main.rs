//! Locks of servers. `table` and `model` are tests of their tables alone, over a network that the
//! test drives; `families` is the services on the fabrics, which `platforms` sets up, and
//! `redlock` what RedLock alone promises, or does not; `real` is RedLock on real servers, with the
//! feature `redis`, which `redis_server` starts.

mod families;
mod hot;
mod model;
mod platforms;
#[cfg(feature = "redis")]
mod real;
#[cfg(feature = "redis")]
mod redis_server;
mod redlock;
mod single;
mod table;
