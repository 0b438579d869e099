//! Which compute node serves timestamps, from when on, and up to where (H18).
//!
//! # What it is
//! With [`TimestampKind::Oracle`] the compute node that takes part the longest serves all others.
//! When it is expelled the next one *takes over*, which must not be noticed in timestamps:
//! each is later than all that were issued before, by whomever. Two things see to that.
//!
//! 1. *Nobody is served by two.* The successor issues nothing before every coordinator of every
//!    node that takes part has asked it. Who has asked it takes no answer of anybody before it
//!    ([`OracleClient::turn_to`](lotus_mvcc::oracle::OracleClient::turn_to)); and who is out, the
//!    former oracle for one, is fenced at every memory node first. So nobody whose writes count
//!    draws a timestamp from a predecessor any more.
//! 2. *Nobody begins below.* What may be issued has a bound, which is stored at the authority
//!    before anything up to it is issued. A successor begins behind the stored bound, and storing
//!    its own is what ends the predecessor's: the value names who reigns, and it is compared and
//!    swapped.
//!
//! A timestamp that was issued in time and arrives late does no harm: when a commit draws one, its
//! cells are INVISIBLE on all replicas already, so whoever draws a later snapshot meets them (H1).
//!
//! # If it stops anywhere
//! A successor that dies before it has stored its bound has changed nothing; after that, its own
//! successor finds a higher bound. Who pauses for ever so long finds that it is fenced, that its
//! bound is not its own any more, and that nobody listens.
//!
//! # What it is not
//! A lease: no clock is relied on. Nor a way for the authority to be asked often: a bound lasts for
//! minutes, and timestamps follow the nodes' clocks again after a jump over what was left of it.
//! Without a lease of the membership nobody is expelled, and there is neither bound nor successor.

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

/// Where the authority keeps who reigns, and its bound.
const KEY: &str = "lotus/oracle";
/// How far ahead of what was issued a bound is stored. So long the authority may be silent; so far
/// timestamps jump when somebody takes over.
const AHEAD: Duration = Duration::from_secs(600);

/// A compute node's part in serving timestamps.
#[derive(Debug)]
pub(crate) struct Oracle {
    clock: SharedClock,
    /// The last timestamp that it may issue; zero while it may issue none.
    bound: AtomicU64,
    /// Which coordinators have turned to this node: of all compute nodes, by place and number.
    heard: Box<[AtomicBool]>,
    /// By place, the last incarnation that is known there, and in the lowest bit whether it takes
    /// part.
    lives: Box<[AtomicU32]>,
    threads: usize,
}

impl Oracle {
    /// Of a node among these members, each of which has so many coordinators.
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
        // Acquire: who sees the bound sees the clock moved behind the predecessor's.
        let bound = Timestamp::new(self.bound.load(Ordering::Acquire)).expect("a timestamp");
        self.clock.next_within(now.0, bound)
    }

    /// Issues nothing up to `past` from now on.
    pub(crate) fn skip(&self, past: Timestamp) {
        self.clock.skip(past);
    }

    /// May issue up to `bound`.
    fn open(&self, bound: Timestamp) {
        self.bound.store(bound.raw(), Ordering::Release);
    }

    fn is_open(&self) -> bool {
        self.bound.load(Ordering::Acquire) != 0
    }

    /// Whether less than half of what was stored ahead is left.
    fn runs_low(&self) -> bool {
        let left = self.bound.load(Ordering::Acquire).saturating_sub(self.clock.latest().raw());
        left < ahead() / 2
    }

    /// Knows who takes part.
    pub(crate) fn admit(&self, now: &Membership) {
        for (known, member) in self.lives.iter().zip(now.members()) {
            let life = u32::from(member.incarnation.raw()) << 1;
            let live = u32::from(now.is_live(member.node));
            // Relaxed: whoever is out since a moment ago is fenced before anything rests on it.
            known.store(life | live, Ordering::Relaxed);
        }
    }

    /// What whoever has this place is told. Only members are given timestamps, and count as having
    /// turned to this node; who is not known yet may be one soon.
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

/// Who serves: the eldest, so that whoever has returned does not until all are out who were there
/// before, and nobody ever serves again in one life.
fn who_serves(now: &Membership) -> Option<NodeId> {
    now.by_age().first().map(|eldest| eldest.node)
}

/// Answers whoever asks this coordinator, from when on this node may.
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

/// Takes over, or has the bound raised, if this node is the one to serve; beside everything else.
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

/// Whether all who take part have turned to this node. Nobody need turn to the very first.
fn may_take_over(coordinator: &Coordinator, now: &Membership) -> bool {
    let (shared, oracle) = (&coordinator.shared, &coordinator.node.oracle);
    let mut places = now.live().filter_map(|member| shared.index_of(member.node));
    let founder = coordinator.node.index == 0 && coordinator.node.epoch == FIRST_EPOCH;
    founder || broken(Rule::SuccessorsWait) || places.all(|place| oracle.has_heard_all_of(place))
}

/// Fences who is out, stores a bound, and serves up to it. What fails is tried in the next turn.
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
    // Somebody later reigns: this node is out and does not know it yet.
    let Ok(Some((before, bound))) = store_bound(coordinator, reign, issued).await else { return };
    point!(node.id.0, Reign);
    if takes_over && !broken(Rule::BoundsOutlastOracles) {
        node.oracle.clock.skip(before);
    }
    node.oracle.open(bound);
}

/// A bound that is to be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Reign {
    /// The one that is stored.
    before: Timestamp,
    bound: Timestamp,
    value: Vec<u8>,
}

impl Reign {
    /// Beyond `issued` and beyond what is stored; `None` if somebody later than `reign` reigns.
    fn after(stored: Option<&[u8]>, reign: u64, issued: u64) -> Option<Self> {
        let (other, before) = stored.map_or((0, Timestamp::LOADED), decode);
        let bound = (issued.max(before.raw()) + ahead()).min(Timestamp::MAX.raw());
        let value = [reign.to_le_bytes(), bound.to_le_bytes()].concat();
        let bound = Timestamp::new(bound).expect("at most the last one");
        (other <= reign).then_some(Self { before, bound, value })
    }
}

/// Stores a bound beyond `issued` and beyond the one that is stored; both, or `None` if somebody
/// later than `reign` has stored one.
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

/// Who reigns, and its bound. What is no such value lets nobody begin below anything.
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

    /// Stores a bound in place of what is stored: the bound of before, and its own.
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

    /// So many, in their first lives.
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
        // Of this one the oracle has not heard yet.
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
        // No coordinator's.
        oracle.hear(1, lane(2));
        assert!(!oracle.has_heard_all_of(1) && !oracle.has_heard_all_of(2));
        oracle.hear(1, lane(0));
        assert!(oracle.has_heard_all_of(1) && !oracle.has_heard_all_of(2));
    }
}
