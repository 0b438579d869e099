//! The target's side: `targets` (the start of threads), `worker` (one thread), `control`
//! (registering and fencing), `target` (state that workers share), `serve` (verbs on memory).
//!
//! Not here: lanes that post verbs (`initiator`).

pub(in crate::backends::tcp) mod control;
pub(in crate::backends::tcp) mod serve;
pub(in crate::backends::tcp) mod target;
pub(in crate::backends::tcp) mod targets;
mod worker;
