//! Parameters of an exploration: the rows that each node writes, the faults, and the broken rule.

use crate::state::{Faults, KEYS, NODES};

/// A rule that can be broken, to show that a property detects it. Rules that the engine can break
/// as well have the names of `sabotage/src/rule.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rule {
    /// H2: every expelled node is fenced before anything is read.
    NodesAreFenced,
    /// H3: versions turn visible on backups first, then on primaries.
    BackupsFirst,
    /// H3: the caller is told when all backups are visible, not before.
    RepliesWait,
    /// H3: a timestamp on any cell sends a transaction forward.
    TimestampsDecide,
    /// H4: a dead node's locks are dropped once its transactions are settled.
    LocksOutlastRecovery,
    /// H4: a shard is adopted once every expelled node is resolved.
    AdoptionWaits,
    /// H4: no commit begins on locks that a lost node had granted.
    LostLocksEndAttempts,
    /// H4: a node that was never started is expelled.
    TheAbsentAreExpelled,
    /// H8: a request of an expelled node is not granted any more.
    TheExpelledAreRefused,
    /// H4: a node returns when every expelled node is resolved, and all know that.
    ReturnsWait,
    /// H2: a fence refuses the verbs of a life for ever.
    FencesLast,
    /// H9: a node that returns has another incarnation in locks and messages.
    LivesDiffer,
    /// H16: of two lives' entries in a log slot, the later life's counts as the later one.
    LogsNameLives,
    /// H9: a request of an attempt that is over is not granted any more.
    StaleRequestsAreRefused,
    /// H12: on each connection the log goes before the cells.
    LogBeforeCells,
    /// H12: a log entry names the whole write set.
    LogNamesAll,
    /// H15: an undone transaction is undone on every replica, also where its write never landed.
    AllReplicasAreRepaired,
    /// H17: a recoverer that takes over a log fences the earlier ones.
    RecoverersAreFenced,
    /// H17: a decision is on all logs before a cell is touched.
    DecisionsAreRecorded,
}

/// One configuration to explore.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// Rows that the transactions of each node write.
    pub writes: [[bool; KEYS]; NODES],
    /// Number of attempts that each node makes, successful or not.
    pub attempts: [u8; NODES],
    pub faults: Faults,
    pub broken: Option<Rule>,
}

impl World {
    pub fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    pub fn writes(&self, node: usize) -> impl Iterator<Item = usize> {
        let writes = self.writes[node];
        (0..KEYS).filter(move |key| writes[*key])
    }
}
