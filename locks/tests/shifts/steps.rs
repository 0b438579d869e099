//! What may happen, and its effects.
//!
//! # Steps that are left out
//! A READ changes nothing, and what waits for it only waits longer if its answer is late: epochs
//! and counts that a waiter looks for stay as they are until it has gone on. So a READ is answered
//! at once, and only looks are taken that lead on.
//!
//! Where no verb follows, the answer of an atomic comes at once too: a client that holds a lock
//! from the first possible moment on holds it at every moment at which a slow holder would. Worlds
//! with [`World::late`] answers do without this argument.

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_locks::systems::ShiftLock;
use lotus_locks::word::{Claimant, Mode, ShiftWord};
use lotus_locks::{Backoff, Event, LockSystem, NoticeKind, Pacing, Peer, Request, Step, Verb};
use lotus_locks::{View, Waiter};
use rand::SeedableRng;
use stateright::{Model, Property};

use crate::notices::{Letter, Mailbox};
use crate::world::{BEFORE, Client, Doing, Rule, Seen, State, World};

const LEAVES: u64 = ShiftWord::RELEASE.wrapping_sub(ShiftWord::READER);

/// An action that may happen. Clients are named by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Begin(usize),
    /// A verb takes effect.
    Land(usize),
    /// The answer of a verb arrives.
    Hear(usize),
    /// The answer of an atomic is lost, which took effect or never will.
    Lose(usize),
    /// A pause is over.
    Wake(usize),
    /// A notice comes, or comes again.
    Deliver(usize),
    /// A reader gives up its wait.
    GiveUp(usize),
    Release(usize),
    Die(usize),
    /// A count comes that the hand-over has preceded.
    CountLate,
    /// The lock is marked as being reset.
    Mark,
    /// A client learns it.
    Tell(usize),
    /// The lock is freed, all clients being at rest.
    Free,
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients = (0..self.plans.len()).map(|index| self.client(index, 0, 0)).collect();
        let Self { give_ups, deaths, doubts, .. } = *self;
        vec![State {
            head: ShiftWord::free(BEFORE),
            clients,
            letters: Vec::new(),
            late_counts: 0,
            give_ups,
            deaths,
            doubts,
            wants_reset: false,
            resets: 0,
            released: 0,
            seen: Seen::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let is_marked = state.head.is_resetting();
        for (index, client) in state.clients.iter().enumerate() {
            match client.doing {
                Doing::Idle if client.round < self.plans[index].len() && !client.is_told => {
                    actions.push(Action::Begin(index));
                }
                Doing::Idle | Doing::Dead | Doing::Doubting | Doing::Listening => {}
                Doing::Posted(_) => actions.push(Action::Land(index)),
                Doing::Answered(..) => actions.push(Action::Hear(index)),
                Doing::Paused => {
                    actions.push(Action::Wake(index));
                    let is_reader = self.mode(state, index) == Mode::Shared;
                    if state.give_ups > 0 && is_reader && !client.is_leaving {
                        actions.push(Action::GiveUp(index));
                    }
                }
                Doing::Held => actions.push(Action::Release(index)),
                Doing::Barred if !is_marked && !client.is_told => {
                    actions.push(Action::Begin(index))
                }
                Doing::Barred => {}
            }
            let is_live = client.doing != Doing::Dead;
            if state.doubts > 0 && matches!(client.doing, Doing::Posted(_) | Doing::Answered(..)) {
                actions.push(Action::Lose(index));
            }
            if state.deaths > 0 && !matches!(client.doing, Doing::Idle | Doing::Dead) {
                actions.push(Action::Die(index));
            }
            if is_marked && is_live && !client.is_told {
                actions.push(Action::Tell(index));
            }
        }
        actions.extend((0..state.letters.len()).map(Action::Deliver));
        if state.late_counts > 0 {
            actions.push(Action::CountLate);
        }
        if state.wants_reset {
            actions.push(if is_marked { Action::Free } else { Action::Mark });
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(index) => self.begin(&mut state, index),
            Action::Land(index) => {
                self.land(&mut state, index);
                if !self.late {
                    self.hear(&mut state, index);
                }
            }
            Action::Hear(index) => self.hear(&mut state, index),
            Action::Lose(index) => {
                state.doubts -= 1;
                self.step(&mut state, index, Event::Lost);
            }
            Action::Wake(index) => {
                self.step(&mut state, index, Event::Paused);
                let is_reader = self.mode(last, index) == Mode::Shared;
                if is_reader && state.clients[index].doing == Doing::Paused {
                    return None;
                }
            }
            Action::Deliver(index) => self.deliver(&mut state, index),
            Action::GiveUp(index) => {
                state.give_ups -= 1;
                state.clients[index].gives_up = true;
                self.leave(&mut state, index);
            }
            Action::Release(index) => {
                // A reader's release is counted when it is certain that there is one.
                state.released += u32::from(self.mode(last, index) != Mode::Shared);
                self.leave(&mut state, index);
            }
            Action::Die(index) => {
                state.deaths -= 1;
                state.wants_reset = true;
                let client = &mut state.clients[index];
                (client.doing, client.mailbox) = (Doing::Dead, Mailbox::default());
            }
            Action::CountLate => {
                state.late_counts -= 1;
                state.head = sum(state.head, ShiftWord::RELEASE);
            }
            Action::Mark => {
                state.head = ShiftWord::of(state.head.word() | ShiftWord::RESETTING);
            }
            Action::Tell(index) => self.tell(&mut state, index),
            Action::Free => self.free(&mut state)?,
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.all_properties()
    }
}

const fn sum(word: ShiftWord, summand: u64) -> ShiftWord {
    ShiftWord::of(word.word().wrapping_add(summand))
}

impl World {
    /// A client that has ended `round` locks of its plan.
    fn client(&self, index: usize, round: usize, number: u64) -> Client {
        // There is no request behind the last one.
        let mode = self.plans[index].get(round).copied().unwrap_or(Mode::Shared);
        let life = Claimant::new(index as u8, 1);
        let who = Waiter::new(index as u8, 0, 0);
        Client {
            round,
            number,
            machine: self.system().start(Request { mode, who, life, terms: 1 }),
            doing: Doing::Idle,
            mailbox: Mailbox::default(),
            is_leaving: false,
            gives_up: false,
            is_told: false,
        }
    }

    /// A use begins, or begins anew after a reset.
    fn begin(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        let is_anew = client.doing == Doing::Barred;
        if !(is_anew && self.breaks(Rule::ResetsRenumber)) {
            client.number += 1;
        }
        client.mailbox = Mailbox::of(client.number);
        self.system().renumber(&mut client.machine, client.number);
        self.step(state, index, Event::Begin);
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
        let step = self.system().step(&mut state.clients[index].machine, event, &mut view);
        self.carry_out(state, index, step);
    }

    fn carry_out(&self, state: &mut State, index: usize, step: Step) {
        let client = &mut state.clients[index];
        let goes_on = matches!(step, Step::Post(_) | Step::Pause(_) | Step::Tell(_) | Step::Listen);
        if goes_on && client.is_told {
            // It waits no more, and takes nothing back: the reset erases that.
            return self.end_wait(state, index);
        }
        match step {
            Step::Post(Verb::Read) => {
                let found = self.as_seen(state, index, Verb::Read, state.head);
                self.step(state, index, Event::Found(found.word()));
            }
            Step::Post(Verb::Add(ShiftWord::RELEASE))
                if self.breaks(Rule::CountsPrecedeHandovers) =>
            {
                state.late_counts += 1;
                let found = state.head.word();
                self.step(state, index, Event::Found(found));
            }
            Step::Post(verb) => client.doing = Doing::Posted(verb),
            Step::Pause(_) => client.doing = Doing::Paused,
            Step::Tell(notice) => {
                self.send(state, index, notice.kind(), notice.peer());
                self.step(state, index, Event::Told);
            }
            Step::Listen => {
                client.doing = Doing::Listening;
                self.listen(state, index);
            }
            Step::Held => client.doing = Doing::Held,
            Step::Barred => client.doing = Doing::Barred,
            Step::Doubt => {
                client.doing = Doing::Doubting;
                state.wants_reset = true;
            }
            Step::Gone(Ok(())) => self.end(state, index),
            step @ (Step::Gone(Err(_)) | Step::Upgraded | Step::Await(_) | Step::Full(_)) => {
                panic!("{step:?} of a lock")
            }
        }
    }

    /// A verb takes effect.
    fn land(&self, state: &mut State, index: usize) {
        let Doing::Posted(verb) = state.clients[index].doing else { unreachable!("no verb") };
        let found = state.head;
        if verb == Verb::Add(LEAVES) {
            state.released += 1;
            state.seen.admitted |= state.clients[index].gives_up;
        }
        let swapped = |is_so: bool, new: u64, mask: u64| match is_so {
            true => ShiftWord::of(found.word() & !mask | new & mask),
            false => found,
        };
        state.head = match verb {
            Verb::Read => found,
            Verb::Add(LEAVES) => match self.broken {
                Some(Rule::ReadersRelease) => found,
                Some(Rule::ReleasesAreNotRepeated) => sum(sum(found, LEAVES), ShiftWord::RELEASE),
                Some(Rule::TheAdmittedRelease) if state.clients[index].gives_up => {
                    sum(found, ShiftWord::READER.wrapping_neg())
                }
                _ => sum(found, LEAVES),
            },
            Verb::Add(summand) => sum(found, summand),
            Verb::Swap { expected, new } => swapped(found.word() == expected, new, u64::MAX),
            Verb::Exchange { mask, new } => swapped(true, new, mask),
            Verb::SwapPart { expected, new } => {
                let is_so = (found.word() ^ expected) & ShiftLock::COMPARED == 0;
                swapped(is_so, new, ShiftLock::REPLACED)
            }
            Verb::Write { .. } | Verb::ReadQueue(_) | Verb::AddAndRead(..) | Verb::Wide => {
                unreachable!("{verb:?} is on entries")
            }
        };
        state.clients[index].doing = Doing::Answered(verb, found.word());
    }

    /// The word that a client takes for what its verb has found: another if a rule is broken.
    fn as_seen(&self, state: &State, index: usize, verb: Verb, found: ShiftWord) -> ShiftWord {
        let is_leaving = state.clients[index].is_leaving;
        let is_reader = self.mode(state, index) == Mode::Shared;
        match (self.broken, verb) {
            (Some(Rule::ModeChangesCountReaders), Verb::Add(_)) if is_leaving && !is_reader => {
                found.with_readers(0)
            }
            (Some(Rule::WritersWaitForReaders), Verb::Exchange { .. }) => found.with_readers(0),
            (Some(Rule::ReadersWaitForTheEpoch), Verb::Read) if is_reader => {
                // Another epoch than the one that it has found, of which there are two.
                found.in_epoch(!found.is_odd())
            }
            _ => found,
        }
    }

    fn hear(&self, state: &mut State, index: usize) {
        let Doing::Answered(verb, found) = state.clients[index].doing else {
            unreachable!("no verb")
        };
        if let Verb::Swap { expected, .. } = verb
            && self.mode(state, index) == Mode::Shared
        {
            state.seen.withdrawn |= found == expected;
        }
        let found = self.as_seen(state, index, verb, ShiftWord::of(found));
        self.step(state, index, Event::Found(found.word()));
    }

    fn send(&self, state: &mut State, index: usize, kind: NoticeKind, to: Peer) {
        let client = &state.clients[index];
        let who = Waiter::new(index as u8, 0, 0);
        let from = Peer { who, number: client.number };
        let letter = Letter { kind, from, to, says: self.system().says(&client.machine) };
        state.seen.handed |= kind == NoticeKind::Handover;
        state.seen.changed |= kind == NoticeKind::ModeChanged;
        if !state.letters.contains(&letter) {
            state.letters.push(letter);
        }
        state.letters.sort_by_key(|letter| {
            let Letter { kind, from, to, says } = *letter;
            (kind as u8, from.who, from.number, to.who, to.number, says)
        });
    }

    fn deliver(&self, state: &mut State, letter: usize) {
        let letter = state.letters[letter];
        let index = usize::from(letter.to.who.node());
        let client = &mut state.clients[index];
        // A turn that comes to a client after its own, where a rule is broken, is no step of it.
        let waits = client.doing == Doing::Listening && !client.is_leaving;
        if self.broken.is_some() && letter.kind != NoticeKind::Successor && !waits {
            return;
        }
        client.mailbox.put(&letter, !self.breaks(Rule::TurnsNameTheirUse));
        if client.doing == Doing::Listening {
            self.listen(state, index);
        }
    }

    /// A client that listens hears what it was told.
    fn listen(&self, state: &mut State, index: usize) {
        if let Some(step) = self.hear_notice(state, index) {
            self.carry_out(state, index, step);
        }
    }

    /// Hears a notice, if there is one; the step after it.
    fn hear_notice(&self, state: &mut State, index: usize) -> Option<Step> {
        let system = self.system();
        let client = &mut state.clients[index];
        loop {
            let (notice, says) = client.mailbox.take()?;
            let is_known = system.take_note(&mut client.machine, notice, says);
            let is_believed = notice.kind() == NoticeKind::Successor
                && self.breaks(Rule::SuccessorsAreOfThisUse)
                && self.plans[index][client.round] != Mode::Shared;
            if is_known || is_believed {
                return Some(system.hear(&mut client.machine, notice));
            }
            state.seen.refused = true;
            client.mailbox.refuse(notice.kind());
        }
    }

    fn leave(&self, state: &mut State, index: usize) {
        if state.clients[index].doing == Doing::Held {
            while self.hear_notice(state, index).is_some() {}
        }
        state.clients[index].is_leaving = true;
        self.step(state, index, Event::Leave);
    }

    /// A client learns that the lock is being reset.
    fn tell(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        client.is_told = true;
        if matches!(client.doing, Doing::Paused | Doing::Listening) {
            self.end_wait(state, index);
        }
    }

    fn end_wait(&self, state: &mut State, index: usize) {
        match state.clients[index].is_leaving {
            true => self.end(state, index),
            false => state.clients[index].doing = Doing::Barred,
        }
    }

    /// The lock is freed. `None` while a client is not at rest.
    fn free(&self, state: &mut State) -> Option<()> {
        let is_at_rest = |client: &Client| match client.doing {
            Doing::Dead => true,
            Doing::Idle | Doing::Barred | Doing::Doubting => client.is_told,
            _ => false,
        };
        if !state.clients.iter().all(is_at_rest) {
            return None;
        }
        let after = ShiftWord::of(ShiftWord::HEAD.after_reset(state.head.word()));
        let is_counted = !self.breaks(Rule::ResetsCount);
        state.head = if is_counted { after } else { ShiftWord::free(state.head.releases()) };
        (state.wants_reset, state.resets) = (false, state.resets + 1);
        for index in 0..state.clients.len() {
            let client = &mut state.clients[index];
            client.is_told = false;
            if client.doing == Doing::Doubting {
                self.end_wait(state, index);
            }
        }
        Some(())
    }

    /// The use has ended.
    fn end(&self, state: &mut State, index: usize) {
        let Client { round, number, is_told, .. } = state.clients[index];
        state.clients[index] = Client { is_told, ..self.client(index, round + 1, number) };
        // Notices that cannot be taken in any more are forgotten.
        let clients = &state.clients;
        let plans = &self.plans;
        state.letters.retain(|letter| {
            let to = usize::from(letter.to.who.node());
            clients[to].round < plans[to].len()
        });
    }
}
