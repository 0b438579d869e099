//! Words of the lock objects of these systems. A word of zeroes is a free lock, so fresh memory
//! needs no preparation.

mod drtm;
mod mcs;
mod ncosed;
mod rma_rw;
mod update_tickets;

pub use drtm::DrtmWord;
pub use mcs::McsWord;
pub use ncosed::NcosedWord;
pub use rma_rw::RmaRwCounts;
pub use update_tickets::UpdateTickets;
