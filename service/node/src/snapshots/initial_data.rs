//! The decision with which data a cluster begins, made by compute node 0 from the holdings of all
//! compute nodes' hosts. Pure.
//!
//! # Which snapshot
//! The newest snapshot present or known on any host, or none: beginning with an older snapshot
//! loses the commits between the two, and beginning afresh loses all commits. So either choice
//! needs the operator's consent ([`IfDamaged`], I350). The newest snapshot is of the latest life,
//! and has the highest number in that life.
//!
//! # Branches
//! After the operator has begun with an older snapshot, the newer snapshots are of an earlier life,
//! and no longer in the way. Snapshots of two lives that began independently cannot be compared
//! (I351): nothing begins until the snapshots of one life are moved away.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lotus::SnapshotLife;

use super::holding::{ClusterMark, HeldFile, Holding, KnownSnapshot};
use super::snapshot_files::Rank;
use crate::config::name::NodeName;
use crate::config::snapshots::IfDamaged;

/// Flag that begins with an older snapshot.
const OLDER: &str = "--older-snapshot";
/// Flag that begins without a snapshot.
const FRESH: &str = "--fresh";

/// Data with which a cluster begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InitialData {
    /// Snapshots to begin with, the newest first; a later path is used only if all before it are
    /// damaged and an older snapshot is allowed. Empty if the cluster begins with the data of the
    /// file.
    pub paths: Vec<PathBuf>,
    /// The life that begins.
    pub life: SnapshotLife,
    /// Highest number of any snapshot so far.
    pub last: u64,
}

/// Evidence for the decision.
pub struct Evidence<'a> {
    /// Holding of compute node 0's host.
    pub own: &'a Holding,
    /// Holdings that the other compute nodes have reported.
    pub others: &'a [Holding],
    /// Compute nodes without a report.
    pub silent: &'a [NodeName],
    /// Snapshots of other nodes, also readable on this host.
    pub shared: &'a [HeldFile],
    /// Directory of snapshots on this host.
    pub directory: &'a Path,
    /// The operator's choice.
    pub choice: IfDamaged,
    /// Random ids for a new cluster, and for a new life.
    pub drawn: (u64, u64),
}

impl Evidence<'_> {
    fn holdings(&self) -> impl Iterator<Item = &Holding> {
        std::iter::once(self.own).chain(self.others)
    }

    fn held(&self) -> impl Iterator<Item = (NodeName, &HeldFile)> {
        self.holdings().flat_map(|one| one.held.iter().map(|held| (one.node, held)))
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> {
        let known = self.holdings().filter_map(|one| one.lived.as_ref()?.newest.as_ref());
        let known = known.map(|known| known.rank);
        self.held().filter_map(|(_, held)| held.rank).chain(known)
    }

    /// The latest mark.
    fn lived(&self) -> Option<ClusterMark> {
        self.holdings().filter_map(|one| one.lived.clone()).reduce(ClusterMark::later)
    }

    /// Snapshots that can be restored on this host, the newest first.
    fn at_hand(&self) -> Vec<&HeldFile> {
        let mut at_hand: Vec<&HeldFile> = self.own.held.iter().chain(self.shared).collect();
        at_hand.sort_by_key(|held| std::cmp::Reverse((held.rank.is_none(), held.rank)));
        at_hand
    }

    /// The life that begins.
    fn next_life(&self) -> SnapshotLife {
        let (cluster, id) = self.drawn;
        let marks = self.holdings().filter_map(|one| Some(one.lived.as_ref()?.life));
        let lives = self.ranks().map(|rank| rank.life).chain(marks);
        let last = lives.filter(|life| life.number > 0).max();
        let SnapshotLife { number, cluster, .. } =
            last.unwrap_or(SnapshotLife { number: 0, cluster, id });
        SnapshotLife { number: number + 1, cluster, id }
    }

    /// Two snapshots that cannot be compared: of two clusters, or of two latest lives with a common
    /// predecessor.
    fn branches(&self) -> Option<(&HeldFile, &HeldFile, &'static str)> {
        let numbered = || self.held().filter_map(|(_, held)| Some((held, held.rank?.life)));
        let numbered = || numbered().filter(|(_, life)| life.number > 0);
        let latest = numbered().map(|(_, life)| life.number).max()?;
        let mut of = numbered();
        let (first, life) = of.next()?;
        if let Some((other, _)) = of.find(|(_, other)| other.cluster != life.cluster) {
            return Some((first, other, "of two clusters"));
        }
        let mut of = numbered().filter(|(_, life)| life.number == latest);
        let (first, life) = of.next()?;
        let (other, _) = of.find(|(_, other)| other.id != life.id)?;
        Some((first, other, "of two lives of the cluster that know nothing of each other"))
    }

    /// Location of the newest snapshot that is known and not at hand, if newer than `best`.
    fn elsewhere(&self, best: Option<Rank>) -> Option<String> {
        let newer = |rank: Option<Rank>| rank > best;
        let theirs = self.others.iter().flat_map(|one| {
            let held = one.held.iter().filter(|held| newer(held.rank));
            held.map(|held| (held.rank, one.node, held))
        });
        let marked = self.holdings().filter_map(|one| one.lived.as_ref()?.newest.as_ref());
        let marked = marked.filter(|known| newer(Some(known.rank))).max_by_key(|known| known.rank);
        let theirs = theirs.max_by_key(|(rank, ..)| *rank);
        match (theirs, marked) {
            (Some((rank, node, held)), marked)
                if marked.is_none_or(|known| Some(known.rank) <= rank) =>
            {
                Some(format!(
                    "the newest snapshot, {}, is on the host of {}: copy {} from there to {} on \
                     this host",
                    in_words(held),
                    node.in_words(),
                    held.path.display(),
                    self.directory.display()
                ))
            }
            (_, Some(KnownSnapshot { rank, node, path })) => Some(format!(
                "the newest snapshot, number {}, was last seen by {} as {}, and no host that was \
                 asked has it: put it into {} on this host",
                rank.sequence,
                node.in_words(),
                path.display(),
                self.directory.display()
            )),
            _ => None,
        }
    }
}

