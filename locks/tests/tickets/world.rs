//! Configurations, states, and what must hold in each of them.

use lotus_locks::systems::{Dslr, DslrUse};
use lotus_locks::word::{Mode, TicketFields, Tickets};
use lotus_locks::{LockSystem, Recovery, Verb};
use stateright::{Model, Property};

pub const FIELDS: TicketFields = TicketFields::WITH_RESETS;

pub fn system() -> Dslr {
    Dslr::published(Recovery::Fenced)
}

/// A rule that can be broken, to show that a property detects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// A reader's ticket is good although a later reader has left (Algorithm 2, line 3, of the
    /// paper breaks it).
    ReadersIgnoreSiblings,
    /// A reader waits for the writers before it.
    ReadersWaitForWriters,
    /// A writer waits for the readers before it.
    WritersWaitForReaders,
    /// Counters are set back when all tickets up to its own are served.
    DrainsWaitForTheirTurn,
    /// The client of the ticket that reaches the limit sets the counters back.
    UsedUpCountersAreSetBack,
    /// A client that finds the counters used up takes its ticket back.
    TheSentAwayTakeBack,
    /// A client that gives up its wait releases only when its turn has come.
    GhostsWait,
    /// A client that gives up its wait releases when its turn has come.
    GhostsRelease,
    /// A client that has held the lock releases it.
    HoldersRelease,
    /// It releases it once.
    ReleasesAreNotRepeated,
}

/// The locks that a client takes one after another: mode, and number of tickets.
pub type Plan = &'static [(Mode, u16)];

/// One configuration to explore.
#[derive(Clone, Debug)]
pub struct World {
    pub plans: Vec<Plan>,
    /// Tickets of each mode that were given and served before.
    pub served: u32,
    /// Number of waits that may be given up.
    pub ghosts: u8,
    /// Whether answers come late also where no verb follows.
    pub late: bool,
    pub broken: Option<Rule>,
}

/// Where the use of a client stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Doing {
    Idle,
    /// The verb has taken effect. The word that it has found is on its way back.
    Answered(Verb, u64),
    /// It looks again later.
    Paused,
    Held,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    /// Number of the present or next lock of its plan.
    pub round: usize,
    pub machine: DslrUse,
    pub doing: Doing,
    /// What its last request has found.
    pub ticket: u64,
    /// Whether its request is in the word, and neither released nor taken back.
    pub is_counted: bool,
    /// Whether it has given up its wait.
    pub is_ghost: bool,
    pub is_leaving: bool,
    /// How often this request has found the counters used up.
    pub in_vain: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub head: u64,
    pub clients: Vec<Client>,
    /// Clients whose tickets are valid, in the order in which they were given, until the release
    /// takes effect.
    pub queue: Vec<usize>,
    /// Number of waits that may still be given up.
    pub ghosts: u8,
}

pub const EXCLUSION: &str = "a writer is alone";
pub const ORDER: &str = "nobody is passed";
pub const FREEDOM: &str = "a lock at rest is free";
pub const TICKETS: &str = "a lock at rest gives tickets";
pub const COUNTS: &str = "the counters are of those who are there";
pub const PROGRESS: &str = "nobody waits for ever";
pub const TOGETHER: &str = "readers hold it together";
pub const SET_BACK: &str = "the counters are set back";
pub const SENT_AWAY: &str = "somebody is sent away";
pub const GHOST: &str = "a ghost has its turn";

impl World {
    pub fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    /// Mode and number of tickets of a client's present request.
    pub fn request(&self, state: &State, index: usize) -> (Mode, u16) {
        self.plans[index][state.clients[index].round]
    }

    fn is_shared(&self, state: &State, index: usize) -> bool {
        self.request(state, index).0 == Mode::Shared
    }

    fn holders<'a>(&self, state: &'a State) -> impl Iterator<Item = usize> + 'a {
        let clients = state.clients.iter().enumerate();
        clients.filter(|(_, client)| client.doing == Doing::Held).map(|(index, _)| index)
    }

    fn excludes(&self, state: &State) -> bool {
        self.holders(state).count() < 2
            || self.holders(state).all(|index| self.is_shared(state, index))
    }

    /// Whether all whose tickets are before a holder's may hold the lock beside it.
    fn keeps_order(&self, state: &State) -> bool {
        self.holders(state).all(|holder| {
            let mut earlier = state.queue.iter().take_while(|index| **index != holder);
            earlier.all(|index| self.is_shared(state, holder) && self.is_shared(state, *index))
        })
    }

    /// Whether the tickets given and not served are those of the clients, in each mode.
    fn counts(&self, state: &State) -> bool {
        let Tickets { n_x, n_s, max_x, max_s } = FIELDS.of(state.head);
        let outstanding = |wanted: Mode| {
            let counted = (0..state.clients.len()).filter(|index| state.clients[*index].is_counted);
            let requests = counted.map(|index| self.request(state, index));
            requests.filter(|(mode, _)| *mode == wanted).map(|(_, count)| u32::from(count)).sum()
        };
        let same =
            |given: u32, served: u32, mode| given.checked_sub(served) == Some(outstanding(mode));
        same(max_x, n_x, Mode::Exclusive) && same(max_s, n_s, Mode::Shared)
    }

    fn is_done(&self, state: &State) -> bool {
        state.clients.iter().zip(&self.plans).all(|(client, plan)| client.round == plan.len())
    }

    pub fn all_properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, Self::excludes),
            Property::always(ORDER, Self::keeps_order),
            Property::always(COUNTS, Self::counts),
            Property::always(FREEDOM, |_, state: &State| {
                !state.is_at_rest() || system().is_free(state.head)
            }),
            Property::always(TICKETS, |_, state: &State| {
                !state.is_at_rest() || !FIELDS.is_full(state.head)
            }),
            // No state comes twice on a path (see `steps`), so each path ends where nothing can
            // happen any more.
            Property::always(PROGRESS, |world: &Self, state: &State| {
                let mut actions = Vec::new();
                world.actions(state, &mut actions);
                !actions.is_empty() || world.is_done(state)
            }),
            Property::sometimes(TOGETHER, |world: &Self, state: &State| {
                world.holders(state).count() > 1
            }),
            Property::sometimes(SET_BACK, |_, state: &State| {
                state.head == 0 && state.clients.iter().any(|client| client.round > 0)
            }),
            Property::sometimes(SENT_AWAY, |_, state: &State| {
                state.clients.iter().any(|client| client.in_vain > 0)
            }),
            Property::sometimes(GHOST, |_, state: &State| {
                state.clients.iter().any(|client| client.is_ghost && client.doing == Doing::Held)
            }),
        ]
    }
}

impl State {
    fn is_at_rest(&self) -> bool {
        self.clients.iter().all(|client| client.doing == Doing::Idle)
    }
}
