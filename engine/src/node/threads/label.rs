//! Names of submitted work, for errors and the log.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// Name of a job in a coroutine slot.
#[derive(Clone, Debug)]
pub(crate) enum Label {
    /// The program line that submitted the job.
    Site(&'static Location<'static>),
    /// The name given to the job.
    Named(Arc<str>),
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Site(site) => write!(f, "what {}:{} submitted", site.file(), site.line()),
            Self::Named(name) => write!(f, "\"{name}\""),
        }
    }
}
