//! State of the model at one instant: memory nodes, compute nodes, locks, messages, recoverers.
//!
//! # What it is
//! Plain values, as small as possible, since millions of them are kept. Words of cells and
//! decisions are translated to and from those of the engine where one of its decisions is needed.
//!
//! # Messages
//! A message that was sent is never taken away: it may be delivered now, later, again, or never. So
//! loss, delay, duplication and reordering need no actions of their own.
//!
//! # What it is not
//! Transitions; see [`crate::commit`], [`crate::locks`] and [`crate::recover`].

use std::fmt;

use lotus_fabric::ids::{Incarnation, TxnId};
use lotus_mvcc::Timestamp;
use lotus_mvcc::layout::cvt::Version;
use lotus_recovery::{CellSeen, DecisionWord};

/// Number of rows. The primary of row `k` is memory node `k`, and compute node `k` owns its lock at
/// first.
pub const KEYS: usize = 2;
/// Number of memory nodes; each has every row and every log slot.
pub const REPLICAS: usize = 3;
/// Number of cells of a CVT.
pub const CELLS: usize = 2;
/// Number of compute nodes that run transactions, one slot each. Recoverers are on further ones.
pub const NODES: usize = 2;
/// Largest number of attempts of one life of a node, one after the other.
pub const MAX_ATTEMPTS: usize = 2;
/// Largest number of lives of a node.
pub const LIVES: usize = 2;

/// Versions that every row has at first: this one and [`NEWEST`].
const OLDEST: u8 = 2;
pub const NEWEST: u8 = 3;

/// The engine's form of a time.
pub fn timestamp(time: u8) -> Timestamp {
    Timestamp::new(u64::from(time)).expect("63 bits")
}

/// One attempt of a life of a node's slot; attempts count from 1 in each life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Txn {
    pub node: u8,
    pub life: u8,
    pub attempt: u8,
}

impl Txn {
    /// The engine's name of the attempt.
    pub fn id(self) -> TxnId {
        let place = u16::from(self.life) * NODES as u16 + u16::from(self.node);
        let incarnation = Incarnation::new(place + 1).expect("not zero");
        TxnId::new(incarnation, 0, u64::from(self.attempt))
    }

    /// Every attempt that a node could make, in any life.
    pub fn all_of(node: u8) -> impl Iterator<Item = Self> {
        (0..LIVES as u8).flat_map(move |life| {
            (1..=MAX_ATTEMPTS as u8).map(move |attempt| Self { node, life, attempt })
        })
    }

    fn of(id: TxnId) -> Self {
        let place = id.incarnation().raw() as u8 - 1;
        let (node, life) = (place % NODES as u8, place / NODES as u8);
        Self { node, life, attempt: id.attempt() as u8 }
    }
}

/// A version word: 0, a timestamp, or with the top bit set the tag of a writer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Word(u8);

impl Word {
    pub fn at(time: u8) -> Self {
        assert!(0 < time && time < 0x80, "a commit timestamp");
        Self(time)
    }

    pub fn tag(txn: Txn) -> Self {
        Self(0x80 | txn.life << 5 | txn.node << 4 | txn.attempt)
    }

    pub fn writer(self) -> Option<Txn> {
        let (life, node, attempt) = (self.0 >> 5 & 1, self.0 >> 4 & 1, self.0 & 15);
        (self.0 >= 0x80).then_some(Txn { node, life, attempt })
    }

    /// The timestamp; 0 if there is none.
    pub fn time(self) -> u8 {
        if self.0 < 0x80 { self.0 } else { 0 }
    }

    /// The engine's form of the word.
    pub fn raw(self) -> u64 {
        match self.writer() {
            Some(txn) => Version::Invisible(txn.id()).encode(),
            None if self.0 == 0 => Version::None.encode(),
            None => Version::Committed(timestamp(self.0)).encode(),
        }
    }

    pub fn from_raw(raw: u64) -> Self {
        match Version::decode(raw) {
            Version::None => Self(0),
            Version::Invisible(id) => Self::tag(Txn::of(id)),
            Version::Committed(time) => Self::at(time.raw() as u8),
        }
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.writer() {
            Some(Txn { node, life, attempt }) => write!(f, "tag {node}.{life}.{attempt}"),
            None => write!(f, "@{}", self.0),
        }
    }
}

/// The version words of one row on one memory node.
pub type Row = [Word; CELLS];

/// The newest committed version in a row; 0 if there is none.
pub fn newest(row: &Row) -> u8 {
    row.iter().map(|word| word.time()).max().unwrap_or(0)
}

