//! An operator's questions to a running compute node, and the node's answers: shard owners,
//! figures, memory, moving shards. Questions go through a [`Mailbox`].
//!
//! Any node can be asked: it answers from the memory pool, and passes orders on to the owners of
//! the shards. Answering does not block: unfinished work is polled the next time that the daemon
//! looks around.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lotus::{
    Balancing, Cluster, CoordinatorFigures, CoordinatorId, GroupMemory, MemoryFigures,
    MoveCounters, MoveError, Moved, Moving, NodeMemory, RowCounts, ShardId, Submitted, TableMemory,
};
use lotus_authority::Authority;
use lotus_authority::Version;
use lotus_fabric::env::{Env, Nanos};
use serde::{Deserialize, Serialize};

use crate::agree::mailbox::{self, Mailbox};
use crate::agree::mailbox_server::MailboxServer;
use crate::config::name::{NodeKind, NodeName};
use crate::host::polling::wait_until;

/// Timeout of a node's answer.
pub const ANSWERING: Duration = Duration::from_secs(5);
/// Maximum age of a reused count of rows.
const ROWS_AGE: Duration = Duration::from_secs(2);
/// Time after which memory is reported without row counts.
const ROWS_PATIENCE: Duration = Duration::from_secs(2);
/// Polls of an asker between two checks whether an awaited node is gone.
const LOOKS_FOR_LIFE: u32 = 10;
/// Maximum number of shards in one order.
const MOST_AT_ONCE: usize = 128;

/// Question to a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Question {
    /// Figures of the node.
    Figures,
    /// Figures of the node, and memory in use, with numbers of rows if `rows`.
    State {
        /// Whether rows are to be counted, unless a recent count exists.
        rows: bool,
    },
    /// Memory in use, and, if `rows`, the numbers of rows.
    Memory {
        /// Whether rows are to be counted, unless a recent count exists.
        rows: bool,
    },
    /// Owner of every shard.
    Owners,
    /// Move these shards to the compute node `to`.
    Move {
        /// Numbers of the shards.
        shards: Vec<u16>,
        /// Index of the compute node.
        to: u16,
    },
    /// Turn load balancing on or off.
    Balance(Switch),
}

/// State of load balancing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// Load balancing is on.
    On,
    /// An operator has turned load balancing off.
    Paused,
    /// The cluster was founded without load balancing.
    Never,
}

/// Answer of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Figures of the node.
    Figures(Figures),
    /// Figures of the node; memory in use, unless a memory node is silent.
    State(Box<WholeState>),
    /// Memory in use.
    Memory(Memory),
    /// Owner of every shard.
    Owners(Owners),
    /// Outcome of a move.
    Moved(MoveResult),
    /// State of load balancing now.
    Switched(Switch),
    /// The question could not be answered; the text says why.
    Failed(String),
}

/// Locks that a compute node has taken, and shards that it has given away (LOTUS §4.3).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ownership {
    /// Locks that the node's transactions have taken.
    pub locks: u64,
    /// Of these, the locks granted by the node itself.
    pub own_locks: u64,
    /// Batches of shards that the node gave away.
    pub hand_overs: u64,
    /// Shards in these batches.
    pub shards: u64,
    /// Longest time in which no owner granted the locks of moving shards.
    pub longest: Duration,
    /// A shard, if any, that takes most of the node's time and would take as much on every other
    /// node.
    pub too_hot: Option<u16>,
}

/// Figures of a compute node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Number of shards that the node owns.
    pub shards_owned: usize,
    /// Locks by where they were granted, and counters of hand-overs.
    pub ownership: Ownership,
    /// Bit mask of the memory nodes that do not answer the node.
    pub silent: u64,
    /// Whether the node gives shards away by itself.
    pub balancing: Switch,
}

/// The memory of one replica of a group, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Bytes for rows and indexes.
    pub limit: u64,
    /// Bytes of slabs that were handed out.
    pub allocated: u64,
    /// Allocated bytes that are free at the answering node.
    pub free: u64,
}

/// Bytes of a memory node for rows and indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeBytes {
    /// Bytes of all slabs.
    pub limit: u64,
    /// Bytes of slabs that were handed out.
    pub allocated: u64,
}

