//! What may happen, and its effects.
//!
//! # Steps that are left out
//! A verb on one word takes effect at one moment, and its answer changes nothing for others: so the
//! answer comes at once. A batch takes effect in two steps, the head first, then the entries, and
//! others come between.
//!
//! A look in vain changes nothing but the number of looks, which decides the lengths of pauses. So
//! a waiter looks when that leads on, and besides a few times, in two steps. A release that
//! searches looks again when that leads on, or gives up, as it does after many looks in vain.
//! Thus each path ends.
//!
//! A reset is one step, taken when each client is idle, or waits for it: `tests/reset` has its
//! steps. Before, the head is marked, and each waiter ends its wait.

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_locks::word::{Age, Claimant, Mode, QueueEntry, QueueHeader};
use lotus_locks::{
    Backoff, Event, LockSystem, Notice, NoticeKind, Pacing, Peer, Request, Step, Verb, View, Waiter,
};
use rand::SeedableRng;
use stateright::{Model, Property};

use crate::world::{Client, Doing, Rule, State, World};

/// An action that may happen. Clients are named by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Begin(usize),
    /// A verb takes effect, or half of it.
    TakeEffect(usize),
    /// A notice is sent.
    Tell(usize),
    /// The notice of this number in the list arrives.
    Hear(usize),
    Lose(usize),
    /// A waiter looks, in one step or more.
    Look(usize),
    LookSlowly(usize),
    /// A release reads entries again, or does so no more.
    Search(usize),
    GiveUp(usize),
    Release(usize),
    /// The head is marked.
    Mark,
    /// A waiter ends its wait, because the head is marked.
    Bar(usize),
    Reset,
}

