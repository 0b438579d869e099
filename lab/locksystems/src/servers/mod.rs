//! Locks kept by servers: the state is a table of a node; clients ask for locks by messages.
//!
//! # What it is
//! The baselines of DSLR, NetLock and FissLock: lock managers with queues, on one node or on every
//! node. [`LockTable`] holds the locks of one server core as a pure state machine.
//!
//! # Requests
//! Slot, number and lock name a request ([`RequestName`]). Clients repeat a message until the
//! server answers. A server remembers the last request of each slot, so a duplicate, late or
//! reordered message has no second effect. A waiter that gives up repeats its leave message until
//! the server answers, and ends up holding no lock.
//!
//! # Failures
//! A lost node keeps its locks and queue places until it is expelled and can no longer reach the
//! memory (H2, H4). The locks of a lost server are lost: no state is replicated, as in the papers.

mod choice;
mod client;
mod core;
mod hot;
mod name;
mod placement;
mod queue;
mod table;
mod wire;

pub use choice::{Layout, ServerLock, ServiceNodes};
pub use client::{ServerClient, ServerHeld, Servers};
pub use core::{CpuCharge, ServerCore};
pub use hot::{Buffers, Demand, FromBuffer, FromSwitch, HotQueues, SWITCH_SLOTS, allot};
pub use name::{Answer, Ask, Asker, RequestName};
pub use placement::{CoreRole, Placement, SharedQueues, SharedTable};
pub use queue::Order;
pub use table::LockTable;
