//! States of the model, the faults that may happen, and the properties.

use lotus_locks::word::{CasRwWord, Claim};
use stateright::Property;

pub const NODES: usize = 3;

/// A rule that can be broken, to show that a property detects it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rule {
    /// A lock is freed when all members have answered.
    AllAnswer,
    /// Who holds the lock does not answer.
    HoldersAreWaitedFor,
    /// Whose verb is under way does not answer.
    VerbsUnderWayAreWaitedFor,
    /// Who is told of a reset waits no more, also for what it has posted before.
    WaitsEnd,
    /// Who doubts an atomic is done when a reset is over of which it was told.
    DoubtersAreTold,
    /// The members are learnt when the lock is marked, not before.
    MembersAreLearntLast,
    /// A claim is taken over when its holder is settled, not when it seems dead.
    ClaimsAreOfTheSettled,
    /// A lock that is not marked is not freed.
    OnlyMarkedLocksAreFreed,
    /// A dead member counts as having answered once it is settled, not before.
    TheDeadAreSettled,
}

/// Number of events of each kind that may happen.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Acquisitions of each node.
    pub attempts: [u8; NODES],
    pub deaths: u8,
    /// Atomics of unknown outcome.
    pub doubts: u8,
    /// Whether the last node joins late.
    pub joins: bool,
}

/// One configuration to explore.
#[derive(Clone, Copy, Debug)]
pub struct World {
    pub budget: Budget,
    pub broken: Option<Rule>,
    /// Whether the generation of a lock cannot be seen: there are words without room for one.
    pub nameless: bool,
}

impl World {
    pub fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    /// The generation of a lock, as nodes see it.
    pub fn generation(&self, head: CasRwWord) -> u8 {
        if self.nameless { 0 } else { head.generation() }
    }

    /// Whether a discovery of this property is a failure.
    pub fn is_demanded(&self, property: &str) -> bool {
        property != POSSIBLE
    }

    pub fn start(&self) -> State {
        let mut nodes: [Node; NODES] = Default::default();
        if self.budget.joins {
            nodes[NODES - 1].life = Life::Absent;
        }
        let Budget { attempts, deaths, doubts, .. } = self.budget;
        nodes.iter_mut().zip(attempts).for_each(|(node, attempts)| node.attempts = attempts);
        State { head: CasRwWord::of(0), claim: Claim::of(0), nodes, epoch: 0, deaths, doubts }
    }

    pub fn all_properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody is beside a writer", |_, state: &State| state.excludes()),
            Property::always("counts and owners are of users", |_, state: &State| {
                state.head.readers() as usize <= NODES && state.names_a_user()
            }),
            Property::always("a lock at rest is free", |_, state: &State| {
                !state.is_at_rest() || state.head == CasRwWord::free(state.head.generation())
            }),
            Property::sometimes(POSSIBLE, |_, state: &State| {
                state.is_at_rest() && state.head.generation() > 0
            }),
        ]
    }
}

const POSSIBLE: &str = "a lock is free again after a reset";

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub head: CasRwWord,
    pub claim: Claim,
    pub nodes: [Node; NODES],
    /// Number of expulsions.
    pub epoch: u32,
    pub deaths: u8,
    pub doubts: u8,
}

/// Standing of a compute node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Life {
    /// Not a member yet.
    Absent,
    #[default]
    Live,
    /// It does nothing any more; what it has posted may take effect.
    Dead,
    /// Expelled and fenced: nothing of it takes effect any more.
    Settled,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    Shared,
    Exclusive,
}

/// Use that a node makes of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Client {
    #[default]
    Idle,
    Asking(Mode),
    /// A reader behind a writer.
    Waiting,
    Holding(Mode),
    Leaving,
    /// It has seen the lock marked, and comes back when it is not.
    Barred,
    /// It does not know whether its atomic has taken effect. Its connection is closed.
    Doubting,
}

/// A verb under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verb {
    Add(u64),
    Subtract(u64),
    Swap {
        expected: CasRwWord,
        new: CasRwWord,
    },
    /// It has taken effect, or was refused; the word that it has found is on its way back.
    Answer(CasRwWord),
}

/// Step of a resetter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Step {
    #[default]
    None,
    Claimed,
    /// The head is being marked.
    Marking,
    /// Members are asked that have not answered.
    Asking,
    /// The head is being freed.
    Freeing,
    Freed,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Node {
    pub life: Life,
    pub client: Client,
    pub attempts: u8,
    /// Generation that it guesses.
    pub seen: u8,
    /// Its acquisition's or release's verb.
    pub verb: Option<Verb>,
    /// Generation whose reset it was told of.
    pub told: Option<u8>,
    pub step: Step,
    /// Its reset's verb.
    pub reset_verb: Option<Verb>,
    /// Members that its reset waits for.
    pub awaited: [bool; NODES],
    /// Epoch in which it has learnt of them.
    pub epoch: u32,
}

impl State {
    fn excludes(&self) -> bool {
        let holders = self.nodes.iter().filter(|node| node.life != Life::Settled);
        let modes: Vec<Mode> = holders
            .filter_map(|node| match node.client {
                Client::Holding(mode) => Some(mode),
                _ => None,
            })
            .collect();
        modes.len() < 2 || modes.iter().all(|mode| *mode == Mode::Shared)
    }

    /// Whether the head names no owner, or one that has not released the lock, or is lost.
    fn names_a_user(&self) -> bool {
        let Some(owner) = (self.head.owner() as usize).checked_sub(1) else { return true };
        self.nodes.get(owner).is_some_and(|node| {
            node.life != Life::Live || !matches!(node.client, Client::Idle | Client::Waiting)
        })
    }

    /// Whether nobody uses the lock, and nothing is left to be reset.
    fn is_at_rest(&self) -> bool {
        let rests = |node: &Node| match node.life {
            Life::Absent | Life::Settled => true,
            Life::Dead => false,
            Life::Live => {
                node.client == Client::Idle && node.verb.is_none() && node.step == Step::None
            }
        };
        self.nodes.iter().all(rests)
            && self.claim.by().is_none()
            && self.claim.epoch() == self.epoch
    }
}