fn in_words(held: &HeldFile) -> String {
    match (held.rank, held.time.as_str()) {
        (Some(rank), "") => format!("number {}", rank.sequence),
        (Some(rank), time) => format!("number {} of {time}", rank.sequence),
        (None, _) => held.path.display().to_string(),
    }
}

/// The way out that loses commits: an older snapshot if there is one, or none.
fn instead(best: Option<&HeldFile>) -> String {
    match best {
        Some(held) => format!(
            "with {OLDER} the cluster begins with {} ({}), and what was committed later is lost",
            in_words(held),
            held.path.display()
        ),
        None => format!(
            "with {FRESH} the cluster begins with the data of its file, and what was committed \
             before is lost"
        ),
    }
}

/// Decides with which data the cluster begins.
///
/// # Errors
/// A sentence: data that may exist would be lost, and the operator has not agreed to the loss.
pub fn decide(evidence: &Evidence<'_>) -> Result<InitialData, String> {
    let last = evidence.ranks().map(|rank| rank.sequence).max().unwrap_or(0);
    let begin = |paths| Ok(InitialData { paths, life: evidence.next_life(), last });
    if evidence.choice == IfDamaged::Afresh {
        return begin(Vec::new());
    }
    if let Some((one, other, what)) = evidence.branches() {
        return Err(format!(
            "there are snapshots {what}, {} and {}: move those away that are not to be used",
            one.path.display(),
            other.path.display()
        ));
    }
    let at_hand = evidence.at_hand();
    let best = at_hand.first().copied();
    let strict = evidence.choice == IfDamaged::Stop;
    if let ([_, ..], true) = (evidence.silent, strict) {
        let names: BTreeSet<_> = evidence.silent.iter().collect();
        let names: Vec<String> = names.into_iter().map(|node| node.in_words()).collect();
        return Err(format!(
            "{} has not said which snapshots its host has, and they may be newer: start it; {}",
            names.join(", "),
            instead(best)
        ));
    }
    let lived = evidence.lived();
    // A file without a rank may be the newest; it is read, and found damaged.
    let is_known = best.is_none_or(|held| held.rank.is_some());
    let rank = best.and_then(|held| held.rank);
    if let (Some(whence), true) = (evidence.elsewhere(rank), (strict && is_known) || best.is_none())
    {
        return Err(format!("{whence}; {}", instead(best)));
    }
    match (best, lived) {
        (Some(_), Some(ClusterMark { life, newest: None }))
            if strict && is_known && rank.is_some_and(|rank| rank.life.number < life.number) =>
        {
            Err(format!(
                "the cluster has begun afresh after its newest snapshot was taken, and has taken \
                 none since; {}, and with {FRESH} with the data of its file",
                instead(best)
            ))
        }
        (None, Some(_)) => Err(format!(
            "the cluster has lived before, and there is no snapshot in {} or on the hosts of the \
             other compute nodes; {}",
            evidence.directory.display(),
            instead(None)
        )),
        _ => begin(at_hand.iter().map(|held| held.path.clone()).collect()),
    }
}

#[cfg(test)]
mod tests;
