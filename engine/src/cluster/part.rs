//! The part of a cluster hosted by this process, and the agreement of processes at the start.
//!
//! # What it is
//! A cluster's compute nodes may live in several processes. A process has a [`Part`] of the compute
//! nodes, and processes share only memory nodes and an authority. Processes learn of one another
//! through the authority:
//!
//! | key | is | written by |
//! |---|---|---|
//! | `membership` | every compute node and its incarnation | the founder, before the charter |
//! | `charter` | the settings that all processes must share | the founder, last |
//! | `joined/N` | first process of compute node N, or that none came | that process, or a member |
//! | `tables` | the `catalogue`, with the secret of names | the process that makes a table |
//! | `loaded` | whether all data is there (`loaded`) | founder, or process that finds it dead |
//!
//! The founder is the process of compute node 0. Other processes wait for the charter: a readable
//! charter means that all memory is registered and formatted (I86).
//!
//! # What may fail
//! Everything that a node needs (its lock table, threads) is made before the node joins. Between
//! joining and the first beat a node posts one batch of verbs. A node that has joined and does not
//! beat is expelled like a node that has stopped beating (`members`), and its place can be taken
//! again. Keys are written [once](crate::cluster::once), so a lost answer makes no difference.
//!
//! # If it stops anywhere
//! A founder that dies before the charter is written leaves memory nodes with unusable regions; the
//! founder's next process writes `cut short` in place of the charter, and the cluster has to be
//! made anew, memory nodes included. A process that restarts nodes waits until the other nodes have
//! settled the work of the earlier lives, and [takes part again](crate::cluster::rejoin). Of two
//! such processes one succeeds.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lotus_authority::{Authority, AuthorityError, EmbeddedAuthority, allocate_incarnation};
use lotus_fabric::ids::{Epoch, Incarnation, NodeId};
use lotus_points::point_here;
use lotus_recovery::Membership;
use lotus_recovery::membership::{self, FIRST_EPOCH};
use lotus_router::{Owner, Placement};

use crate::api::config::{Config, TimestampKind};
use crate::api::error::ClusterError;
use crate::cluster::loaded::{Data, LoadWatch, cut_short};
use crate::cluster::once::{Unanswered, name_process, until_answered, write_once};
use crate::cluster::rejoin::{self, Life, RejoinPaths};
use crate::membership::absent::joined_key;
use crate::node::control::Control;
use crate::node::shared::Peer;

/// Key of the charter.
const CHARTER_KEY: &str = "charter";
/// Value of the charter's key if the founder died before it wrote the charter.
const NO_CHARTER: &str = "cut short";
const NOT_MADE: &str = "compute node 0 ended before it had made the cluster";
/// Time for which the founder's next process waits for the previous process, which may be alive.
const FOUNDING: Duration = Duration::from_secs(10);
/// Interval at which a waiting process reads the charter again.
const PAUSE: Duration = Duration::from_millis(20);

/// Reason why a process waits before its compute nodes take part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Wait {
    /// The process of compute node 0 has not made the cluster yet.
    Founding,
    /// The other compute nodes have not settled the work of the nodes' earlier lives yet.
    Recovery,
    /// The authority does not answer.
    Authority,
    /// The path between this node and a member is broken.
    Path {
        /// Place of the member among the compute nodes.
        to: usize,
    },
}

/// Callback for every check of a wait; `Break` ends the wait with [`ClusterError::Interrupted`].
pub(crate) type Waiting = Arc<dyn Fn(Wait) -> ControlFlow<()> + Send + Sync>;

/// Compute nodes hosted by this process, and the authority shared with other processes.
#[derive(Clone, Default)]
pub(crate) enum Part {
    /// All compute nodes.
    #[default]
    Whole,
    /// Some compute nodes.
    Share {
        /// Places of the hosted nodes among the compute nodes.
        hosted: Vec<usize>,
        authority: Arc<dyn Authority>,
        /// Longest wait for the founder.
        patience: Duration,
        /// Callback for every check of a wait.
        waiting: Waiting,
    },
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("Whole"),
            Self::Share { hosted, .. } => write!(f, "Share({hosted:?})"),
        }
    }
}

impl Part {
    /// Returns the places of this process's compute nodes, in order.
    pub(crate) fn hosted(&self, config: &Config) -> Vec<usize> {
        match self {
            Self::Whole => (0..config.compute_nodes).collect(),
            Self::Share { hosted, .. } => hosted.clone(),
        }
    }

    pub(crate) fn is_whole(&self) -> bool {
        matches!(self, Self::Whole)
    }

