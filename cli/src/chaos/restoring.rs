//! Restores under faults: ends the cluster with a snapshot, as `lotus cluster down` does, and
//! starts it from that snapshot, while nodes are struck.
//!
//! # The operator's part
//! A node that has ended is restarted, as by an init system. If a restart does not help, all nodes
//! are ended without a snapshot, and the cluster starts anew from the last snapshot ([`next`]
//! decides): when the founder has ended before all data was restored, or the host of the authority
//! has ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lotus::Data;
use lotus_benchmarks::audit::Check;
use lotus_fabric::env::Env;

use super::copies::{Copies, TAKING};
use super::events::Restore;
use super::round::StopOnDrop;
use super::schedule::{Fault, Strike};
use super::striker::Nodes;
use crate::operate::commands::{restart, start_processes, stop};
use crate::operate::status::LOST;
use lotus_node::agree::cluster_authority::{ClusterAuthority, Silent};
use lotus_node::config::file::ClusterFile;
use lotus_node::config::name::{NodeKind, NodeName};
use lotus_node::host::polling::{PAUSE, wait_until};
use lotus_node::requests::copier;
use lotus_node::snapshots::{Digest, Snapshot};
use lotus_runner::show::steps::Steps;

/// Time limit for all nodes to serve, before the cluster starts anew.
const STARTING: Duration = Duration::from_secs(120);
/// Maximum number of restarts of nodes in one attempt.
const MOST_RESTARTS: usize = 12;
/// Maximum number of attempts to start the cluster, and to end it with a snapshot.
const MOST_ATTEMPTS: usize = 6;
/// Time after which a lost memory node is not expected to return on its own.
const OUT_FOR_LONG: Duration = Duration::from_secs(20);
/// Node that hosts the authority, or begins the cluster's life in an authority elsewhere.
const HOST: NodeName = NodeName { kind: NodeKind::Memory, index: 0 };

/// A cluster to be ended and restarted.
pub struct Restoring<'a> {
    pub file: &'a ClusterFile,
    pub nodes: &'a Nodes,
    pub steps: &'a Steps,
}

/// Result of a restore.
pub struct Restored {
    /// Number of running nodes struck.
    pub struck: usize,
    /// Number of times that the whole cluster started anew.
    pub begun_anew: usize,
    /// Whether all data survived the restore.
    pub check: Check,
}

/// State of starting nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Look {
    all_serve: bool,
    /// Whether the founder ended before all data was restored.
    not_whole: bool,
    ended: Vec<NodeName>,
    /// Memory nodes that the membership has given up. Their processes do not end on their own.
    lost: Vec<NodeName>,
}

/// Next step of the operator.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Move {
    Wait,
    /// Restart these nodes.
    Start(Vec<NodeName>),
    /// End all nodes and start anew, for the given reason.
    BeginAnew(&'static str),
    Done,
}

/// Steps taken so far, and elapsed time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Efforts {
    /// Number of restarts of nodes.
    restarts: usize,
    waited: Duration,
    since_last_start: Duration,
}

/// Next step of an operator, given the state of the nodes and the steps so far.
fn next(look: &Look, hosts_authority: bool, efforts: Efforts) -> Move {
    let Efforts { restarts, waited, since_last_start } = efforts;
    match look {
        Look { all_serve: true, .. } => Move::Done,
        Look { not_whole: true, .. } => Move::BeginAnew("not all data was there"),
        Look { ended, .. } if hosts_authority && ended.contains(&HOST) => {
            Move::BeginAnew("the host of the authority has ended")
        }
        Look { ended, .. } if restarts + ended.len() > MOST_RESTARTS => {
            Move::BeginAnew("nodes end again and again")
        }
        _ if waited > STARTING => Move::BeginAnew("not all nodes serve in time"),
        Look { ended, .. } if !ended.is_empty() => Move::Start(ended.clone()),
        Look { lost, .. } if !lost.is_empty() && since_last_start > OUT_FOR_LONG => {
            Move::Start(lost.clone())
        }
        _ => Move::Wait,
    }
}

