//! Timestamps, and the horizons and grace periods that follow from them.
//!
//! * `oracle`, `timestamps`: issue of timestamps; `horizon`: floors of coordinators; `grace`: ends
//!   of commits that began before a moment.

pub(crate) mod grace;
pub(crate) mod horizon;
pub(crate) mod oracle;
pub(crate) mod timestamps;
