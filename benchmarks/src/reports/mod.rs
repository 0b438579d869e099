//! Reports of a run for people and for files, and profiles by layer.
//!
//! Imports from `drive`, `judge` and `contract`. Runs nothing.

pub mod callgrind;
mod nodes;
pub mod origin;
pub mod output;
pub mod report;
pub mod spread;
pub mod stream;