fn who(index: usize) -> Waiter {
    Waiter::new(index as u8, 0, 0)
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let fields = self.fields();
        let head = fields.word(QueueHeader { head: self.served, ..fields.of(0) });
        let mut entries = vec![0; self.capacity as usize];
        for index in self.served.saturating_sub(self.capacity.into())..self.served {
            let entry = QueueEntry { writes: index % 4 == 2, timestamp: 0, who: who(0).raw() };
            entries[fields.place(index) as usize] = fields.entry(index, entry);
        }
        vec![State {
            head,
            entries,
            clients: (0..self.plans.len()).map(|index| self.client(index, 0)).collect(),
            notices: Vec::new(),
            losses: self.losses,
            looks: self.looks,
            is_wanted: false,
            was_reset: false,
            has_looked: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A broken rule has done its harm, and the next sum might not fit the head.
        if self.broken.is_some() && !self.counts(state) {
            return;
        }
        let is_marked = self.fields().of(state.head).is_resetting;
        for (index, client) in state.clients.iter().enumerate() {
            match client.doing {
                Doing::Idle if client.round < self.plans[index].len() => {
                    actions.push(Action::Begin(index));
                }
                Doing::Idle | Doing::Barred => {}
                Doing::Posted(_) | Doing::Half(..) => actions.push(Action::TakeEffect(index)),
                Doing::Telling(..) => actions.push(Action::Tell(index)),
                Doing::Waiting => {
                    if is_marked {
                        actions.push(Action::Bar(index));
                    }
                    if self.breaks(Rule::WaitersLook) {
                        continue;
                    }
                    if self.finds_its_turn(state, index) {
                        actions.push(Action::Look(index));
                    }
                    if state.looks > 0 {
                        actions.push(Action::LookSlowly(index));
                    }
                }
                Doing::Paused(_) => {
                    if self.finds_more(state, index) {
                        actions.push(Action::Search(index));
                    }
                    actions.push(Action::GiveUp(index));
                }
                Doing::Held => actions.push(Action::Release(index)),
            }
        }
        for number in 0..state.notices.len() {
            actions.push(Action::Hear(number));
            if state.losses > 0 {
                actions.push(Action::Lose(number));
            }
        }
        if state.is_wanted && !is_marked && !self.breaks(Rule::OverflowIsReset) {
            actions.push(Action::Mark);
        }
        let is_quiet = |client: &Client| matches!(client.doing, Doing::Idle | Doing::Barred);
        if is_marked && (state.clients.iter().all(is_quiet) || self.breaks(Rule::ResetsQuiesce)) {
            actions.push(Action::Reset);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(index) => self.step(&mut state, index, Event::Begin),
            Action::TakeEffect(index) => self.take_effect(&mut state, index),
            Action::Tell(index) => self.tell(&mut state, index),
            Action::Hear(number) => self.hear(&mut state, number),
            Action::Lose(number) => {
                state.notices.remove(number);
                state.losses -= 1;
            }
            Action::Look(index) => {
                self.look(&mut state, index);
                state.has_looked = true;
            }
            Action::LookSlowly(index) => {
                state.looks -= 1;
                self.step(&mut state, index, Event::Paused);
            }
            Action::Search(index) => self.look(&mut state, index),
            Action::GiveUp(index) => self.end(&mut state, index),
            Action::Release(index) => {
                state.clients[index].is_leaving = true;
                self.step(&mut state, index, Event::Leave);
            }
            Action::Mark => state.head += 1,
            Action::Bar(index) => self.bar(&mut state, index),
            Action::Reset => self.reset(&mut state),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.all_properties()
    }
}

impl World {
    /// A client that has ended `round` locks of its plan.
    fn client(&self, index: usize, round: usize) -> Client {
        // There is no request behind the last one.
        let mode = self.plans[index].get(round).copied().unwrap_or(Mode::Shared);
        let life = Claimant::new(index as u8, 1);
        let request = Request { mode, who: who(index), life, terms: 1 };
        Client {
            round,
            machine: self.system().start(request),
            doing: Doing::Idle,
            turn: None,
            is_told: false,
            is_leaving: false,
            entries: Vec::new(),
        }
    }

    /// Gives an event to a client's machine, and notes what it wants.
    fn step(&self, state: &mut State, index: usize, event: Event) {
        let mut rng = SmallRng::seed_from_u64(0);
        let mut backoff = Backoff::new(Pacing::NONE);
        let client = &mut state.clients[index];
        let mut view = View {
            clock: &|| Nanos(0),
            posted: Nanos(0),
            rng: &mut rng,
            backoff: &mut backoff,
            is_settled: &|_| false,
            entries: &client.entries,
        };
        let step = self.system().step(&mut client.machine, event, &mut view);
        self.carry_out(state, index, step);
    }

    fn carry_out(&self, state: &mut State, index: usize, step: Step) {
        let client = &mut state.clients[index];
        match step {
            // A search is taken up again when that leads on.
            Step::Post(Verb::ReadQueue(part)) if client.is_leaving => {
                client.doing = Doing::Paused(part);
            }
            Step::Pause(_) => self.step(state, index, Event::Paused),
            Step::Post(verb) => {
                if let Verb::Write { .. } = verb {
                    let turn = self.system().turn(&client.machine);
                    (client.turn, client.is_told) = (Some(turn), false);
                }
                client.doing = Doing::Posted(verb);
            }
            Step::Await(_) if client.is_told => {
                let peer = Peer { who: who(index), number: 0 };
                let notice = Notice::new(NoticeKind::Handover, peer);
                let step = self.system().hear(&mut client.machine, notice);
                self.carry_out(state, index, step);
            }
            Step::Await(_) => client.doing = Doing::Waiting,
            Step::Tell(notice) => {
                let Peer { who, number } = notice.peer();
                client.doing = Doing::Telling(who.raw(), number);
            }
            Step::Held => client.doing = Doing::Held,
            Step::Barred => self.bar(state, index),
            Step::Full(_) => {
                state.is_wanted = true;
                self.bar(state, index);
            }
            Step::Gone(Ok(())) => self.end(state, index),
            step => panic!("{step:?} where no answer is lost"),
        }
    }

    /// A posted verb takes effect, or one half of it.
    fn take_effect(&self, state: &mut State, index: usize) {
        let found = state.head;
        match state.clients[index].doing {
            Doing::Posted(Verb::Add(summand)) => {
                state.head = found.wrapping_add(summand);
                self.step(state, index, Event::Found(found));
            }
            Doing::Posted(Verb::Write { entry, word }) => {
                state.entries[entry as usize] = word;
                self.step(state, index, Event::Written);
            }
            Doing::Posted(Verb::AddAndRead(summand, part)) => {
                let summand = if self.breaks(Rule::HoldersRelease) { 0 } else { summand };
                state.head = found.wrapping_add(summand);
                state.clients[index].doing = Doing::Half(found, part);
            }
            Doing::Posted(Verb::ReadQueue(part)) => {
                state.clients[index].doing = Doing::Half(found, part);
            }
            Doing::Half(head, part) => {
                let (head, mut entries) = self.seen(state, index, head);
                let is_read = |place| (part.first..part.first + part.count).contains(&place);
                for (_, word) in (0..).zip(&mut entries).filter(|(place, _)| !is_read(*place)) {
                    *word = 0;
                }
                state.clients[index].entries = entries;
                self.step(state, index, Event::Found(head));
                state.clients[index].forget();
            }
            doing => unreachable!("{doing:?} is no verb"),
        }
    }

    /// What a client makes of the words that it has read, if a rule is broken.
    fn seen(&self, state: &State, index: usize, head: u64) -> (u64, Vec<u64>) {
        let mut entries = state.entries.clone();
        let mut queue = self.fields().of(head);
        let client = &state.clients[index];
        match self.broken {
            Some(Rule::EntriesHaveLaps) => {
                let first = queue.head + u64::from(client.is_leaving);
                for index in first..first + u64::from(self.capacity) {
                    let word = &mut entries[self.fields().place(index) as usize];
                    let earlier = index.checked_sub(u64::from(self.capacity));
                    let age = earlier.map(|earlier| self.fields().age(*word, earlier));
                    if let Some(Age::Current(entry)) = age {
                        *word = self.fields().entry(index, entry);
                    }
                }
            }
            Some(Rule::WritersAreLocated) if !client.is_leaving => {
                queue.writers = self.fields().writers(&entries, queue.head, queue.end());
            }
            Some(Rule::WritersWaitForAll)
                if !client.is_leaving && self.mode(state, index) != Mode::Shared =>
            {
                let turn = self.system().turn(&client.machine);
                queue.head = self.fields().turn(0, turn) & (self.fields().turn(1, 0) - 1);
            }
            Some(Rule::WritersAreToldLast) if client.is_leaving => {
                for index in queue.head..queue.end() {
                    let word = &mut entries[self.fields().place(index) as usize];
                    if let Age::Current(entry) = self.fields().age(*word, index) {
                        let entry = QueueEntry { writes: false, ..entry };
                        *word = self.fields().entry(index, entry);
                    }
                }
            }
            _ => {}
        }
        (self.fields().word(queue), entries)
    }

    /// Reads the words at one moment.
    fn look(&self, state: &mut State, index: usize) {
        if state.clients[index].doing == Doing::Waiting {
            self.step(state, index, Event::Paused);
        }
        let (Doing::Posted(Verb::ReadQueue(part)) | Doing::Paused(part)) =
            state.clients[index].doing
        else {
            unreachable!("it looks at nothing")
        };
        state.clients[index].doing = Doing::Half(state.head, part);
        self.take_effect(state, index);
    }

    /// Whether a waiter holds the lock when it has looked.
    fn finds_its_turn(&self, state: &State, index: usize) -> bool {
        let mut after = state.clone();
        self.look(&mut after, index);
        after.clients[index].doing == Doing::Held
    }

    /// Whether a release knows more when it has read the entries again.
    fn finds_more(&self, state: &State, index: usize) -> bool {
        let mut after = state.clone();
        self.look(&mut after, index);
        after.clients[index].doing != state.clients[index].doing
    }

    /// Sends a notice.
    fn tell(&self, state: &mut State, index: usize) {
        let Doing::Telling(who, number) = state.clients[index].doing else {
            unreachable!("it tells nobody")
        };
        state.notices.push((who, number));
        state.notices.sort_unstable();
        self.step(state, index, Event::Told);
        state.clients[index].forget();
    }

    fn hear(&self, state: &mut State, number: usize) {
        let (name, turn) = state.notices.remove(number);
        let Some(index) = (0..state.clients.len()).find(|index| who(*index).raw() == name) else {
            return;
        };
        let client = &mut state.clients[index];
        let index_of = |turn: u64| turn & (self.fields().turn(1, 0) - 1);
        let is_meant = client.turn.is_some_and(|own| match self.broken {
            Some(Rule::TurnsNameGenerations) => index_of(own) == index_of(turn),
            _ => own == turn,
        });
        if !is_meant || client.is_told {
            return;
        }
        client.is_told = true;
        if client.doing == Doing::Waiting {
            let await_again = Step::Await(std::time::Duration::ZERO);
            self.carry_out(state, index, await_again);
        }
    }

    /// A client waits for the end of a reset; one that releases has ended.
    fn bar(&self, state: &mut State, index: usize) {
        if state.clients[index].is_leaving {
            return self.end(state, index);
        }
        let client = &mut state.clients[index];
        (client.doing, client.turn, client.is_told) = (Doing::Barred, None, false);
        client.entries = Vec::new();
    }

    /// The lock becomes free, of the next generation, and all that waited for that begin anew.
    fn reset(&self, state: &mut State) {
        state.head = self.fields().head().after_reset(state.head);
        if !self.breaks(Rule::ResetsClearEntries) {
            state.entries.fill(0);
        }
        (state.is_wanted, state.was_reset) = (false, true);
        for index in 0..state.clients.len() {
            if state.clients[index].doing == Doing::Barred {
                self.step(state, index, Event::Begin);
            }
        }
    }

    /// The use has ended.
    fn end(&self, state: &mut State, index: usize) {
        let round = state.clients[index].round + 1;
        state.clients[index] = self.client(index, round);
    }
}

impl Client {
    /// What was read is of use only to one that has more to tell.
    fn forget(&mut self) {
        if !matches!(self.doing, Doing::Telling(..)) {
            self.entries = Vec::new();
        }
    }
}
