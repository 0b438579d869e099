//! What may happen, and its effects.

use lotus_locks::reset::{Use, answers, free_again, may_claim};
use lotus_locks::word::{Acquired, CasRwWord, Claim, Claimant};
use stateright::{Model, Property};

use crate::state::{Client, Life, Mode, NODES, Node, Rule, State, Step, Verb, World};

/// An action that may happen. Nodes are named by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    Acquire(usize, Mode),
    /// The verb of a node's client, or of its reset, takes effect.
    Land(usize),
    LandReset(usize),
    /// The answer of a client's verb arrives.
    Hear(usize),
    HearReset(usize),
    /// The answer of a verb is lost, and its connection closed: it has taken effect, or never will.
    Lose(usize, bool),
    LoseReset(usize, bool),
    /// A reader that waits, or a node that was barred or doubts, reads the head.
    Look(usize),
    /// A reader gives up waiting.
    GiveUp(usize),
    Release(usize),
    Die(usize),
    Settle(usize),
    Join(usize),
    Claim(usize),
    /// A resetter that has the claim reads the head, and marks it.
    Mark(usize),
    /// A member is told of a reset, or answers the resetter.
    Tell(usize, usize),
    Answer(usize, usize),
    /// A resetter takes note that a member is settled.
    Note(usize, usize),
    /// A resetter reads the head and frees it.
    Free(usize),
    Unclaim(usize),
}

const fn owner(node: usize) -> u32 {
    node as u32 + 1
}

