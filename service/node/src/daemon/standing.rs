//! A memory node's part in its cluster, as far as the node's process can tell.
//!
//! # Why the process must ask
//! Compute nodes give up a silent memory node, and go on without the node. A process that was
//! paused, or cut off, comes back with outdated memory that is not used again
//! ([`lotus_recovery::membership::returns`]): the process must end, so that the node's next process
//! can return, empty. No message tells the process; so the process reads the membership
//! periodically.
//!
//! # Which loss is its own
//! A process started before its predecessor was given up also reads of the loss, and must stay: the
//! memory is new. [`Membership::part_of`] tells the two cases apart by an epoch: every later loss
//! is the process's own. The epoch is known even if the process is paused right after its memory
//! was put to use: a process older than the cluster has no predecessor, and a loss that was read
//! while the memory was blank is the predecessor's last loss.
//!
//! # What it is not
//! Needed for safety: every compute node refuses memory that was given up, even before the memory's
//! process learns of the loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Epoch, NodeId};
use lotus_recovery::Membership;
use lotus_recovery::membership::MembershipError;
use lotus_recovery::membership::returns::MemoryPart;

/// Time for which the authority may be silent before the node's part counts as unknown.
const UNHEARD: Duration = Duration::from_secs(10);
/// Before the first epoch of a cluster.
const NO_CLUSTER: Epoch = Epoch(0);

/// State of a memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum MemoryNodeState {
    /// The process has not begun to serve.
    Starting,
    /// Memory in use, or about to be.
    Serving,
    /// Given up before this process lent memory: the node waits to be taken in again.
    Waiting,
    /// Given up: the memory lent by this process is never used again.
    GivenUp,
    /// The authority has been silent for long, or knows no cluster.
    Unknown,
}

impl MemoryNodeState {
    const ALL: [Self; 5] =
        [Self::Starting, Self::Serving, Self::Waiting, Self::GivenUp, Self::Unknown];

    /// Word for health checks; the error says why the node takes no part.
    fn in_a_word(self) -> Result<&'static str, &'static str> {
        match self {
            Self::Starting => Err("starting"),
            Self::Serving => Ok("serving"),
            Self::Waiting => Err("lost, and not taken in again yet"),
            Self::GivenUp => Err("given up by the compute nodes"),
            Self::Unknown => Err("the authority does not answer"),
        }
    }
}

/// A state, shared with the thread of the metrics.
#[derive(Clone, Debug)]
pub struct SharedState(Arc<AtomicU8>);

impl Default for SharedState {
    fn default() -> Self {
        Self(Arc::new(AtomicU8::new(MemoryNodeState::Starting as u8)))
    }
}

impl SharedState {
    /// Health of the node now.
    ///
    /// # Errors
    /// Why the node takes no part.
    pub fn health(&self) -> Result<&'static str, &'static str> {
        let shown = self.0.load(Ordering::Relaxed);
        let state = MemoryNodeState::ALL.into_iter().find(|one| *one as u8 == shown);
        state.unwrap_or(MemoryNodeState::Unknown).in_a_word()
    }

    fn set(&self, state: MemoryNodeState) {
        self.0.store(state as u8, Ordering::Relaxed);
    }
}

/// Follows the part of one memory node.
pub struct Follower {
    me: NodeId,
    /// Epoch after which a loss is of the memory that this process lends, if any; 0 before the
    /// first cluster. `None`: a loss may be the predecessor's.
    own_after: Option<Epoch>,
    /// Time of the authority's last answer.
    heard: Nanos,
    state: MemoryNodeState,
    shown: SharedState,
}

impl Follower {
    /// Creates the follower of memory node `me`, which begins to serve.
    pub fn new(me: NodeId, now: Nanos, shown: &SharedState) -> Self {
        shown.set(MemoryNodeState::Serving);
        Self {
            me,
            own_after: None,
            heard: now,
            state: MemoryNodeState::Serving,
            shown: shown.clone(),
        }
    }

    fn knew_no_cluster(&self) -> bool {
        self.own_after.is_none_or(|own| own == NO_CLUSTER)
    }

