//! From gathered data to views: pure, without clocks or sockets.
//!
//! * `rates`: two samples of a node, and the rates between them;
//! * `cluster`: a cluster's nodes, their states and rates, and the last minute;
//! * `bench`: a benchmark, and its last minute;
//! * `view`: views of clusters and benchmarks.

pub mod bench;
#[cfg(feature = "tcp")]
pub mod cluster;
#[cfg(feature = "tcp")]
pub mod rates;
pub mod view;

use lotus_fabric::env::Nanos;
use view::View;

/// A watched cluster or benchmark.
pub trait Watched {
    /// Gathered data.
    type News: Send + 'static;

    /// Takes in gathered data.
    fn take(&mut self, news: Self::News);

    /// Lets time pass.
    fn tick(&mut self, now: Nanos);

    /// The current view.
    fn view(&self, now: Nanos) -> View;

    /// Whether enough is known for a single frame.
    fn is_complete(&self) -> bool;
}
