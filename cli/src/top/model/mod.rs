//! From what was gathered to what is shown: pure, without clocks or sockets.
//!
//! * `rates`: two samples of a node, and the rates between them;
//! * `cluster`: a cluster's nodes, their states and rates, and the last minute;
//! * `bench`: a benchmark, and its last minute;
//! * `view`: what is shown of either.

pub mod bench;
#[cfg(feature = "tcp")]
pub mod cluster;
#[cfg(feature = "tcp")]
pub mod rates;
pub mod view;

use lotus_fabric::env::Nanos;
use view::View;

/// Something that is watched.
pub trait Watched {
    /// What is learnt of it.
    type News: Send + 'static;

    /// Takes in what was learnt.
    fn take(&mut self, news: Self::News);

    /// Lets time pass.
    fn tick(&mut self, now: Nanos);

    /// What is to be shown now.
    fn view(&self, now: Nanos) -> View;

    /// Whether enough is known for a frame that stands alone.
    fn is_complete(&self) -> bool;
}
