//! Words of lock objects. A word of zeroes is a free lock, so fresh memory needs no preparation.

mod cas_rw;
mod claim;
mod declock;
mod drtm;
mod head;
mod mcs;
mod mode;
mod ncosed;
mod rma_rw;
mod shiftlock;
mod shiftlock_wide;
mod tickets;
mod times;
mod update_tickets;

pub use cas_rw::{Acquired, CasRwWord};
pub use claim::{Claim, Claimant};
pub use declock::{Age, Arrived, DeclockFields, Entry, QueueHeader, QueuePart};
pub use drtm::DrtmWord;
pub use head::Head;
pub use mcs::McsWord;
pub use mode::Mode;
pub use ncosed::NcosedWord;
pub use rma_rw::RmaRwCounts;
pub use shiftlock::ShiftWord;
pub use shiftlock_wide::WideShiftWord;
pub use tickets::{TicketFields, Tickets};
pub use times::{earlier, is_earlier};
pub use update_tickets::UpdateTickets;
