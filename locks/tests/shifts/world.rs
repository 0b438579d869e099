//! Configurations, states, and what must hold in each of them.

use lotus_locks::systems::{ShiftLock, ShiftUse};
use lotus_locks::word::ShiftWord;
use lotus_locks::{LockSystem, Mode, Recovery, Verb};
use stateright::{Model, Property};

use crate::notices::{Letter, Mailbox};

/// Releases that were counted before: few are left until the count wraps.
pub const BEFORE: u32 = (1 << 26) - 2;

/// A rule that can be broken, to show that a property detects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// A lock is handed over when its release was counted.
    CountsPrecedeHandovers,
    /// A successor is believed if its count of releases is no smaller than the use's own.
    SuccessorsAreOfThisUse,
    /// A turn is of the use that has the number that it names.
    TurnsNameTheirUse,
    /// A reset raises the count of releases.
    ResetsCount,
    /// A use that begins anew after a reset has another number.
    ResetsRenumber,
    /// A writer behind readers is told of as many releases as there are readers.
    ModeChangesCountReaders,
    /// A writer waits for the readers before it.
    WritersWaitForReaders,
    /// A reader behind a writer waits for another epoch, not for any release.
    ReadersWaitForTheEpoch,
    /// A reader that gives up when it was admitted counts a release.
    TheAdmittedRelease,
    /// A release is counted once.
    ReleasesAreNotRepeated,
    /// A reader that has held the lock counts itself out.
    ReadersRelease,
}

/// The locks that a client takes one after another.
pub type Plan = &'static [Mode];

/// One configuration to explore.
#[derive(Clone, Debug)]
pub struct World {
    pub plans: Vec<Plan>,
    pub threshold: u16,
    pub has_masks: bool,
    /// Whether answers come late also where no verb follows.
    pub late: bool,
    /// Number of waits of readers that may be given up.
    pub give_ups: u8,
    /// Number of clients that may die.
    pub deaths: u8,
    /// Number of answers that may be lost.
    pub doubts: u8,
    pub broken: Option<Rule>,
}

/// Where the use of a client stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Doing {
    Idle,
    /// The verb has not taken effect.
    Posted(Verb),
    /// The verb has taken effect. The word that it has found is on its way back.
    Answered(Verb, u64),
    /// It goes on later.
    Paused,
    /// It waits for a notice.
    Listening,
    Held,
    /// The lock is being reset; it begins anew afterwards.
    Barred,
    /// Its answer was lost: it goes on when the lock was reset.
    Doubting,
    Dead,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    /// Number of the present or next lock of its plan.
    pub round: usize,
    /// Number of its enqueue.
    pub number: u64,
    pub machine: ShiftUse,
    pub doing: Doing,
    pub mailbox: Mailbox,
    pub is_leaving: bool,
    /// Whether it leaves what it has not held, as far as it knew.
    pub gives_up: bool,
    /// Whether it knows that the lock is being reset.
    pub is_told: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub head: ShiftWord,
    pub clients: Vec<Client>,
    /// Notices that were sent, in no order: each may come at any time, and again.
    pub letters: Vec<Letter>,
    /// Counts of releases that come after the hand-over, where that rule is broken.
    pub late_counts: u8,
    pub give_ups: u8,
    pub deaths: u8,
    pub doubts: u8,
    /// Whether there is a reason for a reset.
    pub wants_reset: bool,
    /// Number of resets.
    pub resets: u8,
    /// Number of locks that were released.
    pub released: u32,
    /// What has happened, for the properties that want it to happen.
    pub seen: Seen,
}

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Seen {
    pub handed: bool,
    pub changed: bool,
    pub refused: bool,
    pub withdrawn: bool,
    pub admitted: bool,
}

pub const EXCLUSION: &str = "a writer is alone";
pub const FREEDOM: &str = "a lock at rest is free";
pub const COUNTS: &str = "each release is counted once";
pub const PROGRESS: &str = "nobody waits for ever";
pub const TOGETHER: &str = "readers hold it together";
pub const HANDED: &str = "a writer hands the lock to another";
pub const CHANGED: &str = "a writer gives the lock to readers before another writer";
pub const REFUSED: &str = "a successor of a former use is refused";
pub const WITHDRAWN: &str = "a reader takes back its count";
pub const ADMITTED: &str = "a reader is admitted while it gives up";
pub const RESET: &str = "the lock is reset, and held again";

impl World {
    pub fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    pub fn system(&self) -> ShiftLock {
        let mut system = ShiftLock::new(Recovery::Fenced, self.threshold);
        system.fit(&lotus_fabric::verbs::Capabilities {
            masked_atomics: self.has_masks,
            ..Default::default()
        });
        system
    }

    /// Mode of a client's present lock.
    pub fn mode(&self, state: &State, index: usize) -> Mode {
        self.plans[index].get(state.clients[index].round).copied().unwrap_or(Mode::Shared)
    }

    fn excludes(&self, state: &State) -> bool {
        let clients = state.clients.iter().enumerate();
        let holders = clients.filter(|(_, client)| client.doing == Doing::Held);
        let modes: Vec<Mode> = holders.map(|(index, _)| self.mode(state, index)).collect();
        modes.len() < 2 || modes.iter().all(|mode| *mode == Mode::Shared)
    }

    fn is_done(&self, state: &State) -> bool {
        state.clients.iter().zip(&self.plans).all(|(client, plan)| {
            client.doing == Doing::Dead || client.doing == Doing::Idle && client.round == plan.len()
        })
    }

    pub fn all_properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, Self::excludes),
            Property::always(FREEDOM, |_, state: &State| {
                !state.is_at_rest() || state.head.is_free()
            }),
            Property::always(COUNTS, |_, state: &State| {
                let counted = (BEFORE + state.released) % (1 << 26);
                !state.is_at_rest() || state.resets > 0 || state.head.releases() == counted
            }),
            // Each notice changes something, or is not brought again; so each path ends.
            Property::always(PROGRESS, |world: &Self, state: &State| {
                let mut actions = Vec::new();
                world.actions(state, &mut actions);
                actions.retain(|action| world.next_state(state, *action).is_some());
                !actions.is_empty() || world.is_done(state)
            }),
            Property::sometimes(TOGETHER, |_, state: &State| {
                state.clients.iter().filter(|client| client.doing == Doing::Held).count() > 1
            }),
            Property::sometimes(HANDED, |_, state: &State| state.seen.handed),
            Property::sometimes(CHANGED, |_, state: &State| state.seen.changed),
            Property::sometimes(REFUSED, |_, state: &State| state.seen.refused),
            Property::sometimes(WITHDRAWN, |_, state: &State| state.seen.withdrawn),
            Property::sometimes(ADMITTED, |_, state: &State| state.seen.admitted),
            Property::sometimes(RESET, |_, state: &State| {
                state.resets > 0 && state.clients.iter().any(|client| client.doing == Doing::Held)
            }),
        ]
    }
}

impl State {
    /// Whether nobody uses the lock, and nothing is left to be reset.
    pub fn is_at_rest(&self) -> bool {
        let rests = |client: &Client| matches!(client.doing, Doing::Idle | Doing::Dead);
        self.clients.iter().all(rests) && !self.wants_reset && self.late_counts == 0
    }
}
