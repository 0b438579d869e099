//! G-single: transactions never miss an effect of a transaction on which they depend.
//!
//! Steps: exactly one rw, with ww and wr in any number. The cycle is read skew, forbidden at both
//! levels.

use crate::graph::{Link, Mask};
use crate::search::Search;

pub(crate) const SEARCH: Search =
    Search { begin: Link::ReadWrite, go_on: Mask::of(&[Link::WriteWrite, Link::WriteRead]) };
