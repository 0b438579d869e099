//! Selection of the compute node that serves timestamps, and the bounds of what it issues (H18).
//!
//! # What it is
//! With [`TimestampKind::Oracle`] the longest-serving live compute node issues timestamps for all.
//! When it is expelled the next one *takes over*. A takeover must keep timestamps in order: each is
//! later than all issued before, by any node. Two rules ensure that.
//!
//! 1. *No coordinator is served by two oracles.* The successor issues nothing before every
//!    coordinator of every live node has asked it. A coordinator that has asked it accepts no
//!    answer of an earlier oracle
//!    ([`OracleClient::turn_to`](lotus_mvcc::oracle::OracleClient::turn_to)); and expelled nodes,
//!    the former oracle among them, are first fenced at every memory node. So no node with valid
//!    writes draws a timestamp from a predecessor any more.
//! 2. *No oracle begins below the last.* Timestamps have a bound, which is stored at the authority
//!    before any timestamp up to it is issued. A successor begins after the stored bound, and
//!    storing its own ends the predecessor's: the value names the reigning node, and is changed by
//!    compare-and-swap.
//!
//! A timestamp that was issued in time and arrives late does no harm: when a commit draws one, its
//! cells are INVISIBLE on all replicas already, so every reader with a later snapshot meets them
//! (H1).
//!
//! # If it stops anywhere
//! A successor that dies before it has stored its bound has changed nothing; after that, its own
//! successor finds a higher bound. A node that pauses for however long finds that it is fenced,
//! that the bound is another's, and that no coordinator accepts its answers.
//!
//! # What it is not
//! A lease: no clock is relied on. Nor frequent work for the authority: a bound lasts for minutes,
//! and timestamps follow the nodes' clocks again after a takeover has jumped over the rest of a
//! bound. Without a lease of the membership no node is expelled, and there is neither bound nor
//! successor.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Endpoint, NodeId};
use lotus_fabric::rpc::Rpc;
use lotus_mvcc::Timestamp;
use lotus_mvcc::oracle::{Answer, Asker, OracleServer};
use lotus_mvcc::timestamp::SharedClock;
use lotus_points::{point, point_here};
use lotus_recovery::Membership;
use lotus_recovery::membership::FIRST_EPOCH;
use lotus_router::authority::Version;
use lotus_router::{Authority, AuthorityError};
use lotus_sabotage::{Rule, broken};

use crate::config::TimestampKind;
use crate::coordinator::Coordinator;
use crate::recover;
use crate::shared::{ComputeNode, Shared};

/// Key of the reigning node and its bound at the authority.
const KEY: &str = "lotus/oracle";
/// Distance from the last timestamp issued to a new bound: the longest tolerated silence of the
/// authority, and the most that timestamps jump at a takeover.
const AHEAD: Duration = Duration::from_secs(600);

/// A compute node's part in serving timestamps.
#[derive(Debug)]
pub(crate) struct Oracle {
    clock: SharedClock,
    /// Last timestamp that it may issue; zero while it may issue none.
    bound: AtomicU64,
    /// Coordinators that have asked this node, of all compute nodes: by place, then by coordinator.
    heard: Box<[AtomicBool]>,
    /// Last known incarnation at each place, shifted left by one; the lowest bit is set if it takes
    /// part.
    lives: Box<[AtomicU32]>,
    threads: usize,
}

impl Oracle {
    /// Creates the state of a node among `members`, each with `threads` coordinators.
    pub(crate) fn new(members: &Membership, threads: usize) -> Self {
        let nodes = members.members().len();
        let oracle = Self {
            clock: SharedClock::after(Timestamp::LOADED),
            bound: AtomicU64::new(0),
            heard: (0..nodes * threads).map(|_| AtomicBool::new(false)).collect(),
            lives: (0..nodes).map(|_| AtomicU32::new(0)).collect(),
            threads,
        };
        oracle.admit(members);
        oracle
    }

