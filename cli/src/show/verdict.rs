//! The verdict of a command, from which the exit code follows.

use lotus_benchmarks::audit::AuditOutcome;

/// Result of a command that did its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No fault was found.
    Sound,
    /// An audit failed, a history has a violation, a node of a cluster does not serve, or a row is
    /// not there.
    Unsound,
    /// No fault was found, but something that was to be judged could not be.
    Unjudged,
}

impl From<AuditOutcome> for Verdict {
    fn from(outcome: AuditOutcome) -> Self {
        match outcome {
            AuditOutcome::Passed => Self::Sound,
            AuditOutcome::Incomplete => Self::Unjudged,
            AuditOutcome::Failed => Self::Unsound,
        }
    }
}