    pub(crate) fn authority(&self) -> Arc<dyn Authority> {
        match self {
            Self::Whole => Arc::new(EmbeddedAuthority::new()),
            Self::Share { authority, .. } => Arc::clone(authority),
        }
    }

    /// Whether this process makes the cluster.
    pub(crate) fn founds(&self, config: &Config) -> bool {
        self.hosted(config).first() == Some(&0)
    }

    /// Checks the part against the settings, as far as possible without other processes.
    pub(crate) fn check(&self, config: &Config) -> Result<(), ClusterError> {
        let Self::Share { hosted, .. } = self else { return Ok(()) };
        let refuse = |sentence: &str| Err(ClusterError::Setting(sentence.to_owned()));
        if hosted.is_empty() || !hosted.is_sorted_by(|one, next| one < next) {
            return refuse(
                "a process has at least one compute node, and names each once, in order",
            );
        }
        if hosted.iter().any(|index| *index >= config.compute_nodes) {
            return refuse("a process cannot have a compute node that the cluster has not");
        }
        if hosted.len() < config.compute_nodes && config.timestamps == TimestampKind::Clock {
            return refuse("processes share no clock: a cluster of several needs the oracle");
        }
        Ok(())
    }

    /// Longest wait for other processes.
    fn patience(&self) -> Duration {
        match self {
            Self::Whole => Duration::ZERO,
            Self::Share { patience, .. } => *patience,
        }
    }

    /// Asks the authority until an answer comes, for at most [`Self::patience`].
    pub(crate) fn ask<T, E: Unanswered>(
        &self,
        control: &Control,
        ask: impl FnMut() -> Result<T, E>,
    ) -> Result<T, ClusterError>
    where
        ClusterError: From<E>,
    {
        match self {
            Self::Whole => until_answered(control, Duration::ZERO, || Ok(()), ask),
            Self::Share { patience, waiting, .. } => {
                until_answered(control, *patience, || look(Wait::Authority, waiting), ask)
            }
        }
    }

    /// Takes a place among the members for each hosted node; a later process comes as another life
    /// (I88). Waits for the founder, unless this process founds, and for the other nodes if a
    /// hosted node has been started before. `placement` is the initial placement.
    pub(crate) fn enter(
        &self,
        config: &Config,
        peers: &[Peer],
        placement: &Placement,
        control: &Control,
        authority: &dyn Authority,
    ) -> Result<Arrival, ClusterError> {
        let founds = self.founds(config);
        if !founds {
            self.await_charter(config, self.patience(), control, authority)?;
        }
        let name = self.ask(control, || name_process(authority))?;
        let hosted: Vec<Peer> = self.hosted(config).iter().map(|index| peers[*index]).collect();
        for Peer { index, .. } in &hosted {
            let key = joined_key(*index);
            if self.ask(control, || write_once(authority, &key, &name))? != name {
                return self.enter_again(config, &hosted, placement, control, authority);
            }
        }
        point_here!(hosted[0].id.0, Joined);
        if founds {
            let take = || allocate_incarnation(authority);
            let taken = peers.iter().map(|_| self.ask(control, take));
            let incarnations = taken.collect::<Result<Vec<Incarnation>, _>>()?;
            debug_assert!(
                incarnations.windows(2).all(|pair| pair[0] < pair[1]),
                "I48: an incarnation is handed out once"
            );
            let ids = peers.iter().map(|peer| peer.id);
            return Ok(Arrival::Founder(Membership::new(ids.zip(incarnations))));
        }
        let members = self.ask(control, || membership::read(authority))?;
        if members.members().len() != peers.len() {
            return Err(ClusterError::Damaged);
        }
        // This process's nodes may have been expelled during a long pause after joining.
        let is_first = |peer: &Peer| {
            let member = members.member(peer.id);
            member.is_some_and(|one| members.is_live(peer.id) && one.joined == FIRST_EPOCH)
        };
        match hosted.iter().all(is_first) {
            true => Ok(Arrival::Joined(members)),
            false => self.enter_again(config, &hosted, placement, control, authority),
        }
    }

