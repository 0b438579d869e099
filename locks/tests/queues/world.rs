//! Configurations, states, and what must hold in each of them.

use lotus_locks::systems::{Declock, DeclockUse};
use lotus_locks::word::{DeclockFields, Mode, QueueHeader, QueuePart};
use lotus_locks::{LockSystem, Recovery, Verb};
use stateright::{Model, Property};

/// Index of the first request, in worlds that have a past.
pub const PAST: u64 = 8;

/// A rule that can be broken, to show that a property detects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// An entry counts only in its lap.
    EntriesHaveLaps,
    /// A notice counts only in the generation of its lock.
    TurnsNameGenerations,
    /// A lock is reset when it has neither holders nor waiters.
    ResetsQuiesce,
    /// A reset clears the entries.
    ResetsClearEntries,
    /// A reader takes its turn when all writers are located.
    WritersAreLocated,
    /// A writer takes its turn when all before it have left.
    WritersWaitForAll,
    /// A waiter that is not told looks for itself.
    WaitersLook,
    /// A request that finds no room has the lock reset.
    OverflowIsReset,
    /// A release takes itself off the header.
    HoldersRelease,
    /// A release tells the readers before a writer, and not the writer.
    WritersAreToldLast,
}

/// The modes in which a client takes the lock, one time after another.
pub type Plan = &'static [Mode];

/// One configuration to explore.
#[derive(Clone, Debug)]
pub struct World {
    pub plans: Vec<Plan>,
    /// Number of entries.
    pub capacity: u32,
    /// Number of entries that a release reads at first.
    pub window: u32,
    /// Number of requests before. Those of the last lap had to wait, every fourth to write.
    pub served: u64,
    /// Number of notices that may be lost.
    pub losses: u8,
    /// Number of looks that may be taken at any time; others are taken only if they lead on.
    pub looks: u8,
    pub broken: Option<Rule>,
}

/// Where the use of a client stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Doing {
    Idle,
    /// The verb is posted, and will take effect.
    Posted(Verb),
    /// Its first half has taken effect, and found this head; the READ of these entries will.
    Half(u64, QueuePart),
    /// It waits to be told.
    Waiting,
    /// It reads these entries later, perhaps again.
    Paused(QueuePart),
    /// It is to tell the client of this number that it has this turn.
    Telling(u32, u64),
    Held,
    /// It waits for the end of a reset, and has the lock reset if that was full.
    Barred,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    /// Number of the present or next lock of its plan.
    pub round: usize,
    pub machine: DeclockUse,
    pub doing: Doing,
    /// The turn of which it may be told.
    pub turn: Option<u64>,
    /// Whether it was told of it.
    pub is_told: bool,
    pub is_leaving: bool,
    /// The entries that it has read last.
    pub entries: Vec<u64>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub head: u64,
    pub entries: Vec<u64>,
    pub clients: Vec<Client>,
    /// Notices that are under way: the addressee, and the turn.
    pub notices: Vec<(u32, u64)>,
    pub losses: u8,
    pub looks: u8,
    /// Whether a reset was asked for.
    pub is_wanted: bool,
    /// Whether there was one.
    pub was_reset: bool,
    /// Whether a notice was lost, and its one has found its turn all the same.
    pub has_looked: bool,
}

pub const EXCLUSION: &str = "a writer is alone";
pub const FREEDOM: &str = "a lock at rest is free";
pub const COUNTS: &str = "the header counts those who are there";
pub const PROGRESS: &str = "nobody waits for ever";
pub const TOGETHER: &str = "readers hold it together";
pub const TOLD: &str = "somebody holds it who was told";
pub const LOOKED: &str = "somebody holds it who was not told";
pub const RESET: &str = "the lock is reset";
pub const LAPS: &str = "the queue comes round";

impl World {
    pub fn system(&self) -> Declock {
        Declock::new(Recovery::Fenced, self.capacity).reading(self.window)
    }

    pub fn fields(&self) -> DeclockFields {
        DeclockFields::new(self.capacity)
    }

    pub fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    /// Mode of a client's present request.
    pub fn mode(&self, state: &State, index: usize) -> Mode {
        self.plans[index][state.clients[index].round]
    }

    fn holders<'a>(&self, state: &'a State) -> impl Iterator<Item = usize> + 'a {
        let clients = state.clients.iter().enumerate();
        clients.filter(|(_, client)| client.doing == Doing::Held).map(|(index, _)| index)
    }

    fn excludes(&self, state: &State) -> bool {
        self.holders(state).count() < 2
            || self.holders(state).all(|index| self.mode(state, index) == Mode::Shared)
    }

    /// Whether nothing is counted that no client has added, and no field has run over.
    pub fn counts(&self, state: &State) -> bool {
        let QueueHeader { writers, size, .. } = self.fields().of(state.head);
        writers <= size && size as usize <= self.plans.len()
    }

    fn is_done(&self, state: &State) -> bool {
        state.clients.iter().zip(&self.plans).all(|(client, plan)| client.round == plan.len())
    }

    pub fn all_properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, Self::excludes),
            Property::always(COUNTS, Self::counts),
            Property::always(FREEDOM, |world: &Self, state: &State| {
                !world.is_done(state) || world.system().is_free(state.head)
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
            Property::sometimes(TOLD, |_, state: &State| {
                state.clients.iter().any(|client| client.doing == Doing::Held && client.is_told)
            }),
            Property::sometimes(LOOKED, |_, state: &State| state.has_looked),
            Property::sometimes(RESET, |_, state: &State| state.was_reset),
            Property::sometimes(LAPS, |world: &Self, state: &State| {
                world.fields().of(state.head).head >= world.served + 2 * u64::from(world.capacity)
            }),
        ]
    }
}