/// Memory of a table, per replica of each group, and its rows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TableBytes {
    /// Name of the table.
    pub table: String,
    /// Bytes of the table's index.
    pub index: u64,
    /// Bytes of further buckets of the index.
    pub overflow: u64,
    /// Bytes of slabs for records.
    pub records: u64,
    /// Bytes of the table's slots that are free at the answering node.
    pub free: u64,
    /// The table's rows, if requested.
    pub rows: Option<RowCount>,
}

/// Number of rows of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RowCount {
    /// The number.
    pub rows: u64,
    /// Whether only a sample was counted.
    pub is_estimate: bool,
    /// Time since the count, in milliseconds.
    pub age_ms: u64,
}

/// Memory in use, as seen by a compute node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Replica groups, in their order.
    pub groups: Vec<Group>,
    /// Memory nodes by place; `None` for a memory node that is not in use.
    pub nodes: Vec<Option<NodeBytes>>,
    /// Tables, in their order.
    pub tables: Vec<TableBytes>,
}

/// Owners of all shards.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Owners {
    /// Every shard, in order.
    pub shards: Vec<Shard>,
    /// Name of each table, and the number of shards, from the first on, that contain its rows.
    pub tables: Vec<(String, u32)>,
}

/// Ownership of one shard.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Shard {
    /// The place of the compute node that grants the shard's locks, if any.
    pub owner: Option<u16>,
    /// Shard epoch since which the owner owns the shard.
    pub epoch: u32,
    /// Lock requests for the shard in the last interval of load balancing.
    pub requests: u64,
}

/// Result of moving shards.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MoveResult {
    /// Number of shards that are at their destination.
    pub moved: usize,
    /// Longest time for which locks of a moved shard were not granted, in microseconds.
    pub longest_us: u64,
    /// Shards that were not moved.
    pub refused: Vec<Refused>,
}

/// Shards that were not moved, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// Numbers of the shards.
    pub shards: Vec<u16>,
    /// Reason, in words.
    pub why: String,
    /// Whether some of the shards had changed owner meanwhile: try again.
    pub outrun: bool,
}

/// Mailbox for an operator's questions to `node`.
pub fn mailbox(node: NodeName) -> Mailbox {
    Mailbox::new("operator", node)
}

/// Figures of compute nodes; `None` for a node that does not answer.
pub fn figures(authority: &dyn Authority, nodes: &[NodeName]) -> Vec<Option<Figures>> {
    figures_of_living(authority, nodes, |_| false)
}

/// Figures like [`figures`], without waiting for nodes for which `is_gone` is true.
pub fn figures_of_living(
    authority: &dyn Authority,
    nodes: &[NodeName],
    is_gone: impl FnMut(NodeName) -> bool,
) -> Vec<Option<Figures>> {
    let figures = |answer| match answer {
        Answer::Figures(figures) => Some(figures),
        _ => None,
    };
    ask_each(authority, nodes, |_| Question::Figures, figures, is_gone)
}

/// Memory in use, as seen by each of these compute nodes. The first node counts rows.
pub fn memory(authority: &dyn Authority, nodes: &[NodeName]) -> Vec<Option<Memory>> {
    let memory = |answer| match answer {
        Answer::Memory(memory) => Some(memory),
        _ => None,
    };
    let question = |at| Question::Memory { rows: at == 0 };
    ask_each(authority, nodes, question, memory, |_| false)
}

/// State of a compute node: figures, and memory in use as seen by the node.
pub type WholeState = (Figures, Option<Memory>);

/// States of compute nodes; `None` for a node that does not answer, or for which `is_gone` turns
/// true during the wait. The first node counts rows.
pub fn states(
    authority: &dyn Authority,
    nodes: &[NodeName],
    is_gone: impl FnMut(NodeName) -> bool,
) -> Vec<Option<WholeState>> {
    let state = |answer| match answer {
        Answer::State(state) => Some(*state),
        _ => None,
    };
    ask_each(authority, nodes, |at| Question::State { rows: at == 0 }, state, is_gone)
}

