//! Configurations, states, what may happen, and what must hold.

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_locks::word::{Claimant, Mode};
use lotus_locks::{Backoff, Event, LockSystem, Pacing, Request, Step, Verb, View, Waiter};
use lotus_locksystems::systems::{DslrU, UpdateUse};
use lotus_locksystems::word::UpdateTickets;
use rand::SeedableRng;
use stateright::{Model, Property};

/// How often one request may come again while the counters are used up: a second time would
/// change nothing more, and paths would have no end.
const IN_VAIN: u8 = 1;

/// A rule that can be broken, to show that a property detects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// An upgrade waits for the readers before its ticket.
    UpgradesWaitForReaders,
    /// A reader waits for the update locks before it.
    ReadersWaitForUpdates,
    /// An update lock waits for those before it.
    UpdatesWaitForUpdates,
    /// A writer waits for the update locks before it.
    WritersWaitForUpdates,
    /// A reader's turn does not end when an update lock behind it is released.
    ReadersIgnoreLaterUpdates,
    /// The client of the ticket that reaches the limit sets the counters back when all up to its
    /// own are served.
    DrainsWaitForTheirTurn,
    /// An upgrade that is given up leaves the lock with its holder, who releases it.
    UpgradesKeepTheLock,
}

/// A lock that a client takes.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    pub mode: Mode,
    pub upgrades: bool,
}

/// Locks that a client takes one after another.
pub type Plan = &'static [Wish];

/// One configuration to explore.
#[derive(Clone, Debug)]
pub struct World {
    pub plans: Vec<Plan>,
    /// Tickets of each mode that were given and served before.
    pub served: u32,
    /// Number of waits, of acquisitions and of upgrades, that may be given up.
    pub give_ups: u8,
    pub broken: Option<Rule>,
}

/// Where the use of a client stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Doing {
    Idle,
    /// The verb has taken effect. The word that it has found is on its way back.
    Answered(Verb, u64),
    Paused,
    Held,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    /// Number of the present or next lock of its plan.
    round: usize,
    machine: UpdateUse,
    doing: Doing,
    /// What its last request has found.
    ticket: u64,
    /// The mode in which it holds the lock, if it does.
    held: Option<Mode>,
    /// Whether its request is in the word, and neither released nor taken back.
    is_counted: bool,
    /// Whether it has waited for readers, to upgrade its lock.
    is_upgrading: bool,
    /// Whether it has tried to upgrade its lock, and has that or has given up.
    has_tried: bool,
    is_ghost: bool,
    in_vain: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    head: u64,
    clients: Vec<Client>,
    /// Clients whose tickets are valid, in the order in which they were given.
    queue: Vec<usize>,
    give_ups: u8,
}

impl Client {
    const fn waits_to_upgrade(&self) -> bool {
        self.is_upgrading && !self.has_tried
    }
}

/// An action of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Begin(usize),
    /// The answer of a verb arrives.
    Hear(usize),
    /// The answer of a READ is lost.
    Lose(usize),
    /// A pause is over.
    Wake(usize),
    Upgrade(usize),
    /// A client gives up its wait.
    GiveUp(usize),
    Release(usize),
}

pub const EXCLUSION: &str = "who writes is alone";
pub const ORDER: &str = "nobody is passed";
pub const COUNTS: &str = "the counters are of those who are there";
pub const REST: &str = "a lock at rest is free and gives tickets";
pub const PROGRESS: &str = "nobody waits for ever";
pub const BESIDE: &str = "an update lock is held beside a reader";
pub const UPGRADED: &str = "an upgrade has waited and succeeded";
pub const SET_BACK: &str = "the counters are set back";
pub const SENT_AWAY: &str = "somebody is sent away";

fn system() -> DslrU {
    DslrU::published()
}

impl World {
    fn wish(&self, state: &State, index: usize) -> Wish {
        self.plans[index][state.clients[index].round]
    }

    /// A client that has ended `round` locks of its plan.
    fn client(&self, index: usize, round: usize) -> Client {
        let mode = self.plans[index].get(round).map_or(Mode::Shared, |wish| wish.mode);
        let (life, who) = (Claimant::new(index as u8, 1), Waiter::new(index as u8, 0, 0));
        Client {
            round,
            machine: system().start(Request { mode, who, life, terms: 1 }),
            doing: Doing::Idle,
            ticket: 0,
            held: None,
            is_counted: false,
            is_upgrading: false,
            has_tried: false,
            is_ghost: false,
            in_vain: 0,
        }
    }

