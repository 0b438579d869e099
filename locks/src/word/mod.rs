//! Words of lock objects. A zeroed word is a free lock, so fresh memory needs no initialisation.

mod cas_rw;
mod claim;
mod declock;
mod head;
mod mode;
mod shiftlock;
mod shiftlock_wide;
mod tickets;
mod times;

pub use cas_rw::{Acquired, CasRwWord};
pub use claim::{Claim, Claimant};
pub use declock::{Age, Arrived, DeclockFields, QueueEntry, QueueHeader, QueuePart};
pub use head::Head;
pub use mode::Mode;
pub use shiftlock::ShiftWord;
pub use shiftlock_wide::WideShiftWord;
pub use tickets::{TicketFields, Tickets};
pub use times::{earlier, is_earlier};
