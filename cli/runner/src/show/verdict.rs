//! The verdict of a command, from which the exit code follows.

use lotus_benchmarks::audit::AuditOutcome;

/// Result of a completed command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No fault was found.
    Sound,
    /// An audit failed, a history has a violation, a cluster is not healthy, or a row does not
    /// exist or could not be read or written.
    Unsound,
    /// No fault was found, but part of the data could not be judged.
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
