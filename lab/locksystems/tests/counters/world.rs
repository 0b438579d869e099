//! Configurations, states, what may happen, and what must hold.

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::verbs::Capabilities;
use lotus_locks::word::{Claimant, Mode};
use lotus_locks::{
    Backoff, Event, LockSystem, Notice, NoticeKind, Pacing, Peer, Request, Step, Verb, View, Waiter,
};
use lotus_locksystems::systems::{RmaRw, RmaRwUse};
use lotus_locksystems::word::RmaRwCounts;
use rand::SeedableRng;
use stateright::{Model, Property};

/// A rule that can be broken, to show that a property detects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// A writer waits for the readers that came before it was announced.
    WritersWaitForReaders,
    /// A reader that comes when writers have the lock does not hold it.
    ReadersHeedWriters,
    /// Used-up counters are set back only while they are what they were.
    CountersAreSetBackOnce,
    /// A writer that hands on says what the counters are.
    HandoversSayTheCounts,
    /// A reader that is refused is not counted any more.
    RefusedReadersLeave,
}

/// Modes in which a client takes the lock, one after another.
pub type Plan = &'static [Mode];

/// One configuration to explore.
#[derive(Clone, Debug)]
pub struct World {
    pub plans: Vec<Plan>,
    /// Readers that have come, and gone, before.
    pub come: u32,
    /// The most writers in a row.
    pub most_writers: u32,
    pub has_masks: bool,
    /// Number of waits that may be given up.
    pub give_ups: u8,
    pub broken: Option<Rule>,
}

/// Where the use of a client stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Idle,
    /// The verb has taken effect. The word that it has found is on its way back.
    Answered(Verb, u64),
    Paused,
    Listening,
    Held,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    /// Number of the present or next lock of its plan.
    round: usize,
    machine: RmaRwUse,
    doing: Doing,
    is_ghost: bool,
    is_leaving: bool,
    /// Whether it is a reader that has come and not gone, or taken that back.
    is_counted: bool,
    /// Notices that it has not heard yet.
    unheard: Vec<(Notice, u64)>,
}

/// A notice under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Letter {
    to: Peer,
    notice: Notice,
    says: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    words: [u64; 2],
    clients: Vec<Client>,
    letters: Vec<Letter>,
    give_ups: u8,
    /// Whether a writer was handed the lock at once.
    handed_on: bool,
    /// Whether readers were admitted by a writer that had a successor.
    admitted: bool,
    set_back: bool,
}

/// An action of a client, or the arrival of a notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Begin(usize),
    /// The answer of a verb arrives.
    Hear(usize),
    /// A pause is over.
    Wake(usize),
    /// A notice arrives.
    Deliver(usize),
    /// A client gives up its wait.
    GiveUp(usize),
    Release(usize),
}

pub const EXCLUSION: &str = "who writes is alone";
pub const COUNTS: &str = "the counters are of those who are there";
pub const REST: &str = "a lock at rest is free";
pub const PROGRESS: &str = "nobody waits for ever";
pub const BESIDE: &str = "two readers hold the lock";
pub const CAME_BETWEEN: &str = "a writer is announced while a reader holds the lock";
pub const HANDED_ON: &str = "a writer hands the lock on";
pub const ADMITTED: &str = "a writer admits readers though another waits";
pub const SET_BACK: &str = "a reader sets the counters back";

impl World {
    fn system(&self) -> RmaRw {
        let mut system = RmaRw::new(self.most_writers);
        let masked_atomics = self.has_masks;
        system.fit(&Capabilities { masked_atomics, ..Capabilities::default() });
        system
    }

    fn mode(&self, state: &State, index: usize) -> Mode {
        self.plans[index][state.clients[index].round]
    }

    /// Name and number of a client's use.
    fn peer(index: usize, round: usize) -> Peer {
        Peer { who: Waiter::new(index as u8, 0, 0), number: round as u64 + 1 }
    }

    /// A client that has ended `round` locks of its plan.
    fn client(&self, index: usize, round: usize) -> Client {
        let mode = self.plans[index].get(round).copied().unwrap_or(Mode::Shared);
        let Peer { who, number } = Self::peer(index, round);
        let life = Claimant::new(index as u8, 1);
        let mut machine = self.system().start(Request { mode, who, life, terms: 1 });
        self.system().renumber(&mut machine, number);
        Client {
            round,
            machine,
            doing: Doing::Idle,
            is_ghost: false,
            is_leaving: false,
            is_counted: false,
            unheard: Vec::new(),
        }
    }

    fn is_done(&self, state: &State) -> bool {
        state.clients.iter().zip(&self.plans).all(|(client, plan)| client.round == plan.len())
    }

