//! Configurations, states, what may happen, and what must hold.

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_locks::word::{Claimant, Mode};
use lotus_locks::{
    Backoff, Event, LockSystem, Notice, NoticeKind, Pacing, Peer, Request, Step, Verb, View, Waiter,
};
use lotus_locksystems::systems::{Ncosed, NcosedUse};
use lotus_locksystems::word::NcosedWord;
use rand::SeedableRng;
use stateright::{Model, Property};

/// A rule that can be broken, to show that a property detects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// A writer that finds readers without a tail has the home wait for them.
    WritersWaitForReaders,
    /// The home tells a writer when all readers of its group have left.
    HomesWaitForAll,
    /// A reader behind a writer does not have the lock before it is told.
    ReadersHeedWriters,
    /// A reader that was taken out of the word tells the home that it has left.
    ReadersReport,
    /// A writer says how many readers came before it.
    SuccessorsSayTheReaders,
    /// A writer without a successor leaves all readers in the word to which it gives the lock.
    OpenedWordsKeepReaders,
}

/// Modes in which a client takes the lock, one after another.
pub type Plan = &'static [Mode];

/// One configuration to explore.
#[derive(Clone, Debug)]
pub struct World {
    pub plans: Vec<Plan>,
    /// Number of waits that may be given up.
    pub give_ups: u8,
    pub broken: Option<Rule>,
}

/// Where the use of a client stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Idle,
    /// The verb has taken effect. The word that it has found is on its way back.
    Answered(u64),
    Paused,
    Listening,
    Held,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    /// Number of the present or next lock of its plan.
    round: usize,
    machine: NcosedUse,
    doing: Doing,
    is_ghost: bool,
    is_leaving: bool,
    /// Notices that it has not heard yet.
    unheard: Vec<(Notice, u64)>,
}

/// A notice under way to a use, or to the home of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Letter {
    to: Peer,
    notice: Notice,
    says: u64,
}

/// What the home of the lock knows.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Home {
    left: u64,
    writer: Option<(Peer, u64)>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    word: NcosedWord,
    clients: Vec<Client>,
    letters: Vec<Letter>,
    home: Home,
    give_ups: u8,
    /// Whether a writer has given the lock to readers of the word.
    opened: bool,
    /// Whether the home has told a writer.
    told: bool,
    /// Whether a writer was handed the lock by another.
    handed_on: bool,
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
pub const REST: &str = "a lock at rest is free";
pub const PROGRESS: &str = "nobody waits for ever";
pub const BESIDE: &str = "two readers hold the lock";
pub const OPENED: &str = "a writer leaves the lock to readers";
pub const TOLD: &str = "a home tells a writer";
pub const HANDED_ON: &str = "a writer hands the lock on";