    fn issue(&self, now: Nanos) -> Option<Timestamp> {
        // Acquire: seeing the bound implies seeing the clock moved past the predecessor's.
        let bound = Timestamp::new(self.bound.load(Ordering::Acquire)).expect("a timestamp");
        self.clock.next_within(now.0, bound)
    }

    /// Issues nothing up to `past` from now on.
    pub(crate) fn skip(&self, past: Timestamp) {
        self.clock.skip(past);
    }

    /// Allows timestamps up to `bound`.
    fn open(&self, bound: Timestamp) {
        self.bound.store(bound.raw(), Ordering::Release);
    }

    fn is_open(&self) -> bool {
        self.bound.load(Ordering::Acquire) != 0
    }

    /// Whether less than half of [`AHEAD`] is left.
    fn runs_low(&self) -> bool {
        let left = self.bound.load(Ordering::Acquire).saturating_sub(self.clock.latest().raw());
        left < ahead() / 2
    }

    /// Learns the incarnations and which of them take part.
    pub(crate) fn admit(&self, now: &Membership) {
        for (known, member) in self.lives.iter().zip(now.members()) {
            let life = u32::from(member.incarnation.raw()) << 1;
            let live = u32::from(now.is_live(member.node));
            // Relaxed: a node expelled a moment ago is fenced before anything rests on it.
            known.store(life | live, Ordering::Relaxed);
        }
    }

    /// Answers the asker at a place. Members alone are given timestamps and count as having asked
    /// this node; an unknown later life may be a member soon.
    fn answer(&self, place: usize, asker: Asker, now: Nanos) -> Answer {
        let known = self.lives[place].load(Ordering::Relaxed);
        let asks = u32::from(asker.life.raw());
        match asks.cmp(&(known >> 1)) {
            Less => Answer::Refused,
            Equal if known & 1 == 0 => Answer::Refused,
            Equal => {
                self.hear(place, asker.at);
                self.issue(now).map_or(Answer::NotYet, Answer::Issued)
            }
            Greater => Answer::NotYet,
        }
    }

    fn hear(&self, peer: usize, from: Endpoint) {
        let thread = usize::from(from.lane.0);
        if thread < self.threads {
            self.heard[peer * self.threads + thread].store(true, Ordering::Release);
        }
    }

    fn has_heard_all_of(&self, peer: usize) -> bool {
        let coordinators = &self.heard[peer * self.threads..][..self.threads];
        coordinators.iter().all(|heard| heard.load(Ordering::Acquire))
    }
}

fn ahead() -> u64 {
    AHEAD.as_nanos() as u64
}

/// Returns the eldest live node. A node that has returned serves only after all older members are
/// expelled, and no life serves twice.
fn who_serves(now: &Membership) -> Option<NodeId> {
    now.by_age().first().map(|eldest| eldest.node)
}

/// Answers timestamp requests at this coordinator, once this node may serve.
pub(crate) fn serve(shared: &Arc<Shared>, node: &Arc<ComputeNode>, rpc: &Rpc) {
    if shared.config.lease.is_none() && node.index == 0 {
        node.oracle.open(Timestamp::MAX);
    }
    let (shared, node) = (Arc::clone(shared), Arc::clone(node));
    OracleServer::serve(rpc, move |asker, now| {
        let Some(place) = shared.index_of(asker.at.node) else { return Answer::Refused };
        let answer = node.oracle.answer(place, asker, now);
        point_here!(node.id.0, Answer);
        answer
    });
}

/// Starts a takeover or raises the bound in the background, if this node is the one to serve.
pub(crate) fn keep(coordinator: &Rc<Coordinator>, now: &Membership) {
    let (shared, oracle) = (&coordinator.shared, &coordinator.node.oracle);
    let serves = shared.config.timestamps == TimestampKind::Oracle
        && who_serves(now) == Some(coordinator.node.id);
    let is_due = || match oracle.is_open() {
        true => oracle.runs_low(),
        false => may_take_over(coordinator, now),
    };
    if !serves || !is_due() || coordinator.ascends.replace(true) {
        return;
    }
    let (of, now) = (Rc::clone(coordinator), now.clone());
    coordinator.executor.spawn(async move {
        ascend(&of, &now).await;
        of.ascends.set(false);
    });
}

