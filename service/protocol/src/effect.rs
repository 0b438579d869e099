//! Effects of a request that has no answer.

/// Effect of a request that ended with an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Certainly none, now or later. The request may be repeated.
    Nothing,
    /// Complete, for certain: the request has committed. Do not repeat the request.
    Committed,
    /// Complete or none, and the request may still take effect. Ask `Client::outcome` if the call
    /// has an id, or repeat the call with the same id; never repeat a request without an id.
    Unknown,
}
