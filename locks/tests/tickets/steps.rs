//! What may happen, and its effects.
//!
//! # Steps that are left out
//! Nobody but its client sees that a verb is under way. So a verb takes effect in the step that
//! posts it, which may come at any time.
//!
//! Nor does anybody see that an answer is under way. Where no verb follows, it comes at once:
//! whoever holds a lock from the first possible moment on, until its release takes effect, holds
//! it at every moment at which a slow holder would. Worlds with [`World::late`] answers do without
//! this argument.
//!
//! A look in vain changes nothing but the number of looks, which decides the lengths of pauses. So
//! only looks are taken that lead on. Who comes again while the counters are used up does change
//! the word for others: it does so once in vain, and then only when they are set back, as if its
//! pauses had become long. Thus each path ends.

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_locks::word::{Claimant, Mode, Tickets};
use lotus_locks::{Backoff, Event, LockSystem, Pacing, Request, Step, Verb, View, Waiter};
use rand::SeedableRng;
use stateright::{Model, Property};

use crate::world::{Client, Doing, FIELDS, Rule, State, World, system};

/// How often one request may come again while the counters are used up.
const IN_VAIN: u8 = 1;

/// An action that may happen. Clients are named by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Begin(usize),
    /// The answer of a verb arrives.
    Hear(usize),
    /// The answer of a READ is lost.
    Lose(usize),
    /// A pause is over.
    Wake(usize),
    /// A client gives up its wait.
    GiveUp(usize),
    Release(usize),
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let count = self.served;
        let tickets = Tickets { n_x: count, n_s: count, max_x: count, max_s: count };
        let head = FIELDS.with(tickets, 0);
        let clients = (0..self.plans.len()).map(|index| self.client(index, 0)).collect();
        vec![State { head, clients, queue: Vec::new(), ghosts: self.ghosts }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.broken.is_some() && has_run_over(FIELDS.of(state.head)) {
            return;
        }
        for (index, client) in state.clients.iter().enumerate() {
            match client.doing {
                Doing::Idle if client.round < self.plans[index].len() => {
                    actions.push(Action::Begin(index));
                }
                Doing::Idle => {}
                Doing::Answered(verb, found) => {
                    actions.push(Action::Hear(index));
                    // Of an atomic it would have to be known whether it took effect: a reset.
                    if verb == Verb::Read && found != state.head {
                        actions.push(Action::Lose(index));
                    }
                }
                Doing::Paused => {
                    if self.leads_on(state, index) {
                        actions.push(Action::Wake(index));
                    }
                    if state.ghosts > 0 && !client.is_ghost && !client.is_leaving {
                        actions.push(Action::GiveUp(index));
                    }
                }
                Doing::Held => actions.push(Action::Release(index)),
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let index = self.act(&mut state, action);
        if !self.late && matches!(state.clients[index].doing, Doing::Answered(..)) {
            let mut after = state.clone();
            self.hear(&mut after, index);
            if !matches!(after.clients[index].doing, Doing::Answered(..)) {
                state = after;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.all_properties()
    }
}

impl World {
    /// Returns whose action it was.
    fn act(&self, state: &mut State, action: Action) -> usize {
        match action {
            Action::Begin(index) => self.step(state, index, Event::Begin),
            Action::Hear(index) => self.hear(state, index),
            Action::Lose(index) => self.step(state, index, Event::Lost),
            Action::Wake(index) => self.step(state, index, Event::Paused),
            Action::GiveUp(index) => self.give_up(state, index),
            Action::Release(index) => self.leave(state, index),
        }
        let (Action::Begin(index)
        | Action::Hear(index)
        | Action::Lose(index)
        | Action::Wake(index)
        | Action::GiveUp(index)
        | Action::Release(index)) = action;
        index
    }

    /// A client that has ended `round` locks of its plan.
    fn client(&self, index: usize, round: usize) -> Client {
        // There is no request behind the last one.
        let (mode, terms) = self.plans[index].get(round).copied().unwrap_or((Mode::Shared, 1));
        let life = Claimant::new(index as u8, 1);
        let who = Waiter::new(index as u8, 0, 0);
        Client {
            round,
            machine: system().start(Request { mode, who, life, terms }),
            doing: Doing::Idle,
            ticket: 0,
            is_counted: false,
            is_ghost: false,
            is_leaving: false,
            in_vain: 0,
        }
    }

    /// Whether something comes of the next look of a client that pauses.
    fn leads_on(&self, state: &State, index: usize) -> bool {
        let client = &state.clients[index];
        if system().can_leave(&client.machine) {
            let is_used_up = FIELDS.is_full(state.head);
            return client.in_vain <= IN_VAIN || !is_used_up;
        }
        let mut after = state.clone();
        self.step(&mut after, index, Event::Paused);
        self.hear(&mut after, index);
        after.clients[index].doing != Doing::Paused
    }

    /// Gives an event to a client's machine, and carries out what it wants.
    fn step(&self, state: &mut State, index: usize, event: Event) {
        let mut rng = SmallRng::seed_from_u64(0);
        let mut backoff = Backoff::new(Pacing::NONE);
        let mut view = View {
            clock: &|| Nanos(0),
            posted: Nanos(0),
            rng: &mut rng,
            backoff: &mut backoff,
            is_settled: &|_| false,
            entries: &[],
        };
        let client = &mut state.clients[index];
        match system().step(&mut client.machine, event, &mut view) {
            Step::Post(Verb::Swap { .. }) if self.breaks(Rule::UsedUpCountersAreSetBack) => {
                self.end(state, index);
            }
            Step::Post(verb) => {
                let found = self.take_effect(state, index, verb);
                state.clients[index].doing = Doing::Answered(verb, found);
            }
            Step::Pause(_) if client.is_ghost && system().can_leave(&client.machine) => {
                self.leave(state, index);
            }
            Step::Pause(_) => client.doing = Doing::Paused,
            Step::Held => client.doing = Doing::Held,
            Step::Gone(Ok(())) => self.end(state, index),
            step => panic!("{step:?} of a lock that is not reset"),
        }
    }

    /// Carries out a verb; returns the word that it has found.
    fn take_effect(&self, state: &mut State, index: usize, verb: Verb) -> u64 {
        let found = state.head;
        let summand = match verb {
            Verb::Read => return found,
            Verb::Swap { expected, new } => {
                let is_forced = self.breaks(Rule::DrainsWaitForTheirTurn);
                if expected == found || is_forced {
                    state.head = new;
                }
                return if is_forced { expected } else { found };
            }
            Verb::Add(summand) => summand,
            Verb::Exchange { .. }
            | Verb::SwapPart { .. }
            | Verb::Write { .. }
            | Verb::ReadQueue(_)
            | Verb::AddAndRead(..)
            | Verb::Wide => unreachable!("tickets are added"),
        };
        let (mode, count) = self.request(state, index);
        let client = &mut state.clients[index];
        let times = if summand == FIELDS.asking(mode, count) {
            (client.ticket, client.is_counted) = (found, true);
            match FIELDS.is_full(found) {
                true => client.in_vain += 1,
                false => {
                    client.in_vain = 0;
                    state.queue.push(index);
                }
            }
            1
        } else if summand == FIELDS.leaving(mode, count) {
            client.is_counted = false;
            state.queue.retain(|other| *other != index);
            match self.broken {
                Some(Rule::HoldersRelease) => 0,
                Some(Rule::ReleasesAreNotRepeated) => 2,
                _ => 1,
            }
        } else {
            assert_eq!(summand, FIELDS.asking(mode, count).wrapping_neg(), "it takes it back");
            client.is_counted = false;
            u64::from(!self.breaks(Rule::TheSentAwayTakeBack))
        };
        state.head = found.wrapping_add(summand.wrapping_mul(times));
        found
    }

    fn hear(&self, state: &mut State, index: usize) {
        let client = &state.clients[index];
        let Doing::Answered(verb, found) = client.doing else { unreachable!("no verb") };
        let (mode, count) = self.request(state, index);
        let (ticket, mut seen) = (FIELDS.of(client.ticket), FIELDS.of(found));
        let waits = verb == Verb::Read || verb == Verb::Add(FIELDS.asking(mode, count));
        match (self.broken, mode) {
            (Some(Rule::ReadersIgnoreSiblings), Mode::Shared)
                if verb == Verb::Read && seen.n_s > ticket.max_s =>
            {
                return self.end(state, index);
            }
            (Some(Rule::ReadersWaitForWriters), Mode::Shared) if waits => seen.n_x = ticket.max_x,
            (Some(Rule::WritersWaitForReaders), Mode::Exclusive) if waits => {
                seen.n_s = ticket.max_s;
            }
            _ => {}
        }
        self.step(state, index, Event::Found(FIELDS.with(seen, found)));
    }

    /// Nobody waits for a client's lock any more: it takes its turn and releases, or goes at once
    /// if its ticket was taken back. While a verb is under way, it makes no difference yet.
    fn give_up(&self, state: &mut State, index: usize) {
        let (mode, count) = self.request(state, index);
        state.ghosts -= 1;
        let client = &mut state.clients[index];
        client.is_ghost = true;
        if system().can_leave(&client.machine) {
            self.leave(state, index);
        } else if self.breaks(Rule::GhostsWait) {
            self.take_effect(state, index, Verb::Add(FIELDS.leaving(mode, count)));
            self.end(state, index);
        } else if self.breaks(Rule::GhostsRelease) {
            self.end(state, index);
        }
    }

    fn leave(&self, state: &mut State, index: usize) {
        state.clients[index].is_leaving = true;
        self.step(state, index, Event::Leave);
    }

    /// The use has ended.
    fn end(&self, state: &mut State, index: usize) {
        state.queue.retain(|other| *other != index);
        let round = state.clients[index].round + 1;
        state.clients[index] = self.client(index, round);
    }
}

/// Whether more tickets were served than given, or a counter has borrowed from another: a broken
/// rule has done its harm, and the next sum might not fit the word.
fn has_run_over(tickets: Tickets) -> bool {
    let Tickets { n_x, n_s, max_x, max_s } = tickets;
    n_x > max_x || n_s > max_s || max_x.max(max_s) > FIELDS.limit() * 3 / 2
}
