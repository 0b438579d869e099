//! Session order: what a session does later sees what it did earlier, and is not seen by it.
//!
//! Steps: those of G2, and at least one from a transaction to the next of its session.

use crate::graph::{Link, Mask};
use crate::search::Search;

pub(crate) const SEARCH: Search = Search {
    begin: Link::Session,
    go_on: Mask::of(&[Link::WriteWrite, Link::WriteRead, Link::ReadWrite, Link::Session]),
};
