//! What the processes of a cluster agree on at the authority: tables, naming, numbers of new nodes.
//!
//! * `async_authority`, `authority`: access to the authority; `catalogue`, `tables`: tables, agreed
//!   and known; `catalogue_lookups`: when to look for unknown tables; `names`, `node_numbers`:
//!   naming of rows, and numbers of tree nodes; `counted`: row counts.

pub(crate) mod async_authority;
pub(crate) mod authority;
pub(crate) mod catalogue;
pub(crate) mod catalogue_lookups;
pub(crate) mod counted;
pub(crate) mod names;
pub(crate) mod node_numbers;
pub(crate) mod tables;