    fn is_done(&self, state: &State) -> bool {
        state.clients.iter().zip(&self.plans).all(|(client, plan)| client.round == plan.len())
    }

    /// Whether something comes of the next look of a client that pauses.
    fn leads_on(&self, state: &State, index: usize) -> bool {
        let client = &state.clients[index];
        if system().can_leave(&client.machine) {
            return client.in_vain <= IN_VAIN || !UpdateTickets::is_full(state.head);
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
            Step::Post(verb) => {
                let found = self.take_effect(state, index, verb);
                state.clients[index].doing = Doing::Answered(verb, found);
            }
            Step::Pause(_) if client.is_ghost && system().can_leave(&client.machine) => {
                self.step(state, index, Event::Leave);
            }
            Step::Pause(_) => client.doing = Doing::Paused,
            Step::Held if client.is_ghost => {
                client.held = Some(Mode::Shared);
                self.release(state, index);
            }
            Step::Held => {
                (client.doing, client.held) =
                    (Doing::Held, Some(self.plans[index][client.round].mode));
            }
            Step::Upgraded => {
                (client.doing, client.held) = (Doing::Held, Some(Mode::Exclusive));
                client.has_tried = true;
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
        let (found, mode) = (state.head, self.wish(state, index).mode);
        let client = &mut state.clients[index];
        match verb {
            Verb::Read => {}
            Verb::Exchange { .. }
            | Verb::SwapPart { .. }
            | Verb::Write { .. }
            | Verb::ReadQueue(_)
            | Verb::AddAndRead(..)
            | Verb::Wide => unreachable!("tickets are added"),
            Verb::Swap { expected, new } => {
                if self.broken == Some(Rule::DrainsWaitForTheirTurn) {
                    state.head = new;
                    return expected;
                }
                if expected == found {
                    state.head = new;
                }
            }
            Verb::Add(summand) => {
                state.head = found.wrapping_add(summand);
                let asks = summand == UpdateTickets::asking(mode, 1);
                client.is_counted = asks;
                if asks && UpdateTickets::is_full(found) {
                    (client.ticket, client.in_vain) = (found, client.in_vain + 1);
                } else if asks {
                    (client.ticket, client.in_vain) = (found, 0);
                    state.queue.push(index);
                } else {
                    state.queue.retain(|other| *other != index);
                }
            }
        }
        found
    }

    fn hear(&self, state: &mut State, index: usize) {
        let mode = self.wish(state, index).mode;
        let client = &state.clients[index];
        let Doing::Answered(verb, found) = client.doing else { unreachable!("no verb") };
        let (ticket, mut seen) = (UpdateTickets::of(client.ticket), UpdateTickets::of(found));
        let waits = verb == Verb::Read || verb == Verb::Add(UpdateTickets::asking(mode, 1));
        match (self.broken, mode) {
            (Some(Rule::UpgradesWaitForReaders), Mode::Update) if client.waits_to_upgrade() => {
                seen.n_s = ticket.max_s;
            }
            (Some(Rule::ReadersWaitForUpdates), Mode::Shared)
            | (Some(Rule::UpdatesWaitForUpdates), Mode::Update)
            | (Some(Rule::WritersWaitForUpdates), Mode::Exclusive)
                if waits =>
            {
                seen.n_u = ticket.max_u;
            }
            (Some(Rule::ReadersIgnoreLaterUpdates), Mode::Shared)
                if verb == Verb::Read && seen.n_u > ticket.max_u =>
            {
                seen.n_x = ticket.max_x + 1;
            }
            _ => {}
        }
        self.step(state, index, Event::Found(seen.with(found)));
    }

    /// Nobody waits for a client's lock any more, or for its upgrade.
    fn give_up(&self, state: &mut State, index: usize) {
        state.give_ups -= 1;
        let client = &mut state.clients[index];
        if client.waits_to_upgrade() {
            client.doing = Doing::Held;
            (client.is_upgrading, client.has_tried) = (false, true);
            if self.broken == Some(Rule::UpgradesKeepTheLock) {
                let round = client.round + 1;
                state.clients[index] = self.client(index, round);
            }
            return;
        }
        client.is_ghost = true;
        if system().can_leave(&client.machine) {
            self.step(state, index, Event::Leave);
        }
    }

    fn release(&self, state: &mut State, index: usize) {
        state.clients[index].held = None;
        self.step(state, index, Event::Leave);
    }

    fn excludes(state: &State) -> bool {
        let held: Vec<Mode> = state.clients.iter().filter_map(|client| client.held).collect();
        let others = held.iter().filter(|mode| **mode != Mode::Shared).count();
        others == 0 || others == 1 && (held.len() == 1 || !held.contains(&Mode::Exclusive))
    }

    /// Whether all whose tickets are before a holder's are readers, and none if it writes.
    fn keeps_order(&self, state: &State) -> bool {
        state.clients.iter().enumerate().all(|(index, client)| {
            let mut earlier = state.queue.iter().take_while(|other| **other != index);
            client.held.is_none_or(|held| {
                earlier.all(|other| {
                    held != Mode::Exclusive && self.wish(state, *other).mode == Mode::Shared
                })
            })
        })
    }

    /// Whether the tickets given and not served are those of the clients, in each mode.
    fn counts(&self, state: &State) -> bool {
        let UpdateTickets { n_x, n_s, n_u, max_x, max_s, max_u } = UpdateTickets::of(state.head);
        let same = |given: u32, served: u32, mode| {
            let counted = state.clients.iter().enumerate().filter(|(_, client)| client.is_counted);
            let wanted = counted.filter(|(index, _)| self.wish(state, *index).mode == mode);
            given.checked_sub(served) == Some(wanted.count() as u32)
        };
        same(max_x, n_x, Mode::Exclusive)
            && same(max_s, n_s, Mode::Shared)
            && same(max_u, n_u, Mode::Update)
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let count = self.served;
        let (n_x, n_s, n_u) = (count, count, count);
        let (max_x, max_s, max_u) = (count, count, count);
        let head = UpdateTickets { n_x, n_s, n_u, max_x, max_s, max_u }.with(0);
        let clients = (0..self.plans.len()).map(|index| self.client(index, 0)).collect();
        vec![State { head, clients, queue: Vec::new(), give_ups: self.give_ups }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What a broken rule leads to next might not fit the word.
        if self.broken.is_some() && !self.counts(state) {
            return;
        }
        for (index, client) in state.clients.iter().enumerate() {
            let is_waiting = client.held.is_none() && client.is_counted || client.in_vain > 0;
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
                    if state.give_ups > 0 && client.waits_to_upgrade() {
                        actions.push(Action::GiveUp(index));
                    }
                }
                Doing::Paused => {
                    if self.leads_on(state, index) {
                        actions.push(Action::Wake(index));
                    }
                    let may_give_up = client.waits_to_upgrade() || is_waiting && !client.is_ghost;
                    if state.give_ups > 0 && may_give_up {
                        actions.push(Action::GiveUp(index));
                    }
                }
                Doing::Held => {
                    let upgrades = self.wish(state, index).upgrades && !client.has_tried;
                    let next = if upgrades { Action::Upgrade } else { Action::Release };
                    actions.push(next(index));
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(index) => self.step(&mut state, index, Event::Begin),
            Action::Hear(index) => self.hear(&mut state, index),
            Action::Lose(index) => self.step(&mut state, index, Event::Lost),
            Action::Wake(index) => self.step(&mut state, index, Event::Paused),
            Action::Upgrade(index) => {
                self.step(&mut state, index, Event::Upgrade);
                let client = &mut state.clients[index];
                client.is_upgrading = !client.has_tried;
            }
            Action::GiveUp(index) => self.give_up(&mut state, index),
            Action::Release(index) => self.release(&mut state, index),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| Self::excludes(state)),
            Property::always(ORDER, Self::keeps_order),
            Property::always(COUNTS, Self::counts),
            Property::always(REST, |_, state: &State| {
                let gives = system().is_free(state.head) && !UpdateTickets::is_full(state.head);
                gives || state.clients.iter().any(|client| client.doing != Doing::Idle)
            }),
            // No state comes twice on a path, so each path ends where nothing can happen any more.
            Property::always(PROGRESS, |world: &Self, state: &State| {
                let mut actions = Vec::new();
                world.actions(state, &mut actions);
                !actions.is_empty() || world.is_done(state)
            }),
            Property::sometimes(BESIDE, |_, state: &State| {
                let holds = |mode| state.clients.iter().any(|client| client.held == Some(mode));
                holds(Mode::Update) && holds(Mode::Shared)
            }),
            Property::sometimes(UPGRADED, |_, state: &State| {
                let upgraded = |client: &Client| client.is_upgrading && client.has_tried;
                state.clients.iter().any(upgraded)
            }),
            Property::sometimes(SET_BACK, |_, state: &State| state.head == 0),
            Property::sometimes(SENT_AWAY, |_, state: &State| {
                state.clients.iter().any(|client| client.in_vain > 0)
            }),
        ]
    }
}
