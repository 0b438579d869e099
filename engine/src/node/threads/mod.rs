//! A coordinator's thread: its progress, work submitted to it, and code that holds it up.
//!
//! * `poll_tracker`, `home`: threads held up, and code on the wrong thread; `attempts`, `label`,
//!   `tasks`: progress of attempts, names of work, futures side by side.

pub(crate) mod attempts;
pub(crate) mod home;
pub(crate) mod label;
pub(crate) mod poll_tracker;
pub(crate) mod tasks;