/// Whether every live member has asked this node. The founder may serve without.
fn may_take_over(coordinator: &Coordinator, now: &Membership) -> bool {
    let (shared, oracle) = (&coordinator.shared, &coordinator.node.oracle);
    let mut places = now.live().filter_map(|member| shared.index_of(member.node));
    let founder = coordinator.node.index == 0 && coordinator.node.epoch == FIRST_EPOCH;
    founder || broken(Rule::SuccessorsWait) || places.all(|place| oracle.has_heard_all_of(place))
}

/// Fences expelled nodes, stores a bound, and serves up to it. On failure the next turn tries
/// again.
async fn ascend(coordinator: &Rc<Coordinator>, now: &Membership) {
    let node = &coordinator.node;
    let takes_over = !node.oracle.is_open();
    if takes_over
        && !broken(Rule::SuccessorsWait)
        && recover::fence(coordinator, now).await.is_err()
    {
        return;
    }
    point!(node.id.0, OracleFence, if takes_over);
    let issued = node.oracle.clock.latest().raw().max(coordinator.executor.now().0);
    let reign = u64::from(node.incarnation.raw());
    // A later node reigns: this one is expelled and does not know it yet.
    let Ok(Some((before, bound))) = store_bound(coordinator, reign, issued).await else { return };
    point!(node.id.0, Reign);
    if takes_over && !broken(Rule::BoundsOutlastOracles) {
        node.oracle.clock.skip(before);
    }
    node.oracle.open(bound);
}

/// Bound to be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Reign {
    /// Bound that is stored now.
    before: Timestamp,
    bound: Timestamp,
    value: Vec<u8>,
}

impl Reign {
    /// Computes a bound beyond `issued` and the stored one; `None` if a node later than `reign`
    /// reigns.
    fn after(stored: Option<&[u8]>, reign: u64, issued: u64) -> Option<Self> {
        let (other, before) = stored.map_or((0, Timestamp::LOADED), decode);
        let bound = (issued.max(before.raw()) + ahead()).min(Timestamp::MAX.raw());
        let value = [reign.to_le_bytes(), bound.to_le_bytes()].concat();
        let bound = Timestamp::new(bound).expect("at most the last one");
        (other <= reign).then_some(Self { before, bound, value })
    }
}

