//! Timestamps issued by a compute node for others, within a bound ([`crate::membership::oracle`]).

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::Endpoint;
use lotus_mvcc::Timestamp;
use lotus_mvcc::oracle::{Asker, OracleAnswer};
use lotus_mvcc::timestamp::SharedClock;
use lotus_recovery::Membership;
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Distance from the last timestamp issued to a new bound: the longest tolerated silence of the
/// authority, and the largest jump of timestamps at a takeover.
const AHEAD: Duration = Duration::from_secs(600);

/// A compute node's part in serving timestamps.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) clock: SharedClock,
    /// Last timestamp that the node may issue; zero while issuing is not allowed.
    bound: AtomicU64,
    /// Whether a coordinator has asked this node, for all compute nodes: by place, then by
    /// coordinator.
    heard: Box<[AtomicBool]>,
    /// Last known incarnation at each place, shifted left by one; the lowest bit is set for a
    /// member.
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
        // Acquire: seeing the bound implies seeing the clock moved past the predecessor's bound.
        let bound = Timestamp::new(self.bound.load(Ordering::Acquire)).expect("a timestamp");
        let issued = self.clock.next_within(now.0, bound);
        debug_assert!(
            issued.is_none_or(|issued| issued <= bound),
            "I131: no timestamp lies beyond a stored bound"
        );
        issued
    }

    /// Issues nothing up to `past` from now on.
    pub(crate) fn skip(&self, past: Timestamp) {
        self.clock.skip(past);
    }

    /// Allows timestamps up to `bound`.
    pub(crate) fn open(&self, bound: Timestamp) {
        debug_assert!(
            self.bound.load(Ordering::Acquire) <= bound.raw(),
            "I131: a bound is never taken back"
        );
        self.bound.store(bound.raw(), Ordering::Release);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.bound.load(Ordering::Acquire) != 0
    }

    /// Whether less than half of [`AHEAD`] is left.
    pub(crate) fn runs_low(&self) -> bool {
        let left = self.bound.load(Ordering::Acquire).saturating_sub(self.clock.latest().raw());
        left < ahead() / 2
    }

    /// Learns the incarnations and which of them are members.
    pub(crate) fn admit(&self, now: &Membership) {
        for (known, member) in self.lives.iter().zip(now.members()) {
            let life = u32::from(member.incarnation.raw()) << 1;
            let live = u32::from(now.is_live(member.node));
            // Relaxed: a node expelled a moment ago is fenced before anything rests on its
            // timestamps.
            known.store(life | live, Ordering::Relaxed);
        }
    }

    /// Answers the asker at a place. Only members get timestamps and count as having asked this
    /// node; an unknown later life may soon be a member.
    pub(crate) fn answer(&self, place: usize, asker: Asker, now: Nanos) -> OracleAnswer {
        debug_assert!(place < self.lives.len(), "I182: an asker has a place among the members");
        let known = self.lives[place].load(Ordering::Relaxed);
        let asks = u32::from(asker.life.raw());
        match asks.cmp(&(known >> 1)) {
            Less => OracleAnswer::Refused,
            Equal if known & 1 == 0 => OracleAnswer::Refused,
            Equal => {
                self.hear(place, asker.at);
                self.issue(now).map_or(OracleAnswer::NotYet, OracleAnswer::Issued)
            }
            Greater => OracleAnswer::NotYet,
        }
    }

    fn hear(&self, peer: usize, from: Endpoint) {
        let thread = usize::from(from.lane.0);
        if thread < self.threads {
            self.heard[peer * self.threads + thread].store(true, Ordering::Release);
        }
    }

    pub(crate) fn has_heard_all_of(&self, peer: usize) -> bool {
        let coordinators = &self.heard[peer * self.threads..][..self.threads];
        coordinators.iter().all(|heard| heard.load(Ordering::Acquire))
    }
}

pub(crate) fn ahead() -> u64 {
    AHEAD.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::ids::{Incarnation, LaneId, NodeId};
    use lotus_recovery::PartId;

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
        let issued = |answer| matches!(answer, OracleAnswer::Issued(_));
        assert!(issued(ask(1, 2)) && oracle.has_heard_all_of(1));

        let out = members(3).expel(NodeId(0), NodeId(2)).expect("both take part");
        oracle.admit(&out);
        assert_eq!(ask(2, 3), OracleAnswer::Refused, "it is out");
        assert!(!oracle.has_heard_all_of(2));
        // The oracle does not know of this incarnation yet.
        assert_eq!(ask(2, 4), OracleAnswer::NotYet);

        let mut now = out;
        for index in 0..now.parts_of(NodeId(2)) {
            let part = PartId { of: NodeId(2), index };
            now = now.claim(NodeId(0), part).and_then(|now| now.finish(NodeId(0), part)).unwrap();
        }
        for node in [0, 1] {
            now = now.acknowledge(NodeId(node), now.epoch()).expect("it takes part");
        }
        oracle.admit(&now.rejoin(&[NodeId(2)]).expect("all is settled"));
        assert_eq!(ask(2, 3), OracleAnswer::Refused, "another life has its place");
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
