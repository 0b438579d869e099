//! Plan of a cluster from its settings: the nodes, initial placement and shard split, and memory
//! layout. [`Plan::carry_out`] builds the cluster.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};

use lotus_fabric::env::Env;
use lotus_fabric::ids::ShardId;
use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::machines::Machines;
use lotus_fabric::transport::Fabric;
use lotus_locktable::{LockTable, LockTableConfig};
use lotus_mvcc::Timestamp;
use lotus_mvcc::layout::region::RegionLayout;
use lotus_mvcc::timestamp::SharedClock;
use lotus_points::point_here;
use lotus_recovery::membership::FIRST_EPOCH;
use lotus_recovery::{LogGeometry, Membership};
use lotus_router::{Owner, Placement, Router, ShardMap};

use crate::api::config::{Config, LockKind};
use crate::api::error::ClusterError;
use crate::cluster::part::{Arrival, Part};
use crate::memory_nodes::returning;
use crate::node::agreed::async_authority::AsyncAuthority;
use crate::node::agreed::catalogue_lookups::CatalogueLookups;
use crate::node::agreed::names::Names;
use crate::node::control::Control;
use crate::node::locks::lock_region_bytes;
use crate::node::memory::configuration::SlabAllocations;
use crate::node::peers::nodes::Nodes;
use crate::node::shared::{ComputeNode, NodeParts, Peer, Shared};

/// Access epoch of the control connection if all nodes are in one process. Control shares a node id
/// with the first compute node, and the expulsion of this node must not lock control out. A process
/// with a part of the nodes is locked out with its nodes.
const CONTROL_EPOCH: Epoch = Epoch(u32::MAX);

/// Checked configuration. Memory nodes are numbered first.
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
    /// Checks the settings before any resources are taken.
    pub(crate) fn new(config: &Config) -> Result<Self, ClusterError> {
        config.check()?;
        // The configured number is not limited yet: the topology checks the limit, but only after
        // the list is made.
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

    /// Takes this process's part: admits its compute nodes and, if it is the founder, registers the
    /// memory of all memory nodes. The returned [`Arrival`] says how the process came to its part.
    pub(crate) fn carry_out(
        self,
        config: Config,
        part: &Part,
        machines: &dyn Machines,
    ) -> Result<(Shared, Arrival), ClusterError> {
        part.check(&config)?;
        let hosted = part.hosted(&config);
        let epoch = if part.is_whole() { CONTROL_EPOCH } else { FIRST_EPOCH };
        let control = Control::new(machines, self.compute_nodes[hosted[0]], epoch);
        let authority = part.authority();
        let place = |(index, id): (usize, &NodeId)| Peer { id: *id, index };
        let peers: Vec<Peer> = self.compute_nodes.iter().enumerate().map(place).collect();
        // Fallible steps come first (I174): a place that is taken but not used is lost for a while.
        let locks = hosted.iter().map(|_| lock_table(&config)).collect::<Result<Vec<_>, _>>()?;
        let has_threads = machines.cpu_charge().is_none() && machines.delivery_model().is_none();
        let names = Names::draw(&config, has_threads, &machines.outside())?;
        let async_authority = match machines.delivery_model() {
            None if !part.is_whole() => {
                AsyncAuthority::elsewhere(Arc::clone(&authority), &machines.outside())?
            }
            delivery_model => AsyncAuthority::here(Arc::clone(&authority), delivery_model),
        };
        let entry = part.enter(&config, &peers, &self.placement, &control, &*authority)?;
        let fabric = machines.fabric();
        if entry.founds() {
            self.register(&config, &*fabric)?;
            point_here!(self.compute_nodes[hosted[0]].0, Registered);
        }
        let admission = Admission {
            config: &config,
            compute_nodes: &self.compute_nodes,
            placement: &self.placement,
            routes: &self.shards,
            members: entry.members(),
            owners: entry.owners(),
        };
        let env = |index: usize| machines.env(self.compute_nodes[index]);
        let nodes = hosted.iter().zip(locks);
        let nodes = nodes.map(|(index, locks)| admission.admit(*index, env(*index), locks));
        let nodes = nodes.collect::<Result<_, _>>()?;
        let shared = Shared {
            fabric,
            control: control.under(entry.epoch()),
            async_authority,
            placement: self.placement,
            slab_allocations: SlabAllocations::default(),
            shards: self.shards,
            router: self.router,
            log: self.log,
            region: self.region,
            clock: SharedClock::after(Timestamp::LOADED),
            tables: RwLock::default(),
            names,
            has_threads,
            held_up: Mutex::default(),
            stopping: async_channel::bounded(1),
            unended: Mutex::default(),
            drops: async_channel::bounded(1),
            catalogue_lookups: CatalogueLookups::default(),
            process: machines.outside().begin_counting(),
            rows_loaded: AtomicU64::new(0),
            #[cfg(feature = "sabotage")]
            exclusion: Arc::default(),
            peers,
            nodes: Nodes::new(nodes),
            config,
        };
        Ok((shared, entry))
    }

    fn register(&self, config: &Config, fabric: &dyn Fabric) -> Result<(), ClusterError> {
        for node in &self.memory_nodes {
            let locks = lock_region_bytes(config);
            returning::register(fabric, *node, &self.placement, &self.region, &self.log, locks)?;
        }
        Ok(())
    }
}

