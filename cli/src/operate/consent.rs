//! The operator's consent to a command that loses data for good.
//!
//! # What it is
//! Without snapshots, the nodes ended by `lotus cluster down` hold the only copy of all data in
//! their memory. So without snapshots the command needs a flag, or a yes at a terminal.
//!
//! In addition, serving nodes of other hosts may need nodes of this host: for the only authority,
//! or for the last copies of some rows ([`loss`]). Ending such nodes takes another flag, since the
//! first flag is given on every host.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use lotus_authority::Authority;
use lotus_fabric::env::Env;
use lotus_node::agree::cluster_authority::ClusterAuthority;
use lotus_node::agree::loss::{self, Loss};
use lotus_node::config::file::ClusterFile;
use lotus_node::config::name::NodeName;

/// Flag that gives consent.
pub const DISCARD: &str = "--discard";
/// Flag that permits losses on other hosts.
const FORCE: &str = "--force";

/// Permitted loss for nodes of other hosts when the nodes of this host end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Others {
    /// Nothing that serving nodes of other hosts need.
    LoseNothing,
    /// Any loss, by the operator's order.
    MayLose,
}

/// Ways to obtain the operator's consent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Consent {
    /// No question is needed.
    Given,
    /// A person can answer.
    Ask,
    /// There is no person: the flag decides.
    Refused,
}

/// Decides whether `down` needs consent: no consent is needed if a snapshot comes first, or if a
/// flag waives the snapshot (`discards`).
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

/// Checks that the operator consents to the end of running nodes; asks at a terminal.
///
/// # Errors
/// A sentence: consent is missing, and no node was ended.
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

/// Checks that nodes of other hosts do not need the nodes that run `here`, or that the operator has
/// accepted the loss.
///
/// # Errors
/// A sentence about the loss. Nothing was ended.
pub fn check_others(file: &ClusterFile, here: &[NodeName], others: Others) -> Result<(), String> {
    let all_here = NodeName::all(file).all(|node| here.contains(&node));
    if all_here || others == Others::MayLose {
        return Ok(());
    }
    let authority = ClusterAuthority::of(file)?;
    // Distinguishes an authority that has ended from a silent authority.
    authority.stay(&Env::real(0));
    let refused =
        |lost: &Loss| Err(format!("{lost}. Nothing was ended; {FORCE} ends them all the same"));
    match loss::look(file, &authority, here) {
        Ok(None) => Ok(()),
        Ok(Some(lost)) => refused(&lost),
        // The authority's process has ended, and the cluster with it; or its life in etcd has.
        Err(_) if authority.silence() == Duration::MAX => Ok(()),
        Err(_) if authority.has_lives() && matches!(authority.life(), Ok(None)) => Ok(()),
        Err(_) => refused(&Loss::Unknown),
    }
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
