//! Locks kept by servers: their state is a table of a node, and clients ask for them by messages.
//!
//! # What it is
//! The baselines that DSLR, NetLock and FissLock compare themselves with: queues of a lock manager,
//! on one node or on all. [`LockTable`] is the locks of one core of a server as a pure state
//! machine.
//!
//! # Requests
//! A request is named by its slot, its number and its lock ([`RequestName`]). Clients repeat what
//! they ask until they are answered; a server knows the last request of each slot, so what comes
//! twice, late or out of order changes nothing twice. A waiter that gives up says so until that is
//! answered, and gets no lock that stays held.
//!
//! # Failures
//! A node that is lost keeps its locks and its places until it has been expelled and can reach the
//! memory no more (H2, H4). A server that is lost takes its locks with it: nothing is replicated,
//! as in the papers.

mod choice;
mod client;
mod core;
mod hot;
mod name;
mod placement;
mod queue;
mod table;
mod wire;

pub use choice::{Kept, Layout, ServiceNodes};
pub use client::{ServerClient, ServerHeld, Servers};
pub use core::{ServerCore, Toll};
pub use hot::{Buffers, Demand, FromBuffer, FromSwitch, HotQueues, SWITCH_SLOTS, allot};
pub use name::{Answer, Ask, Asker, RequestName};
pub use placement::{Keeps, Placement, SharedQueues, SharedTable};
pub use queue::Order;
pub use table::LockTable;
