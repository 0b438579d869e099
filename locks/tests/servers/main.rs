//! Locks of servers. `table` and `model` are tests of their tables alone, over a network that the
//! test drives; `families` is the services on the fabrics, which `grounds` sets up, and
//! `redlock` what RedLock alone promises, or does not.

mod families;
mod grounds;
mod hot;
mod model;
mod redlock;
mod single;
mod table;
