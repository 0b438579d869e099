//! G-single: no transaction misses an effect of a transaction that it depends on.
//!
//! Steps: exactly one rw, any number of ww and wr. This is read skew; neither level allows it.

use crate::graph::{Link, Mask};
use crate::search::Search;

pub(crate) const SEARCH: Search =
    Search { begin: Link::ReadWrite, go_on: Mask::of(&[Link::WriteWrite, Link::WriteRead]) };
