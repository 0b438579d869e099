//! Lock services by name, and their cores.

use std::fmt;

use lotus_fabric::ids::{Endpoint, LaneId, NodeId};

use super::client::Servers;
use super::hot::HotQueues;
use super::placement::{CoreRole, Placement, SharedQueues, SharedTable};
use super::queue::Order;
use super::table::LockTable;

/// A lock service. Its state is not in words of a memory node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ServerLock {
    /// A node with eight cores, and a queue for each lock (FissLock §2.2, SrvLock).
    SrvLock,
    /// A core on each node keeps a share of the locks; a node uses its own locks by a direct call
    /// (FissLock §2.2, ParLock).
    ParLock,
    /// As [`ServerLock::ParLock`], but each node keeps a block of locks, for locks mostly used on
    /// one node (FissLock §7.4).
    ParLockLocal,
    /// A node with eight cores that grants or refuses; clients ask again.
    Rpc,
    /// Queue managers on all nodes; every request is a message (DSLR §6.1).
    Traditional,
    /// As [`ServerLock::Traditional`], but readers pass a waiting writer at most ten times (DSLR
    /// §6.4).
    TraditionalRo,
    /// A switch with queues of hot locks, in front of [`ServerLock::SrvLock`] for all other locks
    /// (FissLock §2.2, NetLock).
    NetLock,
    /// A switch grants locks, and machines keep holders and waiters. There is no server and no
    /// [`Layout`] ([`crate::switched`]).
    FissLock,
    /// As [`ServerLock::FissLock`], but each machine is the home of a block of locks, whose agents
    /// stay there while the locks are free (FissLock §7.4).
    FissLockLocal,
    /// As [`ServerLock::FissLock`]; locks beyond the switch's capacity are kept as with
    /// [`ServerLock::ParLock`] (FissLock §6).
    FissParLock,
    /// A node that is a Redis: keys with a time to live, no sharing among readers, no queue. There
    /// is no [`Layout`] ([`crate::redlock`]).
    RedLock,
}

impl ServerLock {
    /// The services with grants by a switch and holders kept by machines.
    pub const SWITCHED: [Self; 3] = [Self::FissLock, Self::FissLockLocal, Self::FissParLock];
    /// All server services with a [`Layout`].
    pub const ALL: [Self; 7] = [
        Self::SrvLock,
        Self::ParLock,
        Self::ParLockLocal,
        Self::Rpc,
        Self::Traditional,
        Self::TraditionalRo,
        Self::NetLock,
    ];
    /// Cores of a node dedicated to keeping locks (FissLock §7.1).
    pub const SERVER_CORES: u16 = 8;
    /// Number of readers that may pass a writer (DSLR §6.4).
    pub const PASSES: u32 = 10;

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SrvLock => "srvlock",
            Self::ParLock => "parlock",
            Self::ParLockLocal => "parlock-local",
            Self::Rpc => "rpc",
            Self::Traditional => "traditional",
            Self::TraditionalRo => "traditional-ro",
            Self::NetLock => "netlock",
            Self::FissLock => "fisslock",
            Self::FissLockLocal => "fisslock-local",
            Self::FissParLock => "fisslock+parlock",
            Self::RedLock => "redlock",
        }
    }

    /// Finds a service by name.
    pub fn of(name: &str) -> Option<Self> {
        let others = Self::SWITCHED.into_iter().chain([Self::RedLock]);
        Self::ALL.into_iter().chain(others).find(|server_lock| server_lock.name() == name)
    }

    /// Whether a dedicated node keeps the locks.
    pub const fn has_server(self) -> bool {
        matches!(self, Self::SrvLock | Self::Rpc | Self::NetLock | Self::RedLock)
    }

    /// Whether the locks of a lost node become free again: servers free them once the node's life
    /// is settled, a switch after a recovery. Locks kept by compute nodes are lost with the node.
    pub const fn outlasts_clients(self) -> bool {
        self.has_server() || matches!(self, Self::FissLock | Self::FissLockLocal)
    }

    /// Whether a switch grants all locks or hot locks.
    pub const fn has_switch(self) -> bool {
        matches!(self, Self::NetLock) || self.is_switched()
    }

    /// Whether [`ServerLock::SWITCHED`] has the service.
    pub const fn is_switched(self) -> bool {
        matches!(self, Self::FissLock | Self::FissLockLocal | Self::FissParLock)
    }

    /// Whether the switch is told beforehand which locks are hot.
    pub const fn has_hot_locks(self) -> bool {
        matches!(self, Self::NetLock)
    }

    const fn order(self) -> Order {
        match self {
            Self::SrvLock
            | Self::ParLock
            | Self::ParLockLocal
            | Self::Traditional
            | Self::NetLock
            | Self::FissLock
            | Self::FissLockLocal
            | Self::FissParLock => Order::Arrival,
            Self::Rpc | Self::RedLock => Order::NoQueue,
            Self::TraditionalRo => Order::ReadersPass(Self::PASSES),
        }
    }
}

