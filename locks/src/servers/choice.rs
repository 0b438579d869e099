//! Lock services that keep locks, by name, and where each keeps them.

use std::fmt;

use lotus_fabric::ids::{Endpoint, LaneId, NodeId};

use super::client::Servers;
use super::placement::{Placement, SharedTable};
use super::queue::Order;
use super::table::LockTable;

/// A lock service. The state of its locks is not in words of a memory node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kept {
    /// A node with eight cores, and a queue for each lock (FissLock §2.2, SrvLock).
    SrvLock,
    /// A core on each node, for its share of the locks; own locks are had by a call (FissLock §2.2,
    /// ParLock).
    ParLock,
    /// A node with eight cores, which grants or refuses; clients ask again.
    Rpc,
    /// A queue manager on each node, which all ask by messages (DSLR §6.1).
    Traditional,
    /// The same; readers pass a waiting writer ten times at most (DSLR §6.4).
    TraditionalRo,
    /// A switch grants locks, and machines keep holders and waiters: no server does, and it is no
    /// [`Layout`] ([`crate::switched`]).
    FissLock,
}

impl Kept {
    /// All services of servers.
    pub const ALL: [Self; 5] =
        [Self::SrvLock, Self::ParLock, Self::Rpc, Self::Traditional, Self::TraditionalRo];
    /// Cores of a node that does nothing but keep locks (FissLock §7.1).
    pub const SERVER_CORES: u16 = 8;
    /// Number of readers that pass a writer (DSLR §6.4).
    pub const PASSES: u32 = 10;

    /// The name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SrvLock => "srvlock",
            Self::ParLock => "parlock",
            Self::Rpc => "rpc",
            Self::Traditional => "traditional",
            Self::TraditionalRo => "traditional-ro",
            Self::FissLock => "fisslock",
        }
    }

    /// The service of a name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::FissLock]).find(|kept| kept.name() == name)
    }

    /// Whether a node of its own keeps the locks.
    pub const fn has_server(self) -> bool {
        matches!(self, Self::SrvLock | Self::Rpc)
    }

    /// Whether a switch grants the locks.
    pub const fn has_switch(self) -> bool {
        matches!(self, Self::FissLock)
    }

    const fn order(self) -> Order {
        match self {
            Self::SrvLock | Self::ParLock | Self::Traditional | Self::FissLock => Order::Arrival,
            Self::Rpc => Order::NoQueue,
            Self::TraditionalRo => Order::ReadersPass(Self::PASSES),
        }
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The cores that keep the locks of a service, and what they have.
#[derive(Clone, Debug)]
pub struct Layout {
    kept: Kept,
    placement: Placement,
    /// One for each core, in their order.
    tables: Vec<SharedTable>,
}

impl Layout {
    /// The cores for clients on these nodes, of which each has so many lanes: the lane behind them
    /// keeps locks, or those of `server` do.
    ///
    /// # Panics
    /// If there is no client, or no server keeps the locks.
    pub fn new(kept: Kept, clients: &[NodeId], lanes: u16, server: NodeId) -> Self {
        assert!(!kept.has_switch(), "no server keeps the locks of {}", kept.name());
        let placement = match kept.has_server() {
            true => Placement::on_one(server, Kept::SERVER_CORES),
            false => Placement::on_all(clients.iter().copied(), LaneId(lanes)),
        };
        let table = |_: &Endpoint| SharedTable::new(LockTable::new(kept.order()));
        let tables = placement.cores().iter().map(table).collect();
        Self { kept, placement, tables }
    }

    /// The cores, and the locks of each.
    pub fn cores(&self) -> impl Iterator<Item = (Endpoint, SharedTable)> {
        self.placement.cores().iter().copied().zip(self.tables.iter().cloned())
    }

    /// What a lane of a node knows of the cores.
    pub fn servers(&self, node: NodeId) -> Servers {
        let own = self.cores().find(|(at, _)| at.node == node && self.kept == Kept::ParLock);
        Servers {
            placement: self.placement.clone(),
            own: own.map(|(_, table)| table),
            retries: self.kept == Kept::Rpc,
        }
    }

    /// Number of locks that are held or waited for.
    pub fn used(&self) -> usize {
        self.tables.iter().map(SharedTable::used).sum()
    }
}
