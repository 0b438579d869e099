//! What an operator asks of a running compute node, and the node's side of that: who owns what, how
//! it is doing, moving shards. The questions go by [`Mailbox`].
//!
//! Whichever node is asked, it says what the memory pool says, and passes orders on to the owners
//! of the shards. It waits for nothing: what takes time is looked at again the next time that the
//! daemon looks around.

use std::collections::BTreeMap;
use std::sync::Arc;

use lotus::{
    Balancing, Cluster, CoordinatorFigures, GroupMemory, Machines, MemoryFigures, MoveCounters,
    MoveError, Moved, Moving, Seat, ShardId, Submitted,
};
use lotus_benchmarks::deployment::{Hits, Ownership};
use lotus_router::Authority;
use lotus_router::authority::Version;
use serde::{Deserialize, Serialize};

use super::errands::Look;
use super::mailbox::Mailbox;
use super::node::Node;

/// The most shards that one order names.
const MOST_AT_ONCE: usize = 128;

/// What a node is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Question {
    /// How it is doing.
    Figures,
    /// Memory in use.
    Memory,
    /// Who owns what.
    Owners,
    /// To have these shards moved to that compute node.
    Move { shards: Vec<u16>, to: u16 },
    /// To give shards away by itself, or not to.
    Balance(Switch),
}

/// Whether load balancing is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// It is.
    On,
    /// It was, and somebody has turned it off.
    Paused,
    /// The cluster was made without.
    Never,
}

/// What it says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    Figures(Figures),
    Memory(Vec<Group>),
    Owners(Owners),
    Moved(Outcome),
    Switched(Switch),
    /// It could not be done.
    Failed(String),
}

/// How a compute node is doing.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Shards whose locks it grants.
    pub shards_owned: usize,
    /// Where its transactions took locks, and the shards that it gave away.
    pub ownership: Ownership,
    /// Memory nodes that do not answer it, a bit for each.
    pub silent: u64,
    /// Whether it gives shards away by itself.
    pub balancing: Switch,
}

/// The memory of one replica of a group, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Bytes for rows and indexes.
    pub limit: u64,
    /// Bytes of slabs that were handed out.
    pub allocated: u64,
    /// Bytes of these that are free at the node that says so.
    pub free: u64,
}

/// Who owns what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Owners {
    /// Of every shard, in order.
    pub shards: Vec<Shard>,
    /// Names of the tables, and on how many shards, from the first on, their rows are.
    pub tables: Vec<(String, u32)>,
}

/// A shard.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Shard {
    /// The place of the compute node that grants its locks, if one does.
    pub owner: Option<u16>,
    /// Since which epoch of the shard.
    pub epoch: u32,
    /// Locks of it that were asked for in the last interval of load balancing.
    pub requests: u64,
}

/// What has become of shards that were to be moved.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// How many are where they were to go.
    pub moved: usize,
    /// The longest time for which nobody granted locks of some of them, in microseconds.
    pub longest_us: u64,
    /// Those that are not.
    pub refused: Vec<Refused>,
}

/// Shards that were not moved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refused {
    pub shards: Vec<u16>,
    pub why: String,
    /// Some of them went somewhere else meanwhile: try again.
    pub outrun: bool,
}

/// Where a node is asked.
pub fn mailbox(node: Node) -> Mailbox {
    Mailbox::new("operator", node)
}

/// The side of a node.
pub struct Operator<M: Machines> {
    mailbox: Mailbox,
    index: usize,
    cluster: Arc<Cluster<M>>,
    /// The question that is not answered yet.
    pending: Option<(Version, Pending)>,
}

enum Pending {
    Figures(Vec<Submitted<CoordinatorFigures>>),
    Memory(Submitted<MemoryFigures>),
    Move(Vec<(Vec<u16>, Progress)>),
}

/// What is known of an order.
enum Progress {
    UnderWay(Moving),
    Over(Result<Moved, MoveError>),
}