    /// Whether something comes of the next look of a client that pauses.
    fn leads_on(&self, state: &State, index: usize) -> bool {
        let mut after = state.clone();
        self.step(&mut after, index, Event::Paused);
        while matches!(after.clients[index].doing, Doing::Answered(Verb::Read, _)) {
            self.answer(&mut after, index);
        }
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
        let step = self.system().step(&mut state.clients[index].machine, event, &mut view);
        self.carry_out(state, index, step);
    }

    fn carry_out(&self, state: &mut State, index: usize, step: Step) {
        let system = self.system();
        let client = &mut state.clients[index];
        match step {
            Step::Post(verb) => {
                let found = self.take_effect(state, index, verb);
                state.clients[index].doing = Doing::Answered(verb, found);
            }
            Step::Pause(_) if client.is_ghost && system.can_leave(&client.machine) => {
                self.step(state, index, Event::Leave);
            }
            Step::Pause(_) => client.doing = Doing::Paused,
            Step::Listen => {
                client.doing = Doing::Listening;
                self.listen(state, index);
            }
            Step::Tell(notice) => {
                let says = system.says(&client.machine);
                let from = Self::peer(index, client.round);
                let told = Notice::new(notice.kind(), from);
                if notice.kind() == NoticeKind::Handover {
                    state.handed_on |= says != 0;
                    state.admitted |= says == 0;
                }
                let says = match self.broken {
                    Some(Rule::HandoversSayTheCounts) if says != 0 => says + 1,
                    _ => says,
                };
                state.letters.push(Letter { to: notice.peer(), notice: told, says });
                self.step(state, index, Event::Told);
            }
            Step::Held => {
                client.doing = Doing::Held;
                if client.is_ghost {
                    self.release(state, index);
                }
            }
            Step::Gone(Ok(())) => {
                let round = client.round + 1;
                state.clients[index] = self.client(index, round);
            }
            step => panic!("{step:?} of a lock that is not reset"),
        }
    }

    /// Carries out a verb; returns the word that it has found.
    fn take_effect(&self, state: &mut State, index: usize, verb: Verb) -> u64 {
        let client = &mut state.clients[index];
        let is_second = self.system().is_second(&client.machine);
        let word = &mut state.words[usize::from(is_second)];
        let found = *word;
        match verb {
            Verb::Read => {}
            Verb::Exchange { mask, new } => *word = found & !mask | new,
            Verb::SwapPart { .. }
            | Verb::Write { .. }
            | Verb::ReadQueue(_)
            | Verb::AddAndRead(..)
            | Verb::Wide => {
                unreachable!("{verb:?} is none of rma-rw")
            }
            Verb::Swap { expected, new } => {
                if is_second && self.broken == Some(Rule::CountersAreSetBackOnce) {
                    *word = new;
                    return expected;
                }
                if expected == found {
                    *word = new;
                    state.set_back |= is_second;
                }
            }
            Verb::Add(RmaRwCounts::COMES) => {
                *word += RmaRwCounts::COMES;
                client.is_counted = true;
            }
            Verb::Add(summand) => {
                let takes_back = summand == RmaRwCounts::COMES.wrapping_neg();
                if takes_back || summand == RmaRwCounts::GOES {
                    client.is_counted = false;
                }
                if !takes_back || self.broken != Some(Rule::RefusedReadersLeave) {
                    *word = found.wrapping_add(summand);
                }
            }
        }
        found
    }

    /// The answer of a client's verb arrives.
    fn answer(&self, state: &mut State, index: usize) {
        let Doing::Answered(verb, found) = state.clients[index].doing else {
            unreachable!("no verb is under way")
        };
        let counts = RmaRwCounts::of(found);
        let announces = verb == Verb::Add(RmaRwCounts::ANNOUNCED);
        let seen = match self.broken {
            Some(Rule::WritersWaitForReaders) if announces => {
                RmaRwCounts::new(counts.come(), counts.come()).word()
            }
            Some(Rule::ReadersHeedWriters) if verb == Verb::Add(RmaRwCounts::COMES) => {
                RmaRwCounts::new(counts.come(), counts.gone()).word()
            }
            _ => found,
        };
        self.step(state, index, Event::Found(seen));
    }

    /// Lets a client that listens hear what it was told, hand-overs first.
    fn listen(&self, state: &mut State, index: usize) {
        while state.clients[index].doing == Doing::Listening {
            let Some(step) = self.hear(state, index) else { return };
            self.carry_out(state, index, step);
        }
    }