/// The engine's view of a cell.
pub fn seen(row: &Row, cell: u8) -> CellSeen {
    let cell = usize::from(cell);
    let others = row.iter().enumerate().filter(|(other, _)| *other != cell);
    let newest_other = others.map(|(_, word)| word.time()).max().unwrap_or(0);
    CellSeen { word: row[cell].raw(), newest_other: timestamp(newest_other) }
}

/// Decision in a log entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    Undecided,
    Back,
    Forward(u8),
    Done,
}

impl Verdict {
    /// The engine's form of the decision.
    pub fn word(self) -> DecisionWord {
        match self {
            Self::Undecided => DecisionWord::Undecided,
            Self::Back => DecisionWord::Back,
            Self::Forward(time) => DecisionWord::Forward(timestamp(time)),
            Self::Done => DecisionWord::Done,
        }
    }
}

/// A whole log entry: the cell written in each row, and the decision.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    pub life: u8,
    pub attempt: u8,
    pub cells: [Option<u8>; KEYS],
    pub verdict: Verdict,
}

impl Entry {
    /// The transaction that wrote it, if the log belongs to `node`.
    pub fn txn(&self, node: usize) -> Txn {
        Txn { node: node as u8, life: self.life, attempt: self.attempt }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemoryNode {
    pub lost: bool,
    pub rows: [Row; KEYS],
    pub logs: [Option<Entry>; NODES],
    /// Number of lives of each compute node that it refuses.
    pub fenced: [u8; NODES],
}

impl MemoryNode {
    fn new() -> Self {
        let row = [Word::at(OLDEST), Word::at(NEWEST)];
        Self { lost: false, rows: [row; KEYS], logs: [None; NODES], fenced: [0; NODES] }
    }

    /// Representation of a lost memory node, the same for all so that states stay few.
    pub fn gone() -> Self {
        Self { lost: true, ..Self::new() }
    }
}

/// Node that granted each of the locks that an attempt holds.
pub type Grants = [Option<u8>; KEYS];

/// Progress of a node's attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// No attempt is under way.
    Resting,
    /// Has asked for all its locks.
    Locking(Grants),
    /// Has posted a batch; `landed` counts the verbs that have landed on each memory node.
    Posted { batch: Batch, cells: [Option<u8>; KEYS], grants: Grants, landed: [u8; REPLICAS] },
    /// Everything is visible everywhere.
    Visible(Grants),
}

/// The batches of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Batch {
    /// Log and INVISIBLE cells.
    Data,
    /// Version words on backups, or on all replicas if [`crate::rules::Rule::BackupsFirst`] is
    /// broken.
    Backups(u8),
    /// Version words on primaries.
    Primaries(u8),
}

/// Holder of a node's place: the word that its first process or a member writes at the authority.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// No process of the node has come. The node counts as dead.
    Free,
    /// The node's first process has it.
    Taken,
    /// The process did not come in time.
    Nobodys,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    pub dead: bool,
    pub expelled: bool,
    pub place: Place,
    /// Number of lives before this one.
    pub life: u8,
    /// Whether it has noted that the other node is out, and has not noted a return since.
    pub notices_loss: bool,
    /// Number of lives of the other node that it has dropped the locks of, once each.
    pub dropped: u8,
    /// The last attempt of this life that has begun.
    pub attempt: u8,
    pub phase: Phase,
    /// Batch posted by the earlier life, if no fence keeps it away.
    pub late: Option<Late>,
}

impl Node {
    /// Whether it is alive and not expelled.
    pub fn is_member(&self) -> bool {
        !self.dead && !self.expelled
    }
}

/// A batch of a life that is over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Late {
    pub txn: Txn,
    pub phase: Phase,
}

/// The lock of a row, in the table of its owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lock {
    pub owner: u8,
    pub holder: Option<Txn>,
    /// Watermark: attempts of the other node's known life, up to this one, are over.
    pub over: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MessageKind {
    Request,
    Granted,
    Refused,
    End,
}

/// A message about a row between a transaction's node and the other one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    pub kind: MessageKind,
    pub txn: Txn,
    pub key: u8,
}

/// All messages that were ever sent, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Network(u64);

impl Network {
    fn bit(message: Message) -> u64 {
        let Message { kind, txn, key } = message;
        let place = kind as usize * NODES + usize::from(txn.node);
        let place = place * LIVES + usize::from(txn.life);
        let place = place * MAX_ATTEMPTS + usize::from(txn.attempt) - 1;
        1 << (place * KEYS + usize::from(key))
    }

    pub fn send(&mut self, kind: MessageKind, txn: Txn, key: usize) {
        self.0 |= Self::bit(Message { kind, txn, key: key as u8 });
    }

