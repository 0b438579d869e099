//! The operator's consent to a command that loses data for good.
//!
//! # What it is
//! The memory of nodes that `lotus cluster down` ends has the only copy of all data, unless the
//! cluster takes snapshots. So the command needs a flag there, or a yes at a terminal.

use std::io::{self, BufRead, IsTerminal, Write};

use lotus_node::config::file::ClusterFile;

/// Flag that gives the consent.
pub const DISCARD: &str = "--discard";

/// Ways to learn whether the operator consents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Consent {
    /// There is nothing to ask.
    Given,
    /// A person can answer.
    Ask,
    /// No person is there: the flag decides.
    Refused,
}

/// Decides whether `down` needs consent: not if it takes a snapshot first, nor if a flag says that
/// it takes none (`discards`).
fn consent(takes_snapshots: bool, discards: bool, on_terminal: bool) -> Consent {
    match (takes_snapshots || discards, on_terminal) {
        (true, _) => Consent::Given,
        (false, true) => Consent::Ask,
        (false, false) => Consent::Refused,
    }
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes))
}

/// Checks that the operator consents to the end of nodes that run; asks at a terminal.
///
/// # Errors
/// A sentence: there is no consent, and nothing was ended.
pub fn check(file: &ClusterFile, discards: bool) -> Result<(), String> {
    let (mut input, mut output) = (io::stdin().lock(), io::stderr());
    let on_terminal = input.is_terminal();
    let path = file.path.display();
    let loss = format!("{path} has no [snapshots]: with its nodes, all data of the cluster ends");
    let agrees = match consent(file.snapshots.is_some(), discards, on_terminal) {
        Consent::Given => true,
        Consent::Refused => false,
        Consent::Ask => {
            let mut answer = String::new();
            let asked = write!(output, "{loss}. End them? [y/N] ").and_then(|()| output.flush());
            asked.and_then(|()| input.read_line(&mut answer)).is_ok() && is_yes(&answer)
        }
    };
    let refused = || format!("{loss}. Nothing was ended; {DISCARD} ends them all the same");
    agrees.then_some(()).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_given_up_by_a_flag_or_a_person_only() {
        for (takes_snapshots, discards, on_terminal, expected) in [
            (true, false, false, Consent::Given),
            (true, false, true, Consent::Given),
            (true, true, false, Consent::Given),
            (false, true, false, Consent::Given),
            (false, true, true, Consent::Given),
            (false, false, true, Consent::Ask),
            (false, false, false, Consent::Refused),
        ] {
            let found = consent(takes_snapshots, discards, on_terminal);
            assert_eq!(found, expected, "{takes_snapshots}, {discards}, {on_terminal}");
        }
    }

    #[test]
    fn nothing_but_a_yes_is_a_yes() {
        for yes in ["y\n", "Y", "yes\r\n", " YES "] {
            assert!(is_yes(yes), "{yes:?}");
        }
        for no in ["", "\n", "n\n", "yes please", "ye", "ja"] {
            assert!(!is_yes(no), "{no:?}");
        }
    }
}