impl fmt::Display for ServerLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Client nodes, and nodes that may keep locks.
#[derive(Clone, Debug)]
pub struct ServiceNodes {
    /// The clients' nodes.
    pub clients: Vec<NodeId>,
    /// Number of client lanes of a node.
    pub lanes: u16,
    /// The node for [`ServerLock::has_server`].
    pub server: NodeId,
    /// The node for [`ServerLock::has_switch`].
    pub switch: NodeId,
    /// Number of locks.
    pub locks: u64,
}

/// The cores of a lock service, with tables or queues.
#[derive(Clone, Debug)]
pub struct Layout {
    server_lock: ServerLock,
    /// The cores contacted by clients.
    asked: Placement,
    cores: Vec<(Endpoint, CoreRole)>,
}

impl Layout {
    /// Lays out the cores for clients on these nodes: the lane behind the clients' lanes keeps
    /// locks, or the server's cores do. `hot` has the locks with slots in the switch, and their
    /// numbers of slots, if there is a switch.
    ///
    /// # Panics
    /// If there is no client, or the service has no layout.
    pub fn new(server_lock: ServerLock, nodes: &ServiceNodes, hot: Vec<(u64, u32)>) -> Self {
        assert!(
            ServerLock::ALL.contains(&server_lock),
            "the locks of {server_lock} are in no tables"
        );
        let placement = match server_lock.has_server() {
            true => Placement::on_one(nodes.server, ServerLock::SERVER_CORES),
            false => Placement::on_all(nodes.clients.iter().copied(), LaneId(nodes.lanes)),
        };
        let placement = match server_lock {
            ServerLock::ParLockLocal => placement.in_blocks(nodes.locks),
            _ => placement,
        };
        let switch = Endpoint { node: nodes.switch, lane: LaneId(0) };
        let switch = server_lock.has_switch().then_some(switch);
        let role = |at: &Endpoint| {
            let table = SharedTable::new(LockTable::new(server_lock.order()));
            (*at, CoreRole::Table(table, switch))
        };
        let mut cores: Vec<_> = placement.cores().iter().map(role).collect();
        let Some(switch) = switch else { return Self { server_lock, asked: placement, cores } };
        let queues = SharedQueues::new(HotQueues::new(hot));
        cores.push((switch, CoreRole::Queues(queues, placement)));
        Self { server_lock, asked: Placement::on_one(switch.node, 1), cores }
    }

    /// The cores with tables or queues.
    pub fn cores(&self) -> impl Iterator<Item = (Endpoint, CoreRole)> {
        self.cores.iter().cloned()
    }

    /// A node's view of the cores.
    pub fn servers(&self, node: NodeId) -> Servers {
        let calls = matches!(self.server_lock, ServerLock::ParLock | ServerLock::ParLockLocal);
        let own = self.cores.iter().find(|(at, _)| at.node == node && calls);
        let own = own.and_then(|(_, role)| match role {
            CoreRole::Table(table, _) => Some(table.clone()),
            CoreRole::Queues(..) => None,
        });
        Servers { placement: self.asked.clone(), own, retries: self.server_lock == ServerLock::Rpc }
    }

    /// Number of locks that are held or waited for.
    pub fn used(&self) -> usize {
        self.cores.iter().map(|(_, role)| role.used()).sum()
    }
}
