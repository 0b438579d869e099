//! FissLock (OSDI 2024): a switch grants locks, and machines keep the holders and waiters.
//!
//! # What it is
//! The protocol, as pure functions and state machines: packets, the switch's *decider*, the
//! *agents* of locks in the pool of every machine, numbered and repeated packets, and recovery. The
//! state machines neither send nor wait, and have no clock.
//!
//! # What it is not
//! A lock system of `lotus-locks` ([`lotus_locks::LockSystem`]): no state is in a word of a memory
//! node. The client over a fabric, the switch as a program, and the driver of recoveries are in
//! [`crate::switched`].
//!
//! # Life of a lock
//! An ACQUIRE of a free lock marks the lock as held at the switch. The answer is a GRANT with an
//! empty agent, which the requester's machine hosts. The switch grants a shared request of a shared
//! lock at once, and tells the agent. Every other request waits in the agent's queue. When the last
//! holder leaves, the agent's machine sends FREE, or GRANT with the agent to the machine of the
//! first waiter. Both packets pass through the switch, which updates the lock's state accordingly.
//!
//! # Holes of the published protocol
//! [`Rules`] has a setting for each hole; `lab/locksystems/tests/fisslock/holes.rs` shows the
//! consequences.
//!
//! | hole | as published | closed |
//! |---|---|---|
//! | a late GRANT meets the retry of its task | two holders | nonces; RELEASE is the answer |
//! | one of two requests of a machine times out | two holders | no RELEASE frees a lock |
//! | packets overtake each other | granted without a mark | taken in order |
//! | packets come twice, without numbers | a lock held by no task | numbers |
//! | the first shared request is counted | never free again | the GRANT has the count |
//! | 256 shared grants are under way | two holders | one request of a machine at the switch |
//! | FREE is refused, the agent forgotten | a lock without an agent | the agent is kept |
//! | the agent's copy of a request is lost | never free again | the switch answers again |
//!
//! The switch stores no packets. A repeated packet is answered from a record of each origin's last
//! decisions, 16 bits each (a decision and a machine); a machine therefore repeats a request until
//! the request's effects have arrived. The paper's time-out for a lost GRANT is thus not needed; a
//! task gives up only by its own choice.

pub mod agent;
pub mod capacity;
pub mod channel;
pub mod cores;
pub mod decider;
pub mod packet;
pub mod pipeline;
pub mod pool;
pub mod recovery;
pub mod report;
pub mod rules;

pub use decider::Decider;
pub use packet::Packet;
pub use pipeline::Pipeline;
pub use pool::AgentPool;
pub use rules::{Homes, Preference, Rules};
