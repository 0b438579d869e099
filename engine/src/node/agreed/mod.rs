//! What the processes of a cluster agree on at the authority: tables, naming, numbers of new nodes.
//!
//! * `council`, `authority`: access to the authority; `catalogue`, `tables`: tables, agreed and
//!   known; `looks`: when to look for unknown tables; `names`, `node_numbers`: naming of rows, and
//!   numbers of tree nodes; `counted`: row counts.

pub(crate) mod authority;
pub(crate) mod catalogue;
pub(crate) mod council;
pub(crate) mod counted;
pub(crate) mod looks;
pub(crate) mod names;
pub(crate) mod node_numbers;
pub(crate) mod tables;
