//! A membership kept in this process, for benchmarks, tests and simulation.

use std::sync::{Arc, Mutex, MutexGuard};

use lotus_fabric::ids::{Epoch, NodeId};

use crate::contract::{Member, Peers, PeersFuture, Waiter};
use crate::word::Claimant;

/// A membership shared by the nodes of this process. Clones share the membership.
#[derive(Clone, Default)]
pub struct Roster {
    state: Arc<Mutex<RosterState>>,
}

#[derive(Default)]
struct RosterState {
    epoch: u32,
    last_loss: u32,
    members: Vec<Member>,
    /// Nodes by their number.
    numbers: Vec<NodeId>,
    settled: Vec<Claimant>,
}

impl Roster {
    fn state(&self) -> MutexGuard<'_, RosterState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Makes `node` a member, in a life of its own, before it uses any lock. `None` if too many
    /// nodes were members so far.
    pub fn join(&self, node: NodeId, lanes: u16) -> Option<Member> {
        let state = &mut *self.state();
        let known = state.numbers.iter().position(|known| *known == node);
        let number = known.unwrap_or_else(|| {
            state.numbers.push(node);
            state.numbers.len() - 1
        });
        let number = u8::try_from(number).ok().filter(|number| *number <= Waiter::MAX_NODE)?;
        state.epoch += 1;
        let member = Member { node, life: Claimant::new(number, state.epoch), lanes };
        state.members.push(member);
        Some(member)
    }

    /// Removes a member that has ended, and uses no lock any more.
    pub fn leave(&self, member: Member) {
        let state = &mut *self.state();
        state.epoch += 1;
        state.members.retain(|other| other.life != member.life);
        state.settled.push(member.life);
    }

    /// Expels `node`. The caller has fenced it at every memory node.
    pub fn settle(&self, node: NodeId) {
        let state = &mut *self.state();
        state.epoch += 1;
        state.last_loss = state.epoch;
        let (lost, members) = state.members.iter().partition::<Vec<_>, _>(|m| m.node == node);
        state.members = members;
        state.settled.extend(lost.iter().map(|member| member.life));
    }
}

impl Peers for Roster {
    fn members(&self) -> PeersFuture<'_, Option<(Epoch, Vec<Member>)>> {
        Box::pin(async {
            let state = self.state();
            Some((Epoch(state.epoch), state.members.clone()))
        })
    }

    fn last_loss(&self) -> Epoch {
        Epoch(self.state().last_loss)
    }

    fn is_settled(&self, life: Claimant) -> bool {
        self.state().settled.contains(&life)
    }

    fn node(&self, number: u8) -> Option<NodeId> {
        self.state().numbers.get(usize::from(number)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_returns_has_another_life_and_the_same_number() {
        let roster = Roster::default();
        let [first, other] = [NodeId(7), NodeId(9)].map(|node| roster.join(node, 1).expect("room"));
        assert!(!roster.is_settled(first.life));
        assert_eq!(roster.last_loss(), Epoch(0));
        roster.settle(first.node);
        assert!(roster.is_settled(first.life) && !roster.is_settled(other.life));
        assert_eq!(roster.last_loss(), Epoch(3));
        let again = roster.join(first.node, 1).expect("room");
        assert_eq!(again.life.node(), first.life.node());
        assert!(!roster.is_settled(again.life));
        assert_eq!(roster.node(again.life.node()), Some(first.node));
    }

    #[test]
    fn there_are_only_so_many_numbers() {
        let roster = Roster::default();
        for node in 0..=u16::from(Waiter::MAX_NODE) {
            assert!(roster.join(NodeId(node), 1).is_some());
        }
        assert_eq!(roster.join(NodeId(500), 1), None);
    }
}