    /// Takes a membership that was read at time `now`, after reading `lends`: whether the node
    /// lends memory. Returns the node's part if it has changed.
    pub fn look(
        &mut self,
        now: Nanos,
        lends: bool,
        read: Result<Membership, MembershipError>,
    ) -> Option<MemoryNodeState> {
        let state = match read {
            Ok(members) => {
                self.heard = now;
                let part = members.part_of(self.me, self.own_after.filter(|_| lends));
                // A process older than the cluster has no predecessor.
                if !lends && self.own_after != Some(NO_CLUSTER) {
                    self.own_after = members.loss_of(self.me);
                } else if lends && part != MemoryPart::GivenUp {
                    self.own_after = Some(members.epoch());
                }
                match part {
                    MemoryPart::InUse => MemoryNodeState::Serving,
                    MemoryPart::Awaited => MemoryNodeState::Waiting,
                    MemoryPart::GivenUp => MemoryNodeState::GivenUp,
                }
            }
            // No cluster yet: the founder waits for this node.
            Err(MembershipError::Damaged(_)) if !lends || self.knew_no_cluster() => {
                self.own_after = Some(NO_CLUSTER);
                self.heard = now;
                MemoryNodeState::Serving
            }
            Err(_) if now.since(self.heard) < UNHEARD => self.state,
            Err(_) => MemoryNodeState::Unknown,
        };
        self.shown.set(state);
        (std::mem::replace(&mut self.state, state) != state).then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use lotus_authority::{AuthorityError, EmbeddedAuthority};
    use lotus_fabric::ids::Incarnation;
    use lotus_recovery::membership;
    use lotus_router::Placement;

    use super::*;

    const ME: NodeId = NodeId(1);

    fn at(second: u64) -> Nanos {
        Nanos(1).after(Duration::from_secs(second))
    }

    fn founded() -> Membership {
        Membership::new([(NodeId(2), Incarnation::new(1).expect("not zero"))])
    }

    fn follower() -> (Follower, SharedState) {
        let shown = SharedState::default();
        assert_eq!(shown.health(), Err("starting"));
        (Follower::new(ME, at(0), &shown), shown)
    }

    #[test]
    fn a_node_that_hears_nothing_does_not_claim_to_serve() {
        let silent = || Err(MembershipError::Authority(AuthorityError::Unavailable));
        let none = || membership::read(&EmbeddedAuthority::new());
        let (mut node, shown) = follower();
        assert_eq!(node.look(at(100), false, none()), None, "the cluster is not founded yet");
        assert_eq!(node.look(at(105), true, silent()), None);
        assert_eq!(node.look(at(112), true, silent()), Some(MemoryNodeState::Unknown));
        assert_eq!(shown.health(), Err("the authority does not answer"));
        assert_eq!(node.look(at(113), true, Ok(founded())), Some(MemoryNodeState::Serving));
        assert_eq!(node.look(at(114), true, none()), None);
        assert_eq!(
            node.look(at(130), true, none()),
            Some(MemoryNodeState::Unknown),
            "of another life"
        );
    }

    fn lost() -> Membership {
        let placement = Placement::new(&[NodeId(0), ME], 2).expect("they fit");
        founded().complain(NodeId(2), &[ME], &placement).expect("it was in use")
    }

    #[test]
    fn a_node_that_stood_still_since_its_memory_was_put_to_use_knows_its_own_loss() {
        let none = || membership::read(&EmbeddedAuthority::new());
        // Regression: it waited for ever to be taken in, with memory that is never used again.
        for was_in_use_before_the_founding in [false, true] {
            let (mut node, _) = follower();
            assert_eq!(node.look(at(1), was_in_use_before_the_founding, none()), None);
            assert_eq!(node.look(at(30), true, Ok(lost())), Some(MemoryNodeState::GivenUp));
        }
        let (mut node, _) = follower();
        assert_eq!(node.look(at(1), false, none()), None);
        assert_eq!(node.look(at(2), false, Ok(founded())), None, "it was put to use meanwhile");
        assert_eq!(node.look(at(30), true, Ok(lost())), Some(MemoryNodeState::GivenUp));
    }

    #[test]
    fn a_node_that_was_started_again_tells_its_predecessors_loss_from_its_own() {
        let (mut node, _) = follower();
        assert_eq!(node.look(at(1), false, Ok(founded())), None, "nobody has noticed yet");
        assert_eq!(node.look(at(2), false, Ok(lost())), Some(MemoryNodeState::Waiting));
        assert_eq!(node.look(at(3), true, Ok(lost())), None, "it is ready, and not taken in yet");
        let (mut node, _) = follower();
        assert_eq!(
            node.look(at(2), true, Ok(lost())),
            Some(MemoryNodeState::Waiting),
            "the same at once"
        );
    }
}