/// Asks each node the question for its place, and waits until all nodes have answered or are gone.
fn ask_each<T>(
    authority: &dyn Authority,
    nodes: &[NodeName],
    question: impl Fn(usize) -> Question,
    wanted: impl Fn(Answer) -> Option<T>,
    mut is_gone: impl FnMut(NodeName) -> bool,
) -> Vec<Option<T>> {
    let ask = |(at, node): (usize, &NodeName)| {
        mailbox(*node).put(authority, &question(at), ANSWERING).ok()
    };
    let asked: Vec<_> = nodes.iter().enumerate().map(ask).collect();
    let mut looks = 0_u32;
    let mut waited_for: Vec<usize> = (0..nodes.len()).filter(|at| asked[*at].is_some()).collect();
    wait_until(&Env::real(0), ANSWERING, || {
        looks += 1;
        let looks_for_life = looks.is_multiple_of(LOOKS_FOR_LIFE);
        waited_for.retain(|at| {
            let answers = asked[*at].as_ref();
            let is_answered = answers.is_some_and(|asked| asked.is_answered::<Answer>(authority));
            !(is_answered || looks_for_life && is_gone(nodes[*at]))
        });
        waited_for.is_empty()
    });
    // All answers that came are at the authority by now.
    let answer = |asked: Option<mailbox::Pending>| {
        wanted(asked?.wait::<Answer>(authority, Duration::ZERO).ok()?)
    };
    asked.into_iter().map(answer).collect()
}

/// First memory node reported as silent by one of these compute nodes.
pub fn silent_memory(authority: &dyn Authority, nodes: &[NodeName]) -> Option<NodeName> {
    silent_among(figures(authority, nodes).iter().flatten())
}

/// First memory node that is silent according to these figures.
pub fn silent_among<'a>(said: impl Iterator<Item = &'a Figures>) -> Option<NodeName> {
    let silent = said.fold(0, |all, one| all | one.silent);
    let index = (silent != 0).then(|| silent.trailing_zeros() as u16)?;
    Some(NodeName { kind: NodeKind::Memory, index })
}

/// The node's side: answers the questions in its mailbox.
pub struct Operator {
    mailbox: Mailbox,
    index: usize,
    cluster: Arc<Cluster>,
    /// The question that is not answered yet.
    pending: Option<(Version, Pending)>,
}

enum Pending {
    Figures(Vec<Submitted<CoordinatorFigures>>),
    Memory(MemoryAsked),
    State(Vec<Submitted<CoordinatorFigures>>, MemoryAsked),
    Move(Vec<(Vec<u16>, Progress)>),
}

/// Memory figures that were requested.
struct MemoryAsked {
    figures: Submitted<MemoryFigures>,
    /// Row counts, if requested.
    rows: Option<Submitted<RowCounts>>,
    /// Time after which rows are not waited for.
    rows_until: Nanos,
}

/// State of an order to move shards.
enum Progress {
    UnderWay(Moving),
    Over(Result<Moved, MoveError>),
}

impl Operator {
    /// Creates the operator of compute node `node`; `cluster` is the node's part of the cluster.
    pub fn new(node: NodeName, cluster: &Arc<Cluster>) -> Self {
        let (index, cluster) = (usize::from(node.index), Arc::clone(cluster));
        Self { mailbox: mailbox(node), index, cluster, pending: None }
    }

    /// Starts to answer a question; `Err` holds an answer that is ready at once.
    fn begin(&self, question: Question) -> Result<Pending, Answer> {
        match question {
            Question::Figures => Ok(Pending::Figures(self.ask_figures())),
            Question::Memory { rows } => Ok(Pending::Memory(self.ask_memory(rows))),
            Question::State { rows } => {
                Ok(Pending::State(self.ask_figures(), self.ask_memory(rows)))
            }
            Question::Owners => Err(self.owners().map_or_else(Answer::Failed, Answer::Owners)),
            Question::Move { shards, to } => match self.order(&shards, usize::from(to)) {
                Ok(orders) => Ok(Pending::Move(orders)),
                Err(why) => Err(Answer::Failed(why)),
            },
            Question::Balance(switch) => {
                self.cluster.set_balancing(match switch {
                    Switch::On => Balancing::On,
                    Switch::Paused | Switch::Never => Balancing::Paused,
                });
                let now = self.cluster.node_figures(self.index).balancing;
                Err(Answer::Switched(now.into()))
            }
        }
    }

    fn ask_figures(&self) -> Vec<Submitted<CoordinatorFigures>> {
        let mine = self
            .cluster
            .coordinators()
            .filter(|coordinator_id| coordinator_id.compute_node == self.index);
        mine.map(|coordinator_id: CoordinatorId| self.cluster.coordinator_figures(coordinator_id))
            .collect()
    }

