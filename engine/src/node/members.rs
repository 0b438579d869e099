//! Membership as a compute node knows it ([`crate::membership::members`]).

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Epoch, Incarnation, NodeId};
use lotus_recovery::membership::{FIRST_EPOCH, Member};
use lotus_recovery::{Beat, Contradiction, Membership};
use lotus_sabotage::{Rule, broken};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// State of the membership that the coordinators of a node share.
#[derive(Debug)]
pub(crate) struct NodeMembers {
    /// Epoch that coordinator 0 has seen; nodes expelled up to it own nothing any more.
    seen: AtomicU32,
    /// Members and expelled nodes at that epoch.
    known: Mutex<Known>,
    /// Last epoch that each coordinator has taken note of.
    noted: Box<[AtomicU32]>,
    /// Every live member knows of this node's life.
    admitted: AtomicBool,
    /// Lives that were expelled, fenced and recovered, by their numbers.
    settled: RwLock<Vec<u16>>,
    /// Whether there are any.
    any_settled: AtomicBool,
    /// Contradiction that recovery has met, leaving the data as it was.
    contradiction: Mutex<Option<Contradiction>>,
    /// Send time of the latest beat that has landed; 0 before the first.
    last_beat: AtomicU64,
    /// Time of coordinator 0's last turn to beat, or of when it began to have any; 0 before that.
    last_turn: AtomicU64,
}

/// Membership as a node knows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// Expelled nodes.
    pub(crate) expelled: Vec<(NodeId, Incarnation)>,
    /// Live nodes, the eldest first.
    pub(crate) live: Vec<(NodeId, Incarnation)>,
    /// Epoch at which each of them was admitted.
    lives: Vec<Suspect>,
    /// Live nodes that some member has not acknowledged yet.
    newcomers: Vec<NodeId>,
    /// Incarnations that take part no more.
    pub(crate) over: Vec<Incarnation>,
    /// See [`NodeMembers::last_loss`].
    last_loss: Epoch,
}

impl Known {
    fn of(now: &Membership) -> Self {
        let named = |member: &Member| (member.node, member.incarnation);
        Self {
            expelled: now.expelled().map(|(member, _)| named(member)).collect(),
            live: now.by_age().into_iter().map(named).collect(),
            lives: now.live().map(Suspect::of).collect(),
            newcomers: newcomers(now),
            over: now.over().map(|(life, _)| life).collect(),
            // A node that has returned was expelled before.
            last_loss: now.refused().map(|(_, since)| since).max().unwrap_or_default(),
        }
    }
}

pub(crate) fn newcomers(now: &Membership) -> Vec<NodeId> {
    now.live().map(|member| member.node).filter(|node| now.is_newcomer(*node)).collect()
}

impl NodeMembers {
    pub(crate) fn new(threads: usize, now: &Membership) -> Self {
        // Nodes expelled already are noted in the first turn, as if newly expelled.
        let known = Known { expelled: Vec::new(), ..Known::of(now) };
        Self {
            seen: AtomicU32::new(FIRST_EPOCH.0),
            known: Mutex::new(known),
            admitted: AtomicBool::new(false),
            noted: (0..threads).map(|_| AtomicU32::new(FIRST_EPOCH.0)).collect(),
            settled: RwLock::default(),
            any_settled: AtomicBool::new(false),
            contradiction: Mutex::default(),
            last_beat: AtomicU64::new(0),
            last_turn: AtomicU64::new(0),
        }
    }

    /// Notes that a beat sent at `sent` has landed.
    pub(crate) fn note_beat(&self, sent: Nanos) {
        // Diagnostic only: nothing follows from it.
        self.last_beat.store(sent.0, Ordering::Relaxed);
    }

    /// Send time of the latest beat that has landed; `None` before the first.
    pub(crate) fn last_beat(&self) -> Option<Nanos> {
        let sent = self.last_beat.load(Ordering::Relaxed);
        (sent > 0).then_some(Nanos(sent))
    }

    /// Notes that coordinator 0 has its turn to beat; returns the time since the one before.
    pub(crate) fn note_turn(&self, now: Nanos) -> Option<Duration> {
        // Relaxed, as it is a time and nothing else.
        let before = self.last_turn.swap(now.0, Ordering::Relaxed);
        (before > 0).then(|| now.since(Nanos(before)))
    }

    /// Time since coordinator 0's last turn to beat; none before it begins to have any.
    pub(crate) fn since_turn(&self, now: Nanos) -> Duration {
        let last = self.last_turn.load(Ordering::Relaxed);
        if last > 0 { now.since(Nanos(last)) } else { Duration::ZERO }
    }

    pub(crate) fn seen(&self) -> Epoch {
        // Acquire: seeing the epoch implies seeing the expulsions and that their shards are
        // unowned.
        Epoch(self.seen.load(Ordering::Acquire))
    }

