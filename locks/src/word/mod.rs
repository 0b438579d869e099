//! Words of lock objects. A word of zeroes is a free lock, so fresh memory needs no preparation.

mod cas_rw;
mod claim;
mod declock;
mod head;
mod mcs;
mod mode;
mod tickets;
mod update_tickets;

pub use cas_rw::{Acquired, CasRwWord};
pub use claim::{Claim, Claimant};
pub use declock::{Age, Arrived, DeclockFields, Entry, QueueHeader};
pub use head::Head;
pub use mcs::McsWord;
pub use mode::Mode;
pub use tickets::{TicketFields, Tickets};
pub use update_tickets::UpdateTickets;
