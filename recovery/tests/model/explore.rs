//! The model as a state machine for the checker: possible actions and their effects.

use stateright::{Model, Property};

use crate::properties;
use crate::recover::{Deed, Who};
use crate::rules::World;
use crate::state::{KEYS, MemoryNode, Message, NODES, REPLICAS, State};

/// An action that may happen. Nodes, rows and memory nodes are named by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// A node begins an attempt and locks.
    Begin(usize),
    /// A message arrives.
    Deliver(Message),
    /// A node gives up waiting for its locks.
    TimeOut(usize),
    /// A node that has its locks reads, and posts log and cells.
    Post(usize),
    /// The next verb of a node's batch takes effect on a memory node.
    Land(usize, usize),
    /// A node releases the locks of its committed attempt.
    Unlock(usize),
    /// The first process of a compute node takes its place.
    Come(usize),
    /// A member gives up the place of a compute node that has not come.
    GiveUp(usize),
    /// A compute node stops for good.
    Die(usize),
    /// A compute node takes part again, as another life.
    Return(usize),
    /// A survivor takes note of the other's return.
    Welcome(usize),
    /// A verb of a life that is over takes effect on a memory node.
    LandLate(usize, usize),
    /// A compute node is expelled.
    Expel(usize),
    /// A memory node is lost.
    Lose(usize),
    /// A survivor takes note of the other's expulsion.
    TakeNote(usize),
    /// A survivor drops the other's locks from its table.
    DropLocks(usize),
    /// A survivor takes over the lock of a row.
    Adopt(usize, usize),
    /// A node's recoverer stops, and another one takes its place.
    TakeOver(usize),
    /// A node's recoverer takes a step.
    Recover(usize, Who, Deed),
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.faults)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for message in state.network.sent() {
            actions.push(Action::Deliver(message));
        }
        self.lasting_actions(state, &mut |action| actions.push(action));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(node) => self.begin(&mut state, node),
            Action::Deliver(message) => self.deliver(&mut state, message),
            Action::TimeOut(node) | Action::Unlock(node) => self.unlock(&mut state, node),
            Action::Post(node) => self.post(&mut state, node),
            Action::Land(node, at) => self.land(&mut state, node, at),
            Action::Come(node) => self.come(&mut state, node),
            Action::GiveUp(node) => self.give_up(&mut state, node),
            Action::Die(node) => self.die(&mut state, node),
            Action::Return(node) => self.come_back(&mut state, node),
            Action::Welcome(node) => self.welcome(&mut state, node),
            Action::LandLate(node, at) => self.land_late(&mut state, node, at),
            Action::Expel(node) => self.expel(&mut state, node),
            Action::Lose(at) => {
                state.faults.losses -= 1;
                state.memory[at] = MemoryNode::gone();
            }
            Action::TakeNote(node) => state.nodes[node].notices_loss = true,
            Action::DropLocks(node) => self.drop_locks(&mut state, node),
            Action::Adopt(node, key) => self.adopt(&mut state, node, key),
            Action::TakeOver(of) => self.take_over(&mut state, of),
            Action::Recover(of, who, deed) => self.act(&mut state, of, who, deed),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

impl World {
    /// All possible actions but messages; each of them changes something.
    pub fn lasting_actions(&self, state: &State, add: &mut impl FnMut(Action)) {
        for node in 0..NODES {
            self.actions_of(state, node, add);
            let recovery = &state.recoveries[node];
            if self.may_expel(state, node) {
                add(Action::Expel(node));
            }
            if self.may_take_over(state, node) {
                add(Action::TakeOver(node));
            }
            for who in [Who::Current, Who::Former] {
                if recovery.recoverer(who).is_some() {
                    self.deeds(state, node, who, &mut |deed| {
                        add(Action::Recover(node, who, deed));
                    });
                }
            }
        }
        let survives = |at: &usize| state.faults.losses > 0 && !state.memory[*at].lost;
        (0..REPLICAS).filter(survives).map(Action::Lose).for_each(add);
    }

    fn actions_of(&self, state: &State, node: usize, add: &mut impl FnMut(Action)) {
        if self.may_begin(state, node) {
            add(Action::Begin(node));
        }
        if self.may_time_out(state, node) {
            add(Action::TimeOut(node));
        }
        if self.may_post(state, node) {
            add(Action::Post(node));
        }
        for at in (0..REPLICAS).filter(|at| self.may_land(state, node, *at)) {
            add(Action::Land(node, at));
        }
        if self.may_unlock(state, node) {
            add(Action::Unlock(node));
        }
        if self.may_come(state, node) {
            add(Action::Come(node));
        }
        if self.may_give_up(state, node) {
            add(Action::GiveUp(node));
        }
        if self.may_die(state, node) {
            add(Action::Die(node));
        }
        if self.may_return(state, node) {
            add(Action::Return(node));
        }
        if self.may_welcome(state, node) {
            add(Action::Welcome(node));
        }
        for at in (0..REPLICAS).filter(|at| self.may_land_late(state, node, *at)) {
            add(Action::LandLate(node, at));
        }
        if self.may_take_note(state, node) {
            add(Action::TakeNote(node));
        }
        if self.may_drop_locks(state, node) {
            add(Action::DropLocks(node));
        }
        for key in (0..KEYS).filter(|key| self.may_adopt(state, node, *key)) {
            add(Action::Adopt(node, key));
        }
    }

    /// Whether nothing can happen any more, unless there is another fault.
    pub fn is_over(&self, state: &State) -> bool {
        let is_fault = |action| match action {
            Action::Die(_) | Action::Lose(_) | Action::TakeOver(_) => true,
            Action::Come(_) | Action::Return(_) => true,
            Action::Expel(node) => !state.nodes[node].dead,
            _ => false,
        };
        let mut over = true;
        self.lasting_actions(state, &mut |action| over &= is_fault(action));
        let mut sent = state.network.sent();
        over && !sent.any(|message| self.must_arrive(state, message))
    }
}