/// Stores a bound beyond `issued` and the stored one. Returns the stored one and the new one;
/// `None` if a node later than `reign` has stored one.
async fn store_bound(
    coordinator: &Coordinator,
    reign: u64,
    issued: u64,
) -> Result<Option<(Timestamp, Timestamp)>, AuthorityError> {
    loop {
        let stored = coordinator.consult(|authority| authority.read(KEY)).await?;
        let version = stored.as_ref().map_or(Version::ABSENT, |stored| stored.version);
        let value = stored.as_ref().map(|stored| &*stored.value);
        let Some(Reign { before, bound, value }) = Reign::after(value, reign, issued) else {
            return Ok(None);
        };
        let swap =
            move |authority: &dyn Authority| authority.compare_and_swap(KEY, version, &value);
        match coordinator.consult(swap).await {
            Ok(_) => return Ok(Some((before, bound))),
            Err(AuthorityError::Conflict { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Decodes the reigning node and its bound. A malformed value yields maxima, so that no node
/// serves.
fn decode(value: &[u8]) -> (u64, Timestamp) {
    let word = |at: usize| value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    match (word(0), word(8)) {
        (Some(reign), Some(bound)) => {
            let bound = Timestamp::new(u64::from_le_bytes(bound)).unwrap_or(Timestamp::MAX);
            (u64::from_le_bytes(reign), bound)
        }
        _ => (u64::MAX, Timestamp::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::ids::{Incarnation, LaneId};
    use lotus_recovery::PartId;

    /// Replaces the stored bound; returns the previous bound and the new one.
    fn store(stored: &mut Option<Vec<u8>>, reign: u64, issued: u64) -> Option<(u64, u64)> {
        let next = Reign::after(stored.as_deref(), reign, issued)?;
        *stored = Some(next.value);
        Some((next.before.raw(), next.bound.raw()))
    }

    #[test]
    fn bounds_only_grow_and_a_successors_ends_those_before() {
        let mut stored = None;
        let first = store(&mut stored, 0, 500).unwrap();
        assert_eq!(first, (1, 500 + ahead()));
        // It has issued little, and its clock was set back.
        let again = store(&mut stored, 0, 7).unwrap();
        assert_eq!(again, (first.1, first.1 + ahead()));
        let successor = store(&mut stored, 2, 9).unwrap();
        assert_eq!(successor, (again.1, again.1 + ahead()));
        assert_eq!(store(&mut stored, 0, 600), None);
        assert_eq!(store(&mut stored, 1, 600), None);
    }

    #[test]
    fn a_value_of_somebody_else_lets_nobody_serve() {
        assert_eq!(store(&mut Some(b"else".to_vec()), 0, 500), None);
    }

    #[test]
    fn an_oracle_issues_nothing_before_it_is_open_and_nothing_beyond_its_bound() {
        let oracle = Oracle::new(&members(2), 1);
        assert_eq!((oracle.issue(Nanos(50)), oracle.is_open()), (None, false));
        oracle.open(Timestamp::new(60).unwrap());
        let issued = [50, 70, 80].map(|now| oracle.issue(Nanos(now)).map(Timestamp::raw));
        assert_eq!(issued, [Some(50), Some(60), None]);
        assert!(oracle.runs_low());
    }

    /// Membership of `count` nodes in their first lives.
    fn members(count: u16) -> Membership {
        Membership::new((0..count).map(|number| (NodeId(number), life(number + 1))))
    }

    fn life(number: u16) -> Incarnation {
        Incarnation::new(number).expect("small")
    }

    #[test]
    fn members_alone_are_given_timestamps_and_heard() {
        let oracle = Oracle::new(&members(3), 1);
        oracle.open(Timestamp::MAX);
        let at = |node| Endpoint { node: NodeId(node), lane: LaneId(0) };
        let ask = |place: u16, number| {
            let asker = Asker { at: at(place), life: life(number) };
            oracle.answer(usize::from(place), asker, Nanos(50))
        };
        let issued = |answer| matches!(answer, Answer::Issued(_));
        assert!(issued(ask(1, 2)) && oracle.has_heard_all_of(1));

        let out = members(3).expel(NodeId(0), NodeId(2)).expect("both take part");
        oracle.admit(&out);
        assert_eq!(ask(2, 3), Answer::Refused, "it is out");
        assert!(!oracle.has_heard_all_of(2));
        // The oracle does not know of this incarnation yet.
        assert_eq!(ask(2, 4), Answer::NotYet);

        let mut now = out;
        for index in 0..now.parts_of(NodeId(2)) {
            let part = PartId { of: NodeId(2), index };
            now = now.claim(NodeId(0), part).and_then(|now| now.finish(NodeId(0), part)).unwrap();
        }
        for node in [0, 1] {
            now = now.acknowledge(NodeId(node), now.epoch()).expect("it takes part");
        }
        oracle.admit(&now.rejoin(&[NodeId(2)]).expect("all is settled"));
        assert_eq!(ask(2, 3), Answer::Refused, "another life has its place");
        assert!(issued(ask(2, 4)) && oracle.has_heard_all_of(2));
    }

    #[test]
    fn all_coordinators_of_a_node_must_have_asked() {
        let oracle = Oracle::new(&members(3), 2);
        let lane = |lane| Endpoint { node: NodeId(9), lane: LaneId(lane) };
        oracle.hear(1, lane(1));
        // A lane without a coordinator.
        oracle.hear(1, lane(2));
        assert!(!oracle.has_heard_all_of(1) && !oracle.has_heard_all_of(2));
        oracle.hear(1, lane(0));
        assert!(oracle.has_heard_all_of(1) && !oracle.has_heard_all_of(2));
    }
}
