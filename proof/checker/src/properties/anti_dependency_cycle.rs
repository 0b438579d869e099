//! G2, anti-dependency cycle, and G-nonadjacent, its variant without adjacent anti-dependencies.
//!
//! Steps: rw, ww and wr. Write skew is the shortest G2. The cycle is allowed if the transaction
//! between two adjacent rw steps runs under snapshot isolation: the [graph](crate::graph) has no
//! such cycle, since snapshot and commit of that transaction are different points.

use crate::graph::{Link, Mask};
use crate::search::Search;

pub(crate) const SEARCH: Search = Search {
    begin: Link::ReadWrite,
    go_on: Mask::of(&[Link::WriteWrite, Link::WriteRead, Link::ReadWrite]),
};