/// Creates the empty lock table of one compute node.
///
/// # Errors
/// `LockTable`: the size is invalid, or memory is short.
pub(crate) fn lock_table(config: &Config) -> Result<LockTable, ClusterError> {
    Ok(LockTable::new(LockTableConfig::with_bytes(config.lock_table_bytes))?)
}

/// Inputs for creating the compute nodes of this process.
pub(crate) struct Admission<'a> {
    pub(crate) config: &'a Config,
    pub(crate) compute_nodes: &'a [NodeId],
    /// The initial placement.
    pub(crate) placement: &'a Placement,
    /// The routing layer's copy of the shard map.
    pub(crate) routes: &'a Arc<ShardMap>,
    /// Membership that includes the node.
    pub(crate) members: &'a Membership,
    /// Owners of all shards at the start; empty for the initial owners.
    pub(crate) owners: &'a [Owner],
}

impl Admission<'_> {
    /// Creates the compute node at place `index`, with the environment `env` and the empty lock
    /// table `locks`.
    pub(crate) fn admit(
        &self,
        index: usize,
        env: Env,
        locks: LockTable,
    ) -> Result<Arc<ComputeNode>, ClusterError> {
        let Self { config, compute_nodes, members, .. } = self;
        let id = compute_nodes[index];
        let member = members.member(id).ok_or(ClusterError::Damaged)?;
        debug_assert!(
            self.owners.is_empty() || self.owners.len() == usize::from(ShardId::COUNT),
            "I147: a life learns the owner of every shard"
        );
        let shards = ShardMap::even(compute_nodes)?;
        for (shard, owner) in ShardId::all().zip(self.owners) {
            shards.learn(shard, *owner);
            self.routes.learn(shard, *owner);
        }
        let parts = NodeParts {
            id,
            index,
            incarnation: member.incarnation,
            epoch: member.joined,
            env,
            locks: Arc::new(locks),
            shards: Arc::new(shards),
            routes: Arc::clone(self.routes),
            members,
            threads: config.threads,
            coroutines: config.coroutines,
            placement: self.placement.clone(),
            balanced: config.balance.is_some(),
            // Locks on memory nodes do not involve the row's owner, so the owner's cache could not
            // learn of writers.
            cached: match config.locks {
                LockKind::Lotus => config.version_table_cache,
                LockKind::Cas
                | LockKind::Dslr
                | LockKind::ShiftLock
                | LockKind::Declock
                | LockKind::IdealRdma => 0,
            },
        };
        Ok(Arc::new(ComputeNode::new(parts)))
    }
}
