//! The initiator's side: `lane` (the data path), `link` (one connection to a node), `mail`
//! (messages), `common` (what a lane's connections share), `batches`, `dial` (making connections).
//!
//! Not here: carrying verbs out, which is the target's work (`server`).

mod batches;
mod common;
pub(crate) mod dial;
pub(crate) mod lane;
mod link;
mod mail;
