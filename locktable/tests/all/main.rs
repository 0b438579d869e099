//! The locks' integration tests, as one program; `loom` needs a setting of its own.

mod lossy;
mod model;
mod queues;
mod unanswered;
mod waiting_model;