impl Restoring<'_> {
    /// Ends the cluster with a snapshot and starts it from that snapshot, under the strikes of
    /// `restore`.
    ///
    /// # Errors
    /// A sentence: no attempt to end the cluster takes a snapshot, or the cluster does not come
    /// back.
    pub fn carry_out(
        &self,
        authority: &ClusterAuthority,
        restore: &Restore,
        copies: &mut Copies,
    ) -> Result<Restored, String> {
        self.steps.say("compute nodes come to rest, and a snapshot is taken");
        let ending = || self.end(authority, copies);
        let (last, ended) = self.while_struck(&restore.ending, ending)?;
        copies.struck += usize::from(ended > 0);
        let last = last?;
        let before = Digest::of(&last.path)?;
        self.steps.say("nodes end");
        stop(self.file, Silent::MayLive, self.steps)?;
        self.steps.say("nodes start from the snapshot");
        let (begun_anew, started) = self.while_struck(&restore.starting, || self.start())?;
        let begun_anew = begun_anew?;
        let check = self.look_at_data(&last, &before, copies)?;
        Ok(Restored { struck: ended + started, begun_anew, check })
    }

    /// Takes the last snapshot, with retries.
    fn end(&self, authority: &ClusterAuthority, copies: &mut Copies) -> Result<Snapshot, String> {
        let mut attempts = 0;
        loop {
            let taken = copier::take_last(self.file, authority, TAKING).map(|(_, taken)| taken);
            copies.hear(self.file.snapshots.as_ref(), taken.clone());
            attempts += 1;
            match taken {
                Err(why) if attempts < MOST_ATTEMPTS => {
                    if let Some(hopeless) = self.await_all()? {
                        return Err(format!("{why}; and {hopeless}"));
                    }
                }
                taken => return taken,
            }
        }
    }

    /// Starts the nodes until the whole cluster serves; returns the number of times that the whole
    /// cluster started anew.
    fn start(&self) -> Result<usize, String> {
        let mut begun_anew = 0;
        loop {
            let why = match self.start_once() {
                Ok(None) => return Ok(begun_anew),
                Ok(Some(why)) => why.to_owned(),
                Err(why) => why,
            };
            begun_anew += 1;
            if begun_anew == MOST_ATTEMPTS {
                return Err(format!("the cluster does not start from its snapshot: {why}"));
            }
            self.steps.say(format!("all is begun anew: {why}"));
            // A paused node could not even end.
            self.nodes.resume_all()?;
            stop(self.file, Silent::MayLive, self.steps)?;
        }
    }

    /// Starts the nodes and waits until every node serves; returns a reason to start anew, if any.
    fn start_once(&self) -> Result<Option<&'static str>, String> {
        let all: Vec<NodeName> = self.nodes.all().collect();
        start_processes(self.file, &all, STARTING)?;
        self.await_all()
    }

    /// Restarts nodes that end, until every node serves; returns a reason to start anew, if any.
    fn await_all(&self) -> Result<Option<&'static str>, String> {
        let hosts_authority = !self.file.authority.outlives_the_cluster();
        let env = Env::real(0);
        let began = env.now();
        let (mut restarts, mut last_start, mut whole) = (0, began, false);
        loop {
            let now = env.now();
            let (waited, since_last_start) = (now.since(began), now.since(last_start));
            let efforts = Efforts { restarts, waited, since_last_start };
            match next(&self.look()?, hosts_authority, efforts) {
                // A paused node may learn only now that it was expelled.
                Move::Done if !whole => {
                    whole = true;
                    let lease = self.file.settings.lease.unwrap_or_default();
                    wait_until(&env, lease * 2, || false);
                }
                Move::Done => return Ok(None),
                Move::BeginAnew(why) => return Ok(Some(why)),
                Move::Start(ended) => {
                    whole = false;
                    restarts += ended.len();
                    last_start = now;
                    ended.into_iter().try_for_each(|node| restart(self.file, node))?;
                }
                Move::Wait => whole = false,
            }
            wait_until(&env, PAUSE, || false);
        }
    }

    fn look(&self) -> Result<Look, String> {
        let authority = lotus_node::agree::cluster_authority::authority(self.file)?;
        let survey = self.nodes.survey(&authority);
        let is_lost =
            |node: &NodeName| node.kind == NodeKind::Memory && survey.state(*node) == LOST;
        Ok(Look {
            all_serve: survey.all_serve(),
            not_whole: matches!(survey.data(), Some(Data::CutShort { .. })),
            ended: self.nodes.all().filter(|node| self.nodes.has_ended(*node)).collect(),
            lost: self.nodes.all().filter(is_lost).collect(),
        })
    }

    /// Checks that the cluster started from the snapshot `last` and has all of its data, by taking
    /// another snapshot before there is load.
    fn look_at_data(
        &self,
        last: &Snapshot,
        before: &Digest,
        copies: &mut Copies,
    ) -> Result<Check, String> {
        let authority = lotus_node::agree::cluster_authority::authority(self.file)?;
        let restored = Snapshot::restored(&authority)?.map(|restored| restored.sequence);
        let taken = copier::take(self.file, &authority, TAKING).map(|(_, taken)| taken);
        copies.hear(self.file.snapshots.as_ref(), taken.clone());
        let after = Digest::of(&taken?.path)?;
        Ok(judge(last.sequence, before, restored, &after))
    }

    /// Runs `doing` while nodes are struck on schedule; returns its result, and the number of
    /// running nodes struck. Resumes all nodes at the end.
    fn while_struck<T>(
        &self,
        strikes: &[Strike],
        doing: impl FnOnce() -> T,
    ) -> Result<(T, usize), String> {
        let over = AtomicBool::new(false);
        let (done, struck) = std::thread::scope(|scope| {
            let stop = StopOnDrop(&over);
            let striking = scope.spawn(|| self.strike(strikes, &over));
            let done = doing();
            drop(stop);
            let struck = striking.join();
            (
                done,
                struck.unwrap_or_else(|_| Err("the thread that strikes has panicked".to_owned())),
            )
        });
        self.nodes.resume_all()?;
        Ok((done, struck?))
    }

    fn strike(&self, strikes: &[Strike], over: &AtomicBool) -> Result<usize, String> {
        let env = Env::real(0);
        let began = env.now();
        let mut struck = 0;
        for strike in strikes {
            let due = Duration::from_millis(strike.at_ms);
            let is_over = || over.load(Ordering::Relaxed);
            let mut ended = false;
            wait_until(&env, Duration::MAX, || {
                ended = is_over();
                ended || env.now().since(began) >= due
            });
            if ended {
                break;
            }
            let runs = self.nodes.process(strike.node).is_some();
            // A killed node may already have been restarted.
            if strike.fault != Fault::Restart || !runs {
                self.nodes.carry_out(*strike)?;
            }
            struck += usize::from(runs && strike.fault.goes_away());
        }
        Ok(struck)
    }
}