    fn ask_memory(&self, rows: bool) -> MemoryAsked {
        let count = || self.cluster.recent_row_counts(self.index, ROWS_AGE);
        let rows = rows.then(count);
        let figures = self.cluster.memory_figures(self.index);
        MemoryAsked { figures, rows, rows_until: self.now().after(ROWS_PATIENCE) }
    }

    fn now(&self) -> Nanos {
        self.cluster.machines().outside().now()
    }

    fn owners(&self) -> Result<Owners, String> {
        let shards = self.cluster.shards().map_err(|error| error.to_string())?;
        let shard = |status: lotus::ShardStatus| Shard {
            owner: status.owner.map(|owner| owner as u16),
            epoch: status.epoch.0,
            requests: status.requests,
        };
        let tables = self.cluster.tables().into_iter();
        let tables = tables.map(|(_, spec)| (spec.name.into_owned(), spec.shards)).collect();
        Ok(Owners { shards: shards.into_iter().map(shard).collect(), tables })
    }

    /// Orders the moves, for each owner in orders of at most [`MOST_AT_ONCE`] shards.
    fn order(&self, shards: &[u16], to: usize) -> Result<Vec<(Vec<u16>, Progress)>, String> {
        self.check_memory()?;
        let owners = self.owners()?.shards;
        let mut of: BTreeMap<Option<u16>, Vec<u16>> = BTreeMap::new();
        for shard in shards {
            let known = owners.get(usize::from(*shard)).ok_or("there is no such shard")?;
            of.entry(known.owner).or_default().push(*shard);
        }
        let order = |some: &[u16]| {
            let ids: Vec<_> =
                some.iter().map(|one| ShardId::from_low_bits((*one).into())).collect();
            let started = self.cluster.start_move_by(self.index, &ids, to);
            let progress = started.map_or_else(|why| Progress::Over(Err(why)), Progress::UnderWay);
            (some.to_vec(), progress)
        };
        Ok(of.values().flat_map(|shards| shards.chunks(MOST_AT_ONCE)).map(order).collect())
    }

    /// Fails if a memory node is silent: ownership is written to all replicas, so a hand-over would
    /// wait for the silent node.
    fn check_memory(&self) -> Result<(), String> {
        let silent = self.cluster.silent_memory(self.index);
        let why = |node| Err(format!("memory node {node} does not answer"));
        silent.first().map_or(Ok(()), why)
    }

    /// Requested memory figures, once available.
    ///
    /// # Errors
    /// A sentence.
    fn memory_of(&self, asked: MemoryAsked) -> Result<Memory, String> {
        // Row counts that are unavailable, or late, are left out.
        let rows = asked.rows.filter(Submitted::is_finished);
        let rows = rows.and_then(|rows| self.cluster.wait(rows).ok());
        let figures = self.cluster.wait(asked.figures).map_err(|error| error.to_string())?;
        Ok(self.memory(&figures, rows.unwrap_or_default()))
    }

    fn figures_of(&self, asked: Vec<Submitted<CoordinatorFigures>>) -> Figures {
        // The counts of a failed coordinator do not matter any more.
        let counted = asked.into_iter().filter_map(|one| self.cluster.wait(one).ok());
        self.figures(counted.collect())
    }

    fn memory(&self, figures: &MemoryFigures, counts: RowCounts) -> Memory {
        let known = self.cluster.tables();
        let age_ms = counts.age.as_millis() as u64;
        let table = |memory: &TableMemory| {
            let (_, spec) = known.iter().find(|(id, _)| *id == memory.table)?;
            let counted = counts.tables.iter().find(|counted| counted.table == memory.table);
            Some(TableBytes {
                table: spec.name.to_string(),
                index: memory.index_bytes,
                overflow: memory.overflow_bytes,
                records: memory.record_bytes,
                free: memory.free_here_bytes,
                rows: counted.map(|counted| RowCount {
                    rows: counted.rows,
                    is_estimate: counted.is_estimate,
                    age_ms,
                }),
            })
        };
        let node = |node: &NodeMemory| NodeBytes {
            limit: node.limit_bytes,
            allocated: node.allocated_bytes,
        };
        Memory {
            groups: figures.groups.iter().map(Group::of).collect(),
            nodes: figures.nodes.iter().map(|one| one.as_ref().map(node)).collect(),
            tables: figures.tables.iter().filter_map(table).collect(),
        }
    }