    pub fn sent(self) -> impl Iterator<Item = Message> {
        use MessageKind::{End, Granted, Refused, Request};
        let kinds = [Request, Granted, Refused, End].into_iter();
        let txns = kinds
            .flat_map(|kind| (0..NODES as u8).flat_map(Txn::all_of).map(move |txn| (kind, txn)));
        txns.flat_map(|(kind, txn)| (0..KEYS as u8).map(move |key| Message { kind, txn, key }))
            .filter(move |message| self.0 & Self::bit(*message) != 0)
    }
}

/// State that a recoverer has read, and its decision.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Plan {
    /// Entry of the last attempt that any log names.
    pub entry: Entry,
    pub logs: [Option<Entry>; REPLICAS],
    pub rows: [Option<[Row; KEYS]>; REPLICAS],
    /// [`Verdict::Done`] if there is nothing to do.
    pub verdict: Verdict,
}

/// Progress of carrying out a plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// Number of logs that have the decision.
    Record(u8),
    /// `landed` counts the swaps that have landed on each memory node.
    Repair { part: Replicas, landed: [u8; REPLICAS] },
    /// Memory nodes with logs that say that it is done.
    Finish([bool; REPLICAS]),
}

/// Replicas that a batch of repairs goes to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Replicas {
    All,
    Backups,
    Primaries,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Recoverer {
    /// Number of memory nodes that refuse every expelled node.
    Fencing(u8),
    ReadLogs,
    ReadRows([Option<Entry>; REPLICAS]),
    Act(Plan, Stage),
}

/// Recovery of one node: the recoverer that has claimed its log, and a replaced one that does not
/// know it yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Recovery {
    pub current: Option<Recoverer>,
    pub former: Option<Recoverer>,
    pub resolved: bool,
}

/// Outcome of an attempt, which no node of the cluster knows as a whole: for the properties.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AttemptOutcome {
    /// Commit timestamp; 0 until it is drawn.
    pub time: u8,
    /// Version that it replaces in each row.
    pub base: [u8; KEYS],
    /// Whether its caller was told that it is committed.
    pub told: bool,
    /// Whether a snapshot may have read it.
    pub shown: bool,
    /// Whether a recoverer has made a cell visible; `back`: whether it has emptied one.
    pub forward: bool,
    pub back: bool,
}

/// Number of faults of each kind that may still come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// Compute nodes that die.
    pub deaths: u8,
    /// Compute nodes that are taken for dead.
    pub suspicions: u8,
    /// Recoverers that stop, for good or until they have been replaced.
    pub stops: u8,
    /// Memory nodes that are lost.
    pub losses: u8,
    /// Compute nodes that return.
    pub returns: u8,
    /// Compute nodes that die after they have returned.
    pub relapses: u8,
    /// Compute nodes that are not started at first, if at all. They are the last ones.
    pub absences: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub memory: [MemoryNode; REPLICAS],
    pub nodes: [Node; NODES],
    pub locks: [Lock; KEYS],
    pub network: Network,
    pub recoveries: [Recovery; NODES],
    pub outcomes: [[[AttemptOutcome; MAX_ATTEMPTS]; LIVES]; NODES],
    pub clock: u8,
    pub faults: Faults,
    /// Whether a recoverer has met a state that the protocol rules out.
    pub contradiction: bool,
}

impl State {
    pub fn new(faults: Faults) -> Self {
        let is_absent = |node: usize| node + usize::from(faults.absences) >= NODES;
        let node = |node: usize| Node {
            dead: is_absent(node),
            expelled: false,
            place: if is_absent(node) { Place::Free } else { Place::Taken },
            life: 0,
            notices_loss: false,
            dropped: 0,
            attempt: 0,
            phase: Phase::Resting,
            late: None,
        };
        let lock = |key: usize| Lock { owner: key as u8, holder: None, over: 0 };
        Self {
            memory: [MemoryNode::new(); REPLICAS],
            nodes: std::array::from_fn(node),
            locks: std::array::from_fn(lock),
            network: Network::default(),
            recoveries: [Recovery::default(); NODES],
            outcomes: [[[AttemptOutcome::default(); MAX_ATTEMPTS]; LIVES]; NODES],
            clock: NEWEST,
            faults,
            contradiction: false,
        }
    }

    pub fn outcome(&mut self, txn: Txn) -> &mut AttemptOutcome {
        let lives = &mut self.outcomes[usize::from(txn.node)];
        &mut lives[usize::from(txn.life)][usize::from(txn.attempt) - 1]
    }

    /// Current attempt of a node, or its last one.
    pub fn txn(&self, node: usize) -> Txn {
        let it = &self.nodes[node];
        Txn { node: node as u8, life: it.life, attempt: it.attempt }
    }

    /// Memory nodes that are not lost.
    pub fn surviving(&self) -> impl Iterator<Item = (usize, &MemoryNode)> {
        self.memory.iter().enumerate().filter(|(_, memory)| !memory.lost)
    }
}
