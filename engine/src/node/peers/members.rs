//! Membership from the view of a compute node ([`crate::membership::members`]).

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Epoch, Incarnation, NodeId};
use lotus_recovery::membership::{FIRST_EPOCH, Member};
use lotus_recovery::{Beat, Contradiction, Membership};
use lotus_sabotage::{Rule, broken};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// Membership state shared by the coordinators of a node.
#[derive(Debug)]
pub(crate) struct NodeMembers {
    /// Epoch seen by coordinator 0; nodes expelled up to this epoch no longer own shards.
    seen: AtomicU32,
    /// Members and expelled nodes at that epoch.
    known: Mutex<Known>,
    /// Last epoch noted by each coordinator.
    noted: Box<[AtomicU32]>,
    /// Every live member knows of this node's life.
    admitted: AtomicBool,
    /// Incarnations of lives expelled, fenced and recovered.
    settled: RwLock<Vec<u16>>,
    /// Whether `settled` is nonempty.
    any_settled: AtomicBool,
    /// Contradiction met by recovery, which left the data unchanged.
    contradiction: Mutex<Option<Contradiction>>,
    /// Send time of the latest landed beat; 0 before the first.
    last_beat: AtomicU64,
    /// Time of coordinator 0's last turn to beat, or of the start of its turns; 0 before the start.
    last_turn: AtomicU64,
}

/// Membership as known by a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// Expelled nodes.
    pub(crate) expelled: Vec<(NodeId, Incarnation)>,
    /// Live nodes, eldest first.
    pub(crate) live: Vec<(NodeId, Incarnation)>,
    /// Live nodes with their admission epochs.
    lives: Vec<Suspect>,
    /// Live nodes not yet acknowledged by some member.
    newcomers: Vec<NodeId>,
    /// Incarnations that are no longer members.
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
            // A returned node was expelled before.
            last_loss: now.refused().map(|(_, since)| since).max().unwrap_or_default(),
        }
    }
}

pub(crate) fn newcomers(now: &Membership) -> Vec<NodeId> {
    now.live().map(|member| member.node).filter(|node| now.is_newcomer(*node)).collect()
}

impl NodeMembers {
    pub(crate) fn new(threads: usize, now: &Membership) -> Self {
        // Nodes already expelled are noted in the first turn, as if newly expelled.
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
        // Diagnostic only: no decision depends on the value.
        self.last_beat.store(sent.0, Ordering::Relaxed);
    }

    /// Send time of the latest landed beat; `None` before the first.
    pub(crate) fn last_beat(&self) -> Option<Nanos> {
        let sent = self.last_beat.load(Ordering::Relaxed);
        (sent > 0).then_some(Nanos(sent))
    }

    /// Notes a beat turn of coordinator 0; returns the time since the previous turn.
    pub(crate) fn note_turn(&self, now: Nanos) -> Option<Duration> {
        // Relaxed: the value orders no other data.
        let before = self.last_turn.swap(now.0, Ordering::Relaxed);
        (before > 0).then(|| now.since(Nanos(before)))
    }

    /// Time since coordinator 0's last turn to beat; zero before the start of its turns.
    pub(crate) fn since_turn(&self, now: Nanos) -> Duration {
        let last = self.last_turn.load(Ordering::Relaxed);
        if last > 0 { now.since(Nanos(last)) } else { Duration::ZERO }
    }

    pub(crate) fn seen(&self) -> Epoch {
        // Acquire: seeing the epoch implies seeing the expulsions, and the shards of expelled nodes
        // as unowned.
        Epoch(self.seen.load(Ordering::Acquire))
    }

    /// Runs `ask` on the expelled nodes, with `known` held so that no expulsion is noted meanwhile.
    pub(crate) fn with_expelled<T>(&self, ask: impl FnOnce(&[(NodeId, Incarnation)]) -> T) -> T {
        ask(&self.known().expelled)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns a later membership, unless already known. `forget` removes the expelled nodes'
    /// ownership before the epoch counts as seen.
    pub(crate) fn learn(&self, now: &Membership, forget: impl FnOnce(&[(NodeId, Incarnation)])) {
        if self.seen() >= now.epoch() {
            return;
        }
        // Hold `known`, lest an owner be learned between the two updates.
        let mut known = self.known();
        *known = Known::of(now);
        debug_assert!(
            known.live.iter().all(|(live, _)| known.expelled.iter().all(|(out, _)| out != live)),
            "I69: no node is live and expelled"
        );
        forget(&known.expelled);
        self.seen.store(now.epoch().0, Ordering::Release);
    }

    /// Learns of settled lives: expelled, fenced at every memory node, and recovered.
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

    /// Whether the life numbered `life` is known to be settled.
    pub(crate) fn is_settled(&self, life: u32) -> bool {
        self.any_settled.load(Ordering::Acquire) && {
            let known = self.settled.read().unwrap_or_else(PoisonError::into_inner);
            known.iter().any(|settled| u32::from(*settled) == life)
        }
    }

    /// A seen epoch since which no further node has been expelled; zero without any expulsion.
    pub(crate) fn last_loss(&self) -> Epoch {
        self.known().last_loss
    }

    /// Learns of live nodes not yet acknowledged by some member.
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

    /// Whether every live member knows of this node's life, as far as known here.
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

    /// Whether this life is a member, as far as this node knows. A node beats before its admission.
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

    /// Whether a node may be given shards: every live member knows of its membership (I145).
    pub(crate) fn may_receive(&self, node: NodeId) -> bool {
        let known = self.known();
        let is_out = known.expelled.iter().any(|(out, _)| *out == node);
        let is_new = known.newcomers.contains(&node) && !broken(Rule::ReturnsWait);
        !is_out && !is_new
    }

    /// Epoch seen, and number of nodes expelled up to this epoch.
    pub(crate) fn losses(&self) -> (Epoch, usize) {
        (self.seen(), self.with_expelled(<[_]>::len))
    }

    /// Last epoch noted by all coordinators.
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

/// Life of a node, named by its admission epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Suspect {
    pub(crate) node: NodeId,
    pub(crate) joined: Epoch,
}

impl Suspect {
    fn of(member: &Member) -> Self {
        Self { node: member.node, joined: member.joined }
    }

    /// Life of `node` whose last beat is `beat`.
    pub(crate) fn at(node: NodeId, beat: Beat) -> Self {
        Self { node, joined: beat.joined() }
    }
}
