//! Engines as a whole: what they leave in memory, the histories of their clients, and the verbs of
//! their transactions.

mod histories;
mod support;
mod verbs;