    /// Runs `ask` on the expelled nodes, with `known` held so that no expulsion is noted meanwhile.
    pub(crate) fn with_expelled<T>(&self, ask: impl FnOnce(&[(NodeId, Incarnation)]) -> T) -> T {
        ask(&self.known().expelled)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns a later membership, unless it is known already. `forget` removes the expelled nodes'
    /// ownership before the epoch counts as seen.
    pub(crate) fn learn(&self, now: &Membership, forget: impl FnOnce(&[(NodeId, Incarnation)])) {
        if self.seen() >= now.epoch() {
            return;
        }
        // Hold `known`, so that no owner is learned between the two updates.
        let mut known = self.known();
        *known = Known::of(now);
        debug_assert!(
            known.live.iter().all(|(live, _)| known.expelled.iter().all(|(out, _)| out != live)),
            "I69: no node is live and expelled"
        );
        forget(&known.expelled);
        self.seen.store(now.epoch().0, Ordering::Release);
    }

    /// Learns which lives are settled: expelled, fenced at every memory node, and recovered.
    pub(crate) fn learn_settled(&self, now: &Membership) {
        let late = broken(Rule::LocksOutlastRecovery);
        let lives = now.over().filter(|(_, settled)| *settled || late);
        let lives: Vec<u16> = lives.map(|(life, _)| life.raw()).collect();
        if lives.is_empty() {
            return;
        }
        let mut known = self.settled.write().unwrap_or_else(PoisonError::into_inner);
        debug_assert!(
            known.iter().all(|life| lives.contains(life)),
            "I70: a life that is settled stays so"
        );
        *known = lives;
        self.any_settled.store(true, Ordering::Release);
    }

    /// Whether this node knows that the life of this number is settled.
    pub(crate) fn is_settled(&self, life: u32) -> bool {
        self.any_settled.load(Ordering::Acquire) && {
            let known = self.settled.read().unwrap_or_else(PoisonError::into_inner);
            known.iter().any(|settled| u32::from(*settled) == life)
        }
    }

    /// An epoch, of those seen, at which no node had been expelled after the last expulsion; zero
    /// if there was none.
    pub(crate) fn last_loss(&self) -> Epoch {
        self.known().last_loss
    }

    /// Learns which live nodes some member has not acknowledged yet.
    pub(crate) fn learn_newcomers(&self, now: &Membership) {
        self.known().newcomers = newcomers(now);
    }

    /// Notes that a coordinator has taken note of an epoch.
    pub(crate) fn note(&self, thread: usize, epoch: Epoch) {
        debug_assert!(
            self.noted[thread].load(Ordering::Acquire) <= epoch.0,
            "I71: what was noted stays noted"
        );
        self.noted[thread].store(epoch.0, Ordering::Release);
    }

    /// Whether every live member knows of this node's life, as far as this node has found out.
    pub(crate) fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Relaxed)
    }

    pub(crate) fn set_admitted(&self, admitted: bool) {
        self.admitted.store(admitted, Ordering::Relaxed);
    }

    /// Members and expelled nodes of the epoch seen.
    pub(crate) fn at_seen(&self) -> Known {
        self.known().clone()
    }

    /// Live node of this incarnation.
    pub(crate) fn node_of(&self, incarnation: Incarnation) -> Option<NodeId> {
        let known = self.known();
        known.live.iter().find(|(_, life)| *life == incarnation).map(|(node, _)| *node)
    }

    /// Whether this life takes part, as far as this node knows. A node about to be admitted beats
    /// already.
    pub(crate) fn knows(&self, life: Suspect) -> bool {
        self.known().lives.contains(&life)
    }

    /// Live nodes and their incarnations.
    pub(crate) fn live(&self) -> Vec<(NodeId, Incarnation)> {
        self.known().live.clone()
    }

    /// Longest-serving live node.
    pub(crate) fn eldest(&self) -> Option<NodeId> {
        self.known().live.first().map(|(node, _)| *node)
    }

    /// Whether a node may be given shards: every live member knows that it takes part.
    pub(crate) fn may_receive(&self, node: NodeId) -> bool {
        let known = self.known();
        let is_out = known.expelled.iter().any(|(out, _)| *out == node);
        let is_new = known.newcomers.contains(&node) && !broken(Rule::ReturnsWait);
        !is_out && !is_new
    }

    /// Epoch seen, and number of nodes expelled up to it.
    pub(crate) fn losses(&self) -> (Epoch, usize) {
        (self.seen(), self.with_expelled(<[_]>::len))
    }

    /// Last epoch that all coordinators have taken note of.
    pub(crate) fn noted_by_all(&self) -> Epoch {
        let noted = self.noted.iter().map(|noted| noted.load(Ordering::Acquire));
        Epoch(noted.min().expect("a node has a coordinator"))
    }

    pub(crate) fn report(&self, what: Contradiction) {
        *self.contradiction.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
    }

    pub(crate) fn contradiction(&self) -> Option<Contradiction> {
        *self.contradiction.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Life of a node, named by the epoch at which it was admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Suspect {
    pub(crate) node: NodeId,
    pub(crate) joined: Epoch,
}

impl Suspect {
    fn of(member: &Member) -> Self {
        Self { node: member.node, joined: member.joined }
    }

    /// Life of `node` that stopped at this beat.
    pub(crate) fn at(node: NodeId, beat: Beat) -> Self {
        Self { node, joined: beat.joined() }
    }
}
