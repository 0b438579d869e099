//! Effects of a request that has no answer.

/// Effect of a request that ended with an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing, for certain, now or later. It may be repeated.
    Nothing,
    /// All that it was to change, for certain: it has committed. Do not repeat it.
    Committed,
    /// Everything or nothing, and it may yet happen. Ask
    /// `Client::outcome` if the call has an id, or repeat it with the
    /// same id; never repeat it without one.
    Unknown,
}