    /// As [`Self::enter`], if a hosted node has been started before.
    fn enter_again(
        &self,
        config: &Config,
        hosted: &[Peer],
        placement: &Placement,
        control: &Control,
        authority: &dyn Authority,
    ) -> Result<Arrival, ClusterError> {
        let node = hosted[0].index;
        let Self::Share { patience, waiting, .. } = self else {
            return Err(ClusterError::JoinedBefore { node });
        };
        let founds = self.founds(config);
        // A founder that has died before it wrote the charter has left no cluster to rejoin.
        let founding = if founds { FOUNDING.min(*patience) } else { *patience };
        match self.await_charter(config, founding, control, authority) {
            Err(ClusterError::NotFounded { .. }) if founds => {
                let none = NO_CHARTER.as_bytes();
                let stands = self.ask(control, || write_once(authority, CHARTER_KEY, none))?;
                if stands == none {
                    self.ask(control, || cut_short(authority, NOT_MADE))?;
                }
                read_charter(stands, &charter(config))?;
            }
            outcome => outcome?,
        }
        let places: Vec<(NodeId, usize)> = hosted.iter().map(|one| (one.id, one.index)).collect();
        let mut now = control.now();
        let deadline = now.after(*patience);
        let mut load = LoadWatch::new(*patience);
        let mut gate = RejoinPaths::new(config.lease.unwrap_or_default());
        loop {
            // A cluster that was cut short admits no node. If no other process is left, the
            // founder's next process must notice by itself.
            let data = match founds {
                true => load.ask(now, hosted[0].id, authority).ok(),
                false => Data::read(authority).ok(),
            };
            if let Some(Data::CutShort { why }) = data {
                return Err(ClusterError::CutShort { why });
            }
            if config.lease.is_none() {
                return Err(ClusterError::JoinedBefore { node });
            }
            let blocked = gate.blocked_by(&places, placement, control, authority);
            let attempted = match &blocked {
                Ok(None) => rejoin::attempt(&places, placement, control, authority),
                _ => Ok(None),
            };
            let (wait, late) = match (blocked, attempted) {
                (_, Ok(Some(life))) => return Ok(Arrival::Returned(life)),
                (Ok(Some(member)), _) => {
                    let member = member_index(config, member);
                    (Wait::Path { to: member }, ClusterError::CutOff { node, member })
                }
                // The authority may answer later.
                (Err(error), _) | (_, Err(error)) => (Wait::Recovery, error),
                (_, Ok(None)) => (Wait::Recovery, ClusterError::JoinedBefore { node }),
            };
            if now >= deadline {
                return Err(late);
            }
            pause(wait, waiting, control)?;
            now = control.now();
        }
    }

    /// Waits until the cluster has been made, and checks that the charter has this process's
    /// settings.
    fn await_charter(
        &self,
        config: &Config,
        patience: Duration,
        control: &Control,
        authority: &dyn Authority,
    ) -> Result<(), ClusterError> {
        let Self::Share { waiting, .. } = self else { return Ok(()) };
        let deadline = control.now().after(patience);
        loop {
            match authority.read(CHARTER_KEY) {
                Ok(Some(found)) => return read_charter(found.value, &charter(config)),
                Ok(None) if control.now() >= deadline => {
                    return Err(ClusterError::NotFounded { waited: patience });
                }
                Err(error) if control.now() >= deadline => return Err(error.into()),
                _ => pause(Wait::Founding, waiting, control)?,
            }
        }
    }
}

/// Returns the place of a member among the compute nodes, which are numbered after the memory
/// nodes.
fn member_index(config: &Config, member: NodeId) -> usize {
    usize::from(member.0) - config.memory_nodes
}

/// Pauses between two checks of a wait, unless the callback ends the wait.
fn pause(wait: Wait, waiting: &Waiting, control: &Control) -> Result<(), ClusterError> {
    look(wait, waiting)?;
    control.pause(PAUSE);
    Ok(())
}

fn look(wait: Wait, waiting: &Waiting) -> Result<(), ClusterError> {
    match waiting(wait) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ClusterError::Interrupted),
    }
}

/// How a process has come to its part.
pub(crate) enum Arrival {
    /// The process makes the cluster.
    Founder(Membership),
    /// The nodes take the places that the founder has made for them.
    Joined(Membership),
    /// The nodes have taken part before, in earlier lives.
    Returned(Life),
}

impl Arrival {
    pub(crate) fn founds(&self) -> bool {
        matches!(self, Self::Founder(_))
    }

    /// Whether the nodes have their words in the memory pool already.
    pub(crate) fn is_announced(&self) -> bool {
        matches!(self, Self::Returned(_))
    }

    pub(crate) fn members(&self) -> &Membership {
        match self {
            Self::Founder(members) | Self::Joined(members) => members,
            Self::Returned(life) => &life.members,
        }
    }

    /// Returns the owners of all shards; empty for the initial owners, as far as known.
    pub(crate) fn owners(&self) -> &[Owner] {
        match self {
            Self::Founder(_) | Self::Joined(_) => &[],
            Self::Returned(life) => &life.owners,
        }
    }