impl<M: Machines> Operator<M> {
    /// For the compute node `node`, whose part of the cluster is `cluster`.
    pub fn new(node: Node, cluster: &Arc<Cluster<M>>) -> Self {
        let (index, cluster) = (usize::from(node.index), Arc::clone(cluster));
        Self { mailbox: mailbox(node), index, cluster, pending: None }
    }

    /// The answer, or what has to be waited for.
    fn begin(&self, question: Question) -> Result<Pending, Answer> {
        match question {
            Question::Figures => {
                let mine = self.cluster.seats().filter(|seat| seat.compute_node == self.index);
                let ask = |seat: Seat| self.cluster.coordinator_figures(seat);
                Ok(Pending::Figures(mine.map(ask).collect()))
            }
            Question::Memory => Ok(Pending::Memory(self.cluster.memory_figures(self.index))),
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

    /// Orders the shards of each owner to be moved, so many at a time.
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

    /// Who owns a shard is written to all replicas: without one of them a hand-over waits.
    fn check_memory(&self) -> Result<(), String> {
        let silent = self.cluster.silent_memory(self.index);
        let why = |node| Err(format!("memory node {node} does not answer"));
        silent.first().map_or(Ok(()), why)
    }

    fn figures(&self, coordinators: Vec<CoordinatorFigures>) -> Figures {
        let figures = self.cluster.node_figures(self.index);
        let MoveCounters { hand_overs, shards, stragglers, interrupted, longest, .. } =
            figures.moves;
        let mut locks = Hits::default();
        for counted in coordinators {
            locks.lookups += counted.caches.locks.lookups;
            locks.hits += counted.caches.locks.hits;
        }
        let too_hot = figures.too_hot.map(ShardId::raw);
        Figures {
            shards_owned: figures.shards_owned,
            ownership: Ownership {
                locks,
                hand_overs,
                shards,
                stragglers,
                interrupted,
                longest,
                too_hot,
            },
            silent: self.cluster.silent_memory(self.index).iter().map(|node| 1 << node).sum(),
            balancing: figures.balancing.into(),
        }
    }
}

impl Pending {
    /// Looks again.
    fn is_over(&mut self) -> bool {
        match self {
            Self::Figures(asked) => asked.iter().all(Submitted::is_finished),
            Self::Memory(asked) => asked.is_finished(),
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

impl Group {
    fn of(memory: &GroupMemory) -> Self {
        let GroupMemory { allocated_bytes, limit_bytes, free_here_bytes } = *memory;
        Self { limit: limit_bytes, allocated: allocated_bytes, free: free_here_bytes }
    }
}

/// The sum of what has become of all orders.
fn sum_up(orders: Vec<(Vec<u16>, Progress)>) -> Outcome {
    let mut all = Outcome::default();
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

impl<M: Machines + 'static> Look for Operator<M>
where
    Cluster<M>: Send + Sync,
{
    fn look(&mut self, authority: &dyn Authority) {
        if self.pending.is_none() {
            let Some((version, question)) = self.mailbox.next(authority) else { return };
            match self.begin(question) {
                Ok(pending) => self.pending = Some((version, pending)),
                Err(answer) => return self.mailbox.answer(authority, version, &answer),
            }
        }
        let Some((version, mut pending)) = self.pending.take() else { return };
        let is_over = pending.is_over();
        let answer = match pending {
            pending if !is_over => match (&pending, self.check_memory()) {
                (Pending::Move(_) | Pending::Memory(_), Err(why)) => Answer::Failed(why),
                _ => return self.pending = Some((version, pending)),
            },
            Pending::Move(orders) => Answer::Moved(sum_up(orders)),
            Pending::Memory(asked) => match self.cluster.wait(asked) {
                Ok(memory) => Answer::Memory(memory.groups.iter().map(Group::of).collect()),
                Err(error) => Answer::Failed(error.to_string()),
            },
            Pending::Figures(asked) => {
                // A coordinator that has failed has counted nothing that matters any more.
                let counted = asked.into_iter().filter_map(|one| self.cluster.wait(one).ok());
                Answer::Figures(self.figures(counted.collect()))
            }
        };
        self.mailbox.answer(authority, version, &answer);
    }
}
