//! The target's side: `targets` (the start of threads), `worker` (one thread), `control`
//! (registering and fencing), `target` (state that workers share), `serve` (verbs on memory).
//!
//! Not here: lanes that post verbs (`initiator`).

pub(crate) mod control;
pub(crate) mod serve;
pub(crate) mod target;
pub(crate) mod targets;
mod worker;
