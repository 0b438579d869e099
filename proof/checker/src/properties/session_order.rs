//! Session order: a transaction sees the earlier transactions of its session, but not the later
//! transactions (I56).
//!
//! Steps: the steps of G2, and at least one from a transaction to the next of its session.

use crate::graph::{Link, Mask};
use crate::search::Search;

pub(crate) const SEARCH: Search = Search {
    begin: Link::Session,
    go_on: Mask::of(&[Link::WriteWrite, Link::WriteRead, Link::ReadWrite, Link::Session]),
};