    fn hear(&self, state: &mut State, index: usize) -> Option<Step> {
        let client = &mut state.clients[index];
        client.unheard.sort_by_key(|(notice, _)| notice.kind() == NoticeKind::Successor);
        if client.unheard.is_empty() {
            return None;
        }
        let (notice, says) = client.unheard.remove(0);
        assert!(self.system().take_note(&mut client.machine, notice, says));
        Some(self.system().hear(&mut client.machine, notice))
    }

    fn deliver(&self, state: &mut State, number: usize) {
        let Letter { to, notice, says } = state.letters.remove(number);
        let index = usize::from(to.who.node());
        let is_meant = Self::peer(index, state.clients[index].round).number == to.number;
        assert!(is_meant, "nothing is said to a use that has ended");
        state.clients[index].unheard.push((notice, says));
        self.listen(state, index);
    }

    /// A client waits for its lock no more.
    fn give_up(&self, state: &mut State, index: usize) {
        state.give_ups -= 1;
        let client = &mut state.clients[index];
        client.is_ghost = true;
        if client.doing == Doing::Paused && self.system().can_leave(&client.machine) {
            self.step(state, index, Event::Leave);
        }
    }

    fn release(&self, state: &mut State, index: usize) {
        while self.hear(state, index).is_some() {}
        state.clients[index].is_leaving = true;
        self.step(state, index, Event::Leave);
    }

    /// Modes in which the lock is held.
    fn held(&self, state: &State) -> Vec<Mode> {
        let clients = state.clients.iter().enumerate();
        let holders = clients.filter(|(_, client)| client.doing == Doing::Held);
        holders.map(|(index, _)| self.mode(state, index)).collect()
    }

    /// Whether the readers that have come and not gone are those of the clients.
    fn counts(&self, state: &State) -> bool {
        let counts = RmaRwCounts::of(state.words[1]);
        let counted = state.clients.iter().filter(|client| client.is_counted).count();
        counts.come().checked_sub(counts.gone()) == Some(counted as u32)
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let words = [0, RmaRwCounts::new(self.come, self.come).word()];
        let clients = (0..self.plans.len()).map(|index| self.client(index, 0)).collect();
        vec![State {
            words,
            clients,
            letters: Vec::new(),
            give_ups: self.give_ups,
            handed_on: false,
            admitted: false,
            set_back: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What a broken rule leads to next might not fit the word.
        if self.broken.is_some() && !self.counts(state) {
            return;
        }
        actions.extend((0..state.letters.len()).map(Action::Deliver));
        for (index, client) in state.clients.iter().enumerate() {
            let may_give_up = state.give_ups > 0 && !client.is_ghost;
            match client.doing {
                Doing::Idle if client.round < self.plans[index].len() => {
                    actions.push(Action::Begin(index));
                }
                Doing::Idle => {}
                Doing::Answered(..) => actions.push(Action::Hear(index)),
                Doing::Paused | Doing::Listening => {
                    if client.doing == Doing::Paused && self.leads_on(state, index) {
                        actions.push(Action::Wake(index));
                    }
                    if may_give_up && !client.is_leaving {
                        actions.push(Action::GiveUp(index));
                    }
                }
                Doing::Held => actions.push(Action::Release(index)),
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(index) => self.step(&mut state, index, Event::Begin),
            Action::Hear(index) => self.answer(&mut state, index),
            Action::Wake(index) => self.step(&mut state, index, Event::Paused),
            Action::Deliver(number) => self.deliver(&mut state, number),
            Action::GiveUp(index) => self.give_up(&mut state, index),
            Action::Release(index) => self.release(&mut state, index),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |world: &Self, state: &State| {
                let held = world.held(state);
                held.len() < 2 || !held.contains(&Mode::Exclusive)
            }),
            Property::always(COUNTS, Self::counts),
            Property::always(REST, |world: &Self, state: &State| {
                let at_rest = state.clients.iter().all(|client| client.doing == Doing::Idle);
                !at_rest || world.system().is_unused(state.words)
            }),
            // No state comes twice on a path, so each path ends where nothing can happen any more.
            Property::always(PROGRESS, |world: &Self, state: &State| {
                let mut actions = Vec::new();
                world.actions(state, &mut actions);
                !actions.is_empty() || world.is_done(state)
            }),
            Property::sometimes(BESIDE, |world: &Self, state: &State| world.held(state).len() > 1),
            Property::sometimes(CAME_BETWEEN, |world: &Self, state: &State| {
                let has_writers = RmaRwCounts::of(state.words[1]).has_writers();
                has_writers && world.held(state).contains(&Mode::Shared)
            }),
            Property::sometimes(HANDED_ON, |_, state: &State| state.handed_on),
            Property::sometimes(ADMITTED, |_, state: &State| state.admitted),
            Property::sometimes(SET_BACK, |_, state: &State| state.set_back),
        ]
    }
}
