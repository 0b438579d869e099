//! Owners of shards: their words in the memory pool, hand-over and balancing (LOTUS §4.3, H4).
//!
//! Imports from [`crate::txn`] and below. The shards of expelled nodes are handled in
//! [`crate::membership`].

pub(crate) mod balance;
pub(crate) mod hand_over;
pub(crate) mod orders;
pub(crate) mod ownership;