/// Checks that a cluster started from its last snapshot, and has the data of that snapshot (I233).
/// `restored` is the snapshot from which the cluster started.
fn judge(last: u64, before: &Digest, restored: Option<u64>, after: &Digest) -> Check {
    let begun = restored.map_or("none".to_owned(), |restored| format!("number {restored}"));
    let detail = match (restored == Some(last), before == after) {
        (true, true) => format!("number {last}: {}", before.in_words()),
        (false, _) => format!("ended with number {last}, begun with {begun}"),
        (true, false) => {
            format!(
                "number {last} had {}, and now there are {}",
                before.in_words(),
                after.in_words()
            )
        }
    };
    let all = restored == Some(last) && before == after;
    Check::new("all data is there after each restore", all, detail)
}

#[cfg(test)]
mod tests {
    use lotus::{SnapshotVisitor, TableSpec};

    use super::*;

    #[test]
    fn whoever_has_ended_is_started_again_and_all_is_begun_anew_where_that_is_of_no_use() {
        let founder = NodeName::compute(0);
        let ended = |nodes: &[NodeName]| Look { ended: nodes.to_vec(), ..Look::default() };
        let some = Efforts { restarts: 3, waited: Duration::from_secs(5), ..Efforts::default() };
        let many = Efforts { restarts: MOST_RESTARTS, ..some };
        let late = Efforts { waited: STARTING + PAUSE, ..some };
        let next = |look: &Look, efforts| next(look, true, efforts);
        assert_eq!(next(&Look::default(), some), Move::Wait);
        assert_eq!(next(&ended(&[founder]), some), Move::Start(vec![founder]));
        assert!(matches!(next(&ended(&[founder, HOST]), some), Move::BeginAnew(_)));
        assert_eq!(super::next(&ended(&[HOST]), false, some), Move::Start(vec![HOST]));
        let not_whole = Look { not_whole: true, ..ended(&[founder]) };
        assert_eq!(next(&not_whole, some), Move::BeginAnew("not all data was there"));
        assert!(matches!(next(&ended(&[founder]), many), Move::BeginAnew(_)));
        assert!(matches!(next(&Look::default(), late), Move::BeginAnew(_)));
        let serve = Look { all_serve: true, ..Look::default() };
        assert_eq!(next(&serve, Efforts { waited: late.waited, ..many }), Move::Done);
    }

    /// A memory node had stood still for longer than the lease as it started. Its process lived, so
    /// it was not started again, and nothing else brought it back.
    #[test]
    fn a_memory_node_that_is_lost_is_started_again_after_a_while() {
        let memory = NodeName { kind: NodeKind::Memory, index: 2 };
        let lost = Look { lost: vec![memory], ..Look::default() };
        let after = |since_last_start| Efforts { since_last_start, ..Efforts::default() };
        assert_eq!(next(&lost, true, after(OUT_FOR_LONG)), Move::Wait);
        assert_eq!(next(&lost, true, after(OUT_FOR_LONG + PAUSE)), Move::Start(vec![memory]));
    }

    #[test]
    fn a_row_that_is_missing_or_another_snapshot_is_a_finding() {
        let digest = |rows: &[(u64, &[u8])]| {
            let mut digest = Digest::default();
            digest.table(TableSpec::new("rows")).expect("it is taken");
            for (key, value) in rows {
                digest.row((*key).into(), value).expect("it is taken");
            }
            digest
        };
        let before = digest(&[(1, b"one"), (2, b"two")]);
        let check = |restored, after: &Digest| judge(7, &before, restored, after);
        assert!(check(Some(7), &digest(&[(2, b"two"), (1, b"one")])).passed);
        assert!(!check(Some(6), &before).passed && !check(None, &before).passed);
        assert!(!check(Some(7), &digest(&[(1, b"one")])).passed);
        assert!(!check(Some(7), &digest(&[(1, b"one"), (2, b"twn")])).passed);
        assert!(!check(Some(7), &digest(&[(1, b"two"), (2, b"one")])).passed);
    }
}