impl World {
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
        let mut machine = Ncosed.start(Request { mode, who, life, terms: 1 });
        Ncosed.renumber(&mut machine, number);
        let (is_ghost, is_leaving, unheard) = (false, false, Vec::new());
        Client { round, machine, doing: Doing::Idle, is_ghost, is_leaving, unheard }
    }

    fn is_done(&self, state: &State) -> bool {
        state.clients.iter().zip(&self.plans).all(|(client, plan)| client.round == plan.len())
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
        let step = Ncosed.step(&mut state.clients[index].machine, event, &mut view);
        self.carry_out(state, index, step);
    }

    fn carry_out(&self, state: &mut State, index: usize, step: Step) {
        let client = &mut state.clients[index];
        match step {
            Step::Post(verb) => {
                let found = self.take_effect(state, verb);
                state.clients[index].doing = Doing::Answered(found);
            }
            Step::Pause(_) if client.is_ghost && Ncosed.can_leave(&client.machine) => {
                self.step(state, index, Event::Leave);
            }
            Step::Pause(_) => client.doing = Doing::Paused,
            Step::Listen => {
                client.doing = Doing::Listening;
                self.listen(state, index);
            }
            Step::Tell(notice) => self.tell(state, index, notice),
            Step::Held => {
                client.doing = Doing::Held;
                if client.is_ghost {
                    self.release(state, index);
                }
            }
            Step::Gone(result) if result.is_ok() || self.broken.is_some() => {
                let has_heard = client.unheard.is_empty() || self.broken.is_some();
                assert!(has_heard, "it ends without having heard all");
                let round = client.round + 1;
                state.clients[index] = self.client(index, round);
            }
            step => panic!("{step:?} of a lock that is not reset"),
        }
    }

    /// Sends a notice, unless it is the one that a broken rule keeps back.
    fn tell(&self, state: &mut State, index: usize, notice: Notice) {
        let client = &mut state.clients[index];
        let says = Ncosed.says(&client.machine);
        let (kind, to, me) = (notice.kind(), notice.peer(), Self::peer(index, client.round));
        let own = match kind {
            NoticeKind::Awaits | NoticeKind::Left => notice,
            _ => Notice::new(kind, me),
        };
        let says = match (self.broken, kind) {
            (Some(Rule::SuccessorsSayTheReaders), NoticeKind::Successor) => 0,
            (Some(Rule::WritersWaitForReaders), NoticeKind::Awaits) => 0,
            (Some(Rule::HomesWaitForAll), NoticeKind::Awaits) => says - 1,
            _ => says,
        };
        state.handed_on |= kind == NoticeKind::Handover
            && self.mode(state, usize::from(to.who.node())) == Mode::Exclusive;
        if self.broken != Some(Rule::ReadersReport) || kind != NoticeKind::Left {
            state.letters.push(Letter { to, notice: own, says });
        }
        self.step(state, index, Event::Told);
    }

    /// Carries out a verb; returns the word that it has found.
    fn take_effect(&self, state: &mut State, verb: Verb) -> u64 {
        let found = state.word.word();
        match verb {
            Verb::Swap { expected, new } if expected == found => {
                let (before, after) = (NcosedWord::of(expected), NcosedWord::of(new));
                let opens = before.tail() != 0 && after.tail() == 0 && after.readers() > 0;
                state.opened |= opens;
                state.word = match self.broken {
                    Some(Rule::OpenedWordsKeepReaders) if opens => NcosedWord::of(new - 1),
                    _ => after,
                };
            }
            Verb::Swap { .. } => {}
            Verb::Add(summand) => state.word = NcosedWord::of(found + summand),
            verb => unreachable!("{verb:?} is none of ncosed"),
        }
        found
    }

    /// Lets a client that listens hear what it was told.
    fn listen(&self, state: &mut State, index: usize) {
        while state.clients[index].doing == Doing::Listening {
            let Some(step) = self.hear(state, index) else { return };
            self.carry_out(state, index, step);
        }
    }

    fn hear(&self, state: &mut State, index: usize) -> Option<Step> {
        let client = &mut state.clients[index];
        let gathers = Ncosed.gathers(&client.machine);
        let is_heard = |(notice, _): &(Notice, u64)| gathers || notice.kind() != NoticeKind::Joins;
        let number = client.unheard.iter().position(is_heard)?;
        let (notice, says) = client.unheard.remove(number);
        assert!(Ncosed.take_note(&mut client.machine, notice, says));
        Some(Ncosed.hear(&mut client.machine, notice))
    }

    fn deliver(&self, state: &mut State, number: usize) {
        let Letter { to, notice, says } = state.letters.remove(number);
        let home = &mut state.home;
        let kind = notice.kind();
        match kind {
            NoticeKind::Left => home.left += 1,
            NoticeKind::Awaits => {
                assert!(home.writer.is_none(), "a home waits for one group");
                home.writer = Some((to, says));
            }
            _ => {
                let index = usize::from(to.who.node());
                let client = &mut state.clients[index];
                // The word names no numbers.
                let is_meant = to.number == 0 || to == Self::peer(index, client.round);
                if !is_meant || client.doing == Doing::Idle {
                    assert!(self.broken.is_some(), "{kind:?} to a use that has ended");
                    return;
                }
                client.unheard.push((notice, says));
                return self.listen(state, index);
            }
        }
        if let Some((writer, readers)) = home.writer
            && home.left >= readers
        {
            (home.left, home.writer, state.told) = (home.left - readers, None, true);
            let notice = Notice::new(NoticeKind::Handover, Self::peer(0, 0));
            state.letters.push(Letter { to: writer, notice, says: 0 });
        }
    }

    /// A client waits for its lock no more.
    fn give_up(&self, state: &mut State, index: usize) {
        state.give_ups -= 1;
        let client = &mut state.clients[index];
        client.is_ghost = true;
        if client.doing == Doing::Paused && Ncosed.can_leave(&client.machine) {
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

    fn excludes(&self, state: &State) -> bool {
        let held = self.held(state);
        held.len() < 2 || !held.contains(&Mode::Exclusive)
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients = (0..self.plans.len()).map(|index| self.client(index, 0)).collect();
        vec![State {
            word: NcosedWord::default(),
            clients,
            letters: Vec::new(),
            home: Home::default(),
            give_ups: self.give_ups,
            opened: false,
            told: false,
            handed_on: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What a broken rule leads to next might be said to nobody.
        if self.broken.is_some() && !self.excludes(state) {
            return;
        }
        actions.extend((0..state.letters.len()).map(Action::Deliver));
        for (index, client) in state.clients.iter().enumerate() {
            match client.doing {
                Doing::Idle if client.round < self.plans[index].len() => {
                    actions.push(Action::Begin(index));
                }
                Doing::Idle => {}
                Doing::Answered(_) => actions.push(Action::Hear(index)),
                Doing::Paused | Doing::Listening => {
                    if client.doing == Doing::Paused {
                        actions.push(Action::Wake(index));
                    }
                    if state.give_ups > 0 && !client.is_ghost && !client.is_leaving {
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
            Action::Hear(index) => {
                let Doing::Answered(found) = state.clients[index].doing else {
                    unreachable!("no verb is under way")
                };
                let word = NcosedWord::of(found);
                let joins =
                    self.mode(&state, index) == Mode::Shared && !state.clients[index].is_leaving;
                let seen = match self.broken {
                    Some(Rule::ReadersHeedWriters) if joins => NcosedWord::new(0, word.readers()),
                    _ => word,
                };
                self.step(&mut state, index, Event::Found(seen.word()));
            }
            Action::Wake(index) => self.step(&mut state, index, Event::Paused),
            Action::Deliver(number) => self.deliver(&mut state, number),
            Action::GiveUp(index) => self.give_up(&mut state, index),
            Action::Release(index) => self.release(&mut state, index),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, Self::excludes),
            Property::always(REST, |_, state: &State| {
                let at_rest = state.clients.iter().all(|client| client.doing == Doing::Idle);
                // What readers have said that have left is under way still.
                let is_heard = state.letters.is_empty();
                !(at_rest && is_heard) || state.word.is_free() && state.home == Home::default()
            }),
            // No state comes twice on a path, so each path ends where nothing can happen any more.
            Property::always(PROGRESS, |world: &Self, state: &State| {
                let mut actions = Vec::new();
                world.actions(state, &mut actions);
                !actions.is_empty() || world.is_done(state)
            }),
            Property::sometimes(BESIDE, |world: &Self, state: &State| world.held(state).len() > 1),
            Property::sometimes(OPENED, |_, state: &State| state.opened),
            Property::sometimes(TOLD, |_, state: &State| state.told),
            Property::sometimes(HANDED_ON, |_, state: &State| state.handed_on),
        ]
    }
}
