//! The verdict of a command, from which the exit code follows.

/// Result of a command that did its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No fault was found.
    Sound,
    /// An audit failed, a history has a violation, a node of a cluster does not serve, or a row is
    /// not there.
    Unsound,
}