    fn figures(&self, coordinators: Vec<CoordinatorFigures>) -> Figures {
        let figures = self.cluster.node_figures(self.index);
        let MoveCounters { hand_overs, shards, longest, .. } = figures.moves;
        let locks = || coordinators.iter().map(|counted| counted.caches.locks);
        Figures {
            shards_owned: figures.shards_owned,
            ownership: Ownership {
                locks: locks().map(|locks| locks.lookups).sum(),
                own_locks: locks().map(|locks| locks.hits).sum(),
                hand_overs,
                shards,
                longest,
                too_hot: figures.too_hot.map(ShardId::raw),
            },
            silent: self.cluster.silent_memory(self.index).iter().map(|node| 1 << node).sum(),
            balancing: figures.balancing.into(),
        }
    }
}

impl Pending {
    /// Polls unfinished work; returns whether all work is over.
    fn is_over(&mut self, now: Nanos) -> bool {
        match self {
            Self::Figures(asked) => asked.iter().all(Submitted::is_finished),
            Self::Memory(asked) => asked.is_over(now),
            Self::State(figures, memory) => {
                figures.iter().all(Submitted::is_finished) && memory.is_over(now)
            }
            Self::Move(orders) => {
                for (_, progress) in orders.iter_mut() {
                    if let Progress::UnderWay(moving) = progress
                        && let Some(outcome) = moving.outcome()
                    {
                        *progress = Progress::Over(outcome);
                    }
                }
                orders.iter().all(|(_, progress)| matches!(progress, Progress::Over(_)))
            }
        }
    }
}

impl MemoryAsked {
    fn is_over(&self, now: Nanos) -> bool {
        let counted = self.rows.as_ref().is_none_or(Submitted::is_finished);
        self.figures.is_finished() && (counted || now >= self.rows_until)
    }
}

impl Group {
    fn of(memory: &GroupMemory) -> Self {
        let GroupMemory { allocated_bytes, limit_bytes, free_here_bytes } = *memory;
        Self { limit: limit_bytes, allocated: allocated_bytes, free: free_here_bytes }
    }
}

/// Sums up the results of all orders.
fn sum_up(orders: Vec<(Vec<u16>, Progress)>) -> MoveResult {
    let mut all = MoveResult::default();
    for (shards, progress) in orders {
        match progress {
            Progress::Over(Ok(moved)) => {
                all.moved += shards.len();
                all.longest_us = all.longest_us.max(moved.interruption.as_micros() as u64);
            }
            Progress::Over(Err(error)) => {
                let outrun = matches!(error, MoveError::NotOwner(_));
                all.refused.push(Refused { shards, why: error.to_string(), outrun });
            }
            Progress::UnderWay(_) => {}
        }
    }
    all
}

impl From<Balancing> for Switch {
    fn from(balancing: Balancing) -> Self {
        match balancing {
            Balancing::On => Self::On,
            Balancing::Paused => Self::Paused,
            Balancing::Never => Self::Never,
        }
    }
}

impl MailboxServer for Operator {
    fn look(&mut self, authority: &dyn Authority) {
        if self.pending.is_none() {
            let Some((version, question)) = self.mailbox.next(authority) else { return };
            match self.begin(question) {
                Ok(pending) => self.pending = Some((version, pending)),
                Err(answer) => return self.mailbox.answer(authority, version, &answer),
            }
        }
        let Some((version, mut pending)) = self.pending.take() else { return };
        let is_over = pending.is_over(self.now());
        let answer = match pending {
            pending if !is_over => match (pending, self.check_memory()) {
                (Pending::Move(_) | Pending::Memory(_), Err(why)) => Answer::Failed(why),
                // Memory figures would wait for the silent node.
                (Pending::State(figures, _), Err(_))
                    if figures.iter().all(Submitted::is_finished) =>
                {
                    Answer::State(Box::new((self.figures_of(figures), None)))
                }
                (pending, _) => return self.pending = Some((version, pending)),
            },
            Pending::Move(orders) => Answer::Moved(sum_up(orders)),
            Pending::Memory(asked) => {
                self.memory_of(asked).map_or_else(Answer::Failed, Answer::Memory)
            }
            Pending::Figures(asked) => Answer::Figures(self.figures_of(asked)),
            Pending::State(figures, memory) => {
                let figures = self.figures_of(figures);
                Answer::State(Box::new((figures, self.memory_of(memory).ok())))
            }
        };
        self.mailbox.answer(authority, version, &answer);
    }

    fn glance(&mut self, authority: &dyn Authority) {
        self.look(authority);
    }
}
