//! What follows from the settings before there are any machines: who the nodes are, who stores and
//! owns what, and how memory is laid out. [`Plan::carry_out`] makes it so.

use std::sync::{Arc, RwLock};

use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::machines::Machines;
use lotus_fabric::region::Rights;
use lotus_locktable::{LockTable, LockTableConfig};
use lotus_mvcc::Timestamp;
use lotus_mvcc::layout::region::RegionLayout;
use lotus_mvcc::timestamp::SharedClock;
use lotus_recovery::membership::{self, FIRST_EPOCH};
use lotus_recovery::{LogGeometry, Membership};
use lotus_router::authority::IncarnationError;
use lotus_router::placement::LOG_REGION;
use lotus_router::{EmbeddedAuthority, Placement, Router, ShardMap, allocate_incarnation};

use crate::config::{Config, LockKind};
use crate::control::Control;
use crate::error::ClusterError;
use crate::shared::{ComputeNode, LOCK_REGION, LOCK_REGION_BYTES, NodeParts, Shared};

/// Control's access epoch. It stands beside the compute nodes and shares a number with the first,
/// whose expulsion must not lock it out.
const CONTROL_EPOCH: Epoch = Epoch(u32::MAX);

/// A checked configuration. Memory nodes are numbered first.
pub(crate) struct Plan {
    pub(crate) memory_nodes: Vec<NodeId>,
    pub(crate) compute_nodes: Vec<NodeId>,
    placement: Placement,
    shards: Arc<ShardMap>,
    router: Router,
    log: LogGeometry,
    region: RegionLayout,
}

impl Plan {
    /// Takes no resources, so that settings are refused before any is taken.
    pub(crate) fn new(config: &Config) -> Result<Self, ClusterError> {
        config.check()?;
        // However many are asked for: the topology refuses more than a few, but counts the list.
        let numbered = |from: usize, count: usize| -> Vec<NodeId> {
            let end = from.saturating_add(count).min(usize::from(u16::MAX));
            (from..end).map(|node| NodeId(node as u16)).collect()
        };
        let memory_nodes = numbered(0, config.memory_nodes);
        let compute_nodes = numbered(config.memory_nodes, config.compute_nodes);
        let placement = Placement::new(&memory_nodes, config.replicas)?;
        let shards = Arc::new(ShardMap::even(&compute_nodes)?);
        let router = Router::new(Arc::clone(&shards), &compute_nodes, config.routing)?;
        let slots = config.slots() as u16;
        let log = LogGeometry::new(config.compute_nodes as u16, slots, config.max_writes)?;
        // Every memory node stores as many groups as there are replicas.
        let group_bytes = config.memory_limit / config.replicas as u64;
        let region = RegionLayout::new(group_bytes).map_err(|_| {
            let (limit, groups) = (config.memory_limit, config.replicas);
            let sentence = format!(
                "a memory limit of {limit} bytes leaves {group_bytes} for each of a memory node's \
                 {groups} groups, which must be from 1 MiB to 1 TiB"
            );
            ClusterError::Setting(sentence)
        })?;
        Ok(Self { memory_nodes, compute_nodes, placement, shards, router, log, region })
    }

    /// Registers the memory of all memory nodes and admits the compute nodes.
    pub(crate) fn carry_out(
        self,
        config: Config,
        machines: &impl Machines,
    ) -> Result<Shared, ClusterError> {
        let fabric = machines.fabric();
        for node in &self.memory_nodes {
            for group in self.placement.hosted_by(*node) {
                fabric.register(*node, group.region(), self.region.bytes(), Rights::ALL)?;
            }
            fabric.register(*node, LOG_REGION, self.log.region_bytes(), Rights::ALL)?;
            if config.locks == LockKind::CasSpin {
                fabric.register(*node, LOCK_REGION, LOCK_REGION_BYTES, Rights::ALL)?;
            }
        }
        let authority = EmbeddedAuthority::new();
        let node = |(index, id): (usize, &NodeId)| -> Result<Arc<ComputeNode>, ClusterError> {
            let locks = LockTable::new(LockTableConfig::with_bytes(config.lock_table_bytes))?;
            let parts = NodeParts {
                id: *id,
                index,
                incarnation: allocate_incarnation(&authority)?,
                epoch: FIRST_EPOCH,
                env: machines.env(*id),
                locks: Arc::new(locks),
                shards: Arc::new(ShardMap::even(&self.compute_nodes)?),
                routes: Arc::clone(&self.shards),
                threads: config.threads,
                balanced: config.balance.is_some(),
                // Other locks are not asked of a row's owner, who then knows nothing of its
                // writers.
                cached: match config.locks {
                    LockKind::Lotus => config.version_table_cache,
                    LockKind::CasSpin => 0,
                },
            };
            Ok(Arc::new(ComputeNode::new(parts)))
        };
        let nodes =
            self.compute_nodes.iter().enumerate().map(node).collect::<Result<Vec<_>, _>>()?;
        let members = Membership::new(nodes.iter().map(|node| (node.id, node.incarnation)));
        membership::found(&authority, &members).map_err(IncarnationError::from)?;
        Ok(Shared {
            fabric,
            control: Control::new(machines, self.compute_nodes[0], CONTROL_EPOCH),
            authority: Arc::new(authority),
            placement: self.placement,
            shards: self.shards,
            router: self.router,
            log: self.log,
            region: self.region,
            clock: SharedClock::after(Timestamp::LOADED),
            tables: RwLock::default(),
            nodes,
            config,
        })
    }
}
