//! FissLock: a switch grants locks, and machines keep their holders and waiters (OSDI 2024).
//!
//! # What it is
//! The protocol, as pure functions and state machines: its packets, the switch's *decider*, the
//! *agents* of locks in the pool of each machine, numbered packets that are repeated, and recovery.
//! They neither send nor wait, and have no clock.
//!
//! # What it is not
//! A lock system of this crate ([`lotus_locks::LockSystem`]): no state is in a word of a memory node. Its
//! client over a fabric, the switch as a program, and recovery are in [`crate::switched`].
//!
//! # Life of a lock
//! ACQUIRE of a free lock marks it as held at the switch and is answered by GRANT with an empty
//! agent, which the requester's machine hosts. A shared request of a shared lock is granted by the
//! switch at once, and the agent is told. Any other request waits in the agent's queue. When the
//! last holder leaves, the agent's machine sends FREE, or GRANT with the agent to the machine of
//! the first waiter; both pass through the switch, which marks what they say.
//!
//! # Holes of the published protocol
//! [`Rules`] has a switch for each; `lab/locksystems/tests/fisslock/holes.rs` shows what each leads to.
//!
//! | hole | as published | closed |
//! |---|---|---|
//! | a late GRANT meets the retry of its task | two holders | nonces; RELEASE answers it |
//! | one of two requests of a machine times out | two holders | no RELEASE frees a lock |
//! | packets overtake each other | granted without a mark | taken in order |
//! | packets come twice, without numbers | a lock held by no task | numbers |
//! | the first shared request is counted | never free again | the GRANT has the count |
//! | 256 shared grants are under way | two holders | one request of a machine at the switch |
//! | FREE is refused, the agent forgotten | a lock without an agent | the agent is kept |
//! | the agent's copy of a request is lost | never free again | the switch answers again |
//!
//! The switch keeps no packets. It answers a repeated one from a record of the last decisions of
//! each origin, 16 bits each (a decision and a machine), so a request is repeated by its machine
//! until its effects have arrived. The paper's time-out of a lost GRANT is thus not needed; a task
//! gives up only because it wants to.

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