const fn claimant(node: usize) -> Claimant {
    Claimant::new(node as u8, 0)
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (index, node) in state.nodes.iter().enumerate() {
            self.actions_of(state, index, node, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.act(&mut state, action);
        (state != *last).then_some(state)
    }

    /// Doubts and deaths are few, and each is followed by few resets, unless a rule is broken.
    fn within_boundary(&self, state: &State) -> bool {
        state.head.generation() <= 4
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.all_properties()
    }
}

impl World {
    fn actions_of(&self, state: &State, index: usize, node: &Node, to: &mut Vec<Action>) {
        match node.life {
            Life::Absent => return to.push(Action::Join(index)),
            Life::Settled => return,
            Life::Dead => to.push(Action::Settle(index)),
            Life::Live => {}
        }
        // What was posted takes effect, also of the dead.
        let lands = |verb: Option<Verb>| verb.is_some_and(|verb| !matches!(verb, Verb::Answer(_)));
        if lands(node.verb) {
            to.push(Action::Land(index));
        }
        if lands(node.reset_verb) {
            to.push(Action::LandReset(index));
        }
        if node.life != Life::Live {
            return;
        }
        if state.deaths > 0 {
            to.push(Action::Die(index));
        }
        for (verb, hear, lose) in [
            (node.verb, Action::Hear(index), Action::Lose as fn(usize, bool) -> Action),
            (node.reset_verb, Action::HearReset(index), Action::LoseReset),
        ] {
            if matches!(verb, Some(Verb::Answer(_))) {
                to.push(hear);
            }
            if verb.is_some() && state.doubts > 0 {
                to.extend([lose(index, true), lose(index, false)]);
            }
        }
        match node.client {
            Client::Idle if node.attempts > 0 && node.told.is_none() => {
                to.extend([Mode::Shared, Mode::Exclusive].map(|mode| Action::Acquire(index, mode)));
            }
            Client::Waiting => to.extend([Action::Look(index), Action::GiveUp(index)]),
            Client::Holding(_) => to.push(Action::Release(index)),
            _ if node.told.is_some()
                || matches!(node.client, Client::Barred | Client::Doubting) =>
            {
                to.push(Action::Look(index));
            }
            _ => {}
        }
        self.reset_actions(state, index, node, to);
    }

    fn reset_actions(&self, state: &State, index: usize, node: &Node, to: &mut Vec<Action>) {
        match node.step {
            Step::None => {
                let doubts = node.client == Client::Doubting && node.told.is_none();
                let is_due = state.claim.epoch() < state.epoch || doubts;
                if is_due {
                    to.push(Action::Claim(index));
                }
            }
            Step::Claimed => to.push(Action::Mark(index)),
            Step::Asking => {
                let awaited = (0..NODES).filter(|member| node.awaited[*member]);
                to.extend(awaited.flat_map(|member| {
                    [Action::Tell, Action::Answer, Action::Note].map(|what| what(index, member))
                }));
                if node.awaited == [false; NODES] || self.breaks(Rule::AllAnswer) {
                    to.push(Action::Free(index));
                }
            }
            Step::Freed => to.push(Action::Unclaim(index)),
            Step::Marking | Step::Freeing => {}
        }
    }

    fn act(&self, state: &mut State, action: Action) {
        match action {
            Action::Acquire(index, mode) => {
                let node = &mut state.nodes[index];
                node.attempts -= 1;
                node.client = Client::Asking(mode);
                let (expected, owner) = (CasRwWord::free(node.seen), owner(index));
                node.verb = Some(match mode {
                    Mode::Shared => Verb::Add(CasRwWord::READER),
                    Mode::Exclusive => {
                        Verb::Swap { expected, new: CasRwWord::written(node.seen, owner) }
                    }
                });
            }
            Action::Land(index) => {
                state.nodes[index].verb = take_effect(&mut state.head, state.nodes[index].verb);
            }
            Action::LandReset(index) => {
                let verb = state.nodes[index].reset_verb;
                state.nodes[index].reset_verb = take_effect(&mut state.head, verb);
            }
            Action::Hear(index) => self.hear(&mut state.nodes[index]),
            Action::HearReset(index) => self.hear_reset(state, index),
            Action::Lose(index, lands) => {
                state.doubts -= 1;
                if lands {
                    take_effect(&mut state.head, state.nodes[index].verb);
                }
                let node = &mut state.nodes[index];
                (node.verb, node.client) = (None, Client::Doubting);
            }
            Action::LoseReset(index, lands) => {
                state.doubts -= 1;
                if lands {
                    take_effect(&mut state.head, state.nodes[index].reset_verb);
                }
                let node = &mut state.nodes[index];
                node.reset_verb = None;
                // It reads the head, and goes on from there.
                node.step = if node.step == Step::Marking { Step::Claimed } else { Step::Asking };
            }
            Action::Look(index) => self.look(state.head, &mut state.nodes[index]),
            Action::GiveUp(index) | Action::Release(index) => {
                let node = &mut state.nodes[index];
                node.verb = Some(Verb::Subtract(match node.client {
                    Client::Holding(Mode::Exclusive) => CasRwWord::owned(owner(index)),
                    _ => CasRwWord::READER,
                }));
                node.client = Client::Leaving;
            }
            Action::Die(index) => {
                state.deaths -= 1;
                state.nodes[index].life = Life::Dead;
            }
            Action::Settle(index) => {
                state.epoch += 1;
                let node = &mut state.nodes[index];
                *node = Node { life: Life::Settled, ..Node::default() };
            }
            Action::Join(index) => state.nodes[index].life = Life::Live,
            _ => self.reset(state, action),
        }
    }

    /// Carries out a step of a reset.
    fn reset(&self, state: &mut State, action: Action) {
        match action {
            Action::Claim(index) => {
                let is_settled = |other: Claimant| match state.nodes[usize::from(other.node())].life
                {
                    Life::Settled => true,
                    Life::Dead => self.breaks(Rule::ClaimsAreOfTheSettled),
                    _ => false,
                };
                if let Some(claim) = may_claim(state.claim, claimant(index), is_settled) {
                    state.claim = claim;
                    state.nodes[index].step = Step::Claimed;
                    if self.breaks(Rule::MembersAreLearntLast) {
                        self.learn(state, index);
                    }
                }
            }
            Action::Mark(index) => {
                if state.head.is_resetting() {
                    self.ask(state, index);
                } else {
                    let node = &mut state.nodes[index];
                    node.reset_verb = Some(Verb::Add(CasRwWord::RESETTING));
                    node.step = Step::Marking;
                }
            }
            Action::Tell(_, member) => {
                let (head, node) = (state.head, &mut state.nodes[member]);
                if node.life == Life::Live && head.is_resetting() {
                    node.told = Some(self.generation(head));
                    if node.client == Client::Waiting {
                        node.client = Client::Barred;
                    }
                }
            }
            Action::Answer(index, member) => {
                let node = &state.nodes[member];
                let holds = matches!(node.client, Client::Holding(_))
                    && !self.breaks(Rule::HoldersAreWaitedFor);
                let posts = node.verb.is_some() && !self.breaks(Rule::VerbsUnderWayAreWaitedFor);
                let told =
                    node.life == Life::Live && node.told == Some(self.generation(state.head));
                if told
                    && answers(CasRwWord::HEAD, state.head.word(), Use { holds, posts })
                        == Some(true)
                {
                    state.nodes[index].awaited[member] = false;
                }
            }
            Action::Note(index, member) => {
                let is_over = match state.nodes[member].life {
                    Life::Settled => true,
                    Life::Dead => self.breaks(Rule::TheDeadAreSettled),
                    _ => false,
                };
                state.nodes[index].awaited[member] &= !is_over;
            }
            Action::Free(index) => {
                let (found, node) = (state.head, &mut state.nodes[index]);
                let forced = self.breaks(Rule::OnlyMarkedLocksAreFreed);
                let freed = free_again(CasRwWord::HEAD, found.word()).map(CasRwWord::of);
                match freed.or(forced.then(|| found.after_reset())) {
                    Some(new) => {
                        node.reset_verb = Some(Verb::Swap { expected: found, new });
                        node.step = Step::Freeing;
                    }
                    None => node.step = Step::Freed,
                }
            }
            Action::Unclaim(index) => {
                let node = &mut state.nodes[index];
                state.claim = Claim::new(node.epoch, None);
                node.step = Step::None;
            }
            _ => unreachable!("it is no step of a reset"),
        }
    }

    /// Reads the membership: all members must answer.
    fn learn(&self, state: &mut State, index: usize) {
        let members: [bool; NODES] = std::array::from_fn(|member| {
            matches!(state.nodes[member].life, Life::Live | Life::Dead)
        });
        let epoch = state.epoch;
        let node = &mut state.nodes[index];
        (node.awaited, node.epoch) = (members, epoch);
    }

    /// Begins to ask the members, the resetter's own node among them.
    fn ask(&self, state: &mut State, index: usize) {
        if !self.breaks(Rule::MembersAreLearntLast) {
            self.learn(state, index);
        }
        state.nodes[index].step = Step::Asking;
    }

    fn hear_reset(&self, state: &mut State, index: usize) {
        state.nodes[index].reset_verb = None;
        match state.nodes[index].step {
            Step::Marking => self.ask(state, index),
            // Whether it was freed, the head says: an acquisition may have added something.
            _ => state.nodes[index].step = Step::Asking,
        }
    }

    /// A client learns what the word was before its verb.
    fn hear(&self, node: &mut Node) {
        let Some(Verb::Answer(found)) = node.verb.take() else { return };
        let Client::Asking(mode) = node.client else {
            node.client = Client::Idle;
            return;
        };
        let acquired = match mode {
            Mode::Shared => found.to_reader(),
            Mode::Exclusive => found.to_writer(CasRwWord::free(node.seen)),
        };
        if !found.is_resetting() {
            node.seen = found.generation();
        }
        node.client = match acquired {
            Acquired::Held => Client::Holding(mode),
            // It was told while its verb was under way: this wait has ended before it begins.
            Acquired::Behind if node.told.is_some() && !self.breaks(Rule::WaitsEnd) => {
                Client::Barred
            }
            Acquired::Behind => Client::Waiting,
            Acquired::Refused => Client::Idle,
            Acquired::Resetting => Client::Barred,
        };
    }

    /// A client reads the head.
    fn look(&self, head: CasRwWord, node: &mut Node) {
        let over = |head: CasRwWord, node: &Node| match self.breaks(Rule::DoubtersAreTold) {
            true => head.generation() != node.seen,
            false => node.told.is_some_and(|told| self.nameless || told != head.generation()),
        };
        let slept = !self.nameless && head.generation() != node.seen;
        match node.client {
            Client::Waiting if head.is_resetting() => node.client = Client::Barred,
            Client::Waiting if slept => node.client = Client::Idle,
            Client::Waiting if head.owner() == 0 => node.client = Client::Holding(Mode::Shared),
            Client::Waiting => {}
            _ if head.is_resetting() => {}
            Client::Barred => {
                (node.client, node.told, node.seen) = (Client::Idle, None, head.generation());
            }
            // Its atomic may be in the head of any generation up to the one that it is told of.
            Client::Doubting if over(head, node) => {
                (node.client, node.told, node.seen) = (Client::Idle, None, head.generation());
            }
            Client::Doubting => {}
            _ => node.told = None,
        }
    }
}

/// Carries out a verb; returns its answer.
fn take_effect(head: &mut CasRwWord, verb: Option<Verb>) -> Option<Verb> {
    let found = *head;
    match verb? {
        Verb::Add(summand) => *head = CasRwWord::of(found.word().wrapping_add(summand)),
        Verb::Subtract(summand) => *head = CasRwWord::of(found.word().wrapping_sub(summand)),
        Verb::Swap { expected, new } if expected == found => *head = new,
        Verb::Swap { .. } => {}
        Verb::Answer(_) => return verb,
    }
    Some(Verb::Answer(found))
}