    /// Returns the access epoch of the process.
    pub(crate) fn epoch(&self) -> Epoch {
        match self {
            Self::Founder(_) | Self::Joined(_) => FIRST_EPOCH,
            Self::Returned(life) => life.members.epoch(),
        }
    }
}

/// Writes the membership and the charter, so that the cluster counts as made.
pub(crate) fn found(
    config: &Config,
    part: &Part,
    members: &Membership,
    control: &Control,
    authority: &dyn Authority,
) -> Result<(), ClusterError> {
    part.ask(control, || match membership::found(authority, members) {
        // Only this process founds: an earlier attempt of this process has written the membership.
        Err(AuthorityError::Conflict { .. }) => Ok(()),
        outcome => outcome,
    })?;
    let ours = charter(config);
    read_charter(part.ask(control, || write_once(authority, CHARTER_KEY, ours.as_bytes()))?, &ours)
}

/// Compares the stored charter with the charter of this process.
fn read_charter(found: Vec<u8>, ours: &str) -> Result<(), ClusterError> {
    if found == NO_CHARTER.as_bytes() {
        return Err(ClusterError::CutShort { why: NOT_MADE.to_owned() });
    }
    let found = String::from_utf8(found).map_err(|_| ClusterError::Damaged)?;
    compare(&found, ours)
}

/// Returns the settings that all processes must have in common, one per line.
fn charter(config: &Config) -> String {
    let Config { memory_nodes, compute_nodes, replicas, threads, coroutines, .. } = config;
    let Config { memory_limit, max_writes, lease, locks, lock_wait, timestamps, .. } = config;
    let Config { read_rule, visible_order, retention, balance, .. } = config;
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "version {version}\nmemory nodes {memory_nodes}\ncompute nodes {compute_nodes}\n\
         replicas {replicas}\ncoordinators {threads}\ncoroutines {coroutines}\n\
         memory limit {memory_limit}\nwrites {max_writes}\nlease {lease:?}\nlocks {locks:?}\n\
         lock wait {lock_wait:?}\n\
         timestamps {timestamps:?}\nread rule {read_rule:?}\nvisible order {visible_order:?}\n\
         retention {retention:?}\nbalance {balance:?}\n"
    )
}

fn compare(found: &str, ours: &str) -> Result<(), ClusterError> {
    let mut lines = found.lines().zip(ours.lines());
    match lines.find(|(theirs, ours)| theirs != ours) {
        Some((theirs, ours)) => {
            Err(ClusterError::OtherSettings { theirs: theirs.to_owned(), ours: ours.to_owned() })
        }
        None if found.lines().count() == ours.lines().count() => Ok(()),
        None => Err(ClusterError::Damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_between_charters_is_named() {
        let config = Config::default();
        let ours = charter(&config);
        assert!(compare(&ours, &ours).is_ok());
        let cases = [
            (Config { coroutines: 8, ..config.clone() }, "coroutines 8"),
            (Config { replicas: 2, threads: 9, ..config.clone() }, "replicas 2"),
            (Config { lease: Some(Duration::from_secs(1)), ..config }, "lease Some(1s)"),
        ];
        for (other, line) in cases {
            let refused = compare(&charter(&other), &ours).expect_err("they differ");
            assert!(refused.to_string().contains(line), "{refused}");
        }
        assert!(matches!(compare("", &ours), Err(ClusterError::Damaged)));
    }

    #[test]
    fn parts_that_make_no_sense_are_refused() {
        let authority = || -> Arc<dyn Authority> { Arc::new(EmbeddedAuthority::new()) };
        let part = |hosted: &[usize]| Part::Share {
            hosted: hosted.to_vec(),
            authority: authority(),
            patience: Duration::ZERO,
            waiting: Arc::new(|_| ControlFlow::Continue(())),
        };
        let clock = Config { compute_nodes: 3, ..Config::default() };
        let oracle = Config { timestamps: TimestampKind::Oracle, ..clock.clone() };
        for (hosted, config, sound) in [
            (&[0, 2][..], &oracle, true),
            (&[0, 1, 2], &clock, true),
            (&[0, 2], &clock, false),
            (&[], &oracle, false),
            (&[1, 0], &oracle, false),
            (&[1, 1], &oracle, false),
            (&[3], &oracle, false),
        ] {
            assert_eq!(part(hosted).check(config).is_ok(), sound, "{hosted:?}");
        }
    }
}
