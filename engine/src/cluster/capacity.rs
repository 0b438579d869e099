//! Memory in use: allocated memory by memory node and table, and the allocated memory that is free
//! again at a compute node.
//!
//! A group's slabs are counted in its directory, on the primary. Slabs are given back only when
//! their table is dropped, or was not created after all; otherwise the allocated memory only grows.
//! Only all compute nodes
//! together know the free part: a compute node reports its own free slots
//! ([`GroupMemory::free_here_bytes`]), and the sum over all nodes is the free memory. If all
//! compute nodes are in this process, [`Cluster::memory_in_use`] adds up the sum.

use std::collections::BTreeMap;
use std::sync::Arc;

use lotus_fabric::ids::TableId;
use lotus_fabric::lane::BatchError;
use lotus_mvcc::TableDef;
use lotus_mvcc::layout::region::{FREE_SLAB, RegionLayout, SLAB_BYTES, SlabEntry, SlabKind};
use lotus_mvcc::slab::{SlabAllocator, SlotKind};
use lotus_router::{GroupId, Placement, Replica};

use crate::api::coordinator_id::CoordinatorId;
use crate::api::error::{ClusterError, unreachable_nodes};
use crate::cluster::handle::Cluster;
use crate::node::coordinator::Coordinator;
use crate::node::shared::Shared;
use crate::space::slabs::{allocated_end, directory_from, marked_free};
use crate::txn::body::purpose;
use crate::txn::submit::Submitted;

/// Memory in use, as seen by a compute node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryFigures {
    /// Memory nodes, by their places; `None` for a memory node not in use.
    pub nodes: Vec<Option<NodeMemory>>,
    /// Replica groups, in their order.
    pub groups: Vec<GroupMemory>,
    /// Tables, in their order.
    pub tables: Vec<TableMemory>,
}

/// Memory of one memory node, for rows and their index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeMemory {
    /// Bytes of the slabs handed out.
    pub allocated_bytes: u64,
    /// Bytes of all slabs.
    pub limit_bytes: u64,
}

impl NodeMemory {
    /// Bytes of the slabs not handed out.
    pub const fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.allocated_bytes)
    }
}

/// Memory of one replica of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupMemory {
    /// Bytes of the slabs handed out.
    pub allocated_bytes: u64,
    /// Bytes of all slabs.
    pub limit_bytes: u64,
    /// Bytes of allocated slots that are free at this compute node. While the group has slabs left,
    /// further free slots may be kept by the node's other coordinators.
    pub free_here_bytes: u64,
}

impl GroupMemory {
    /// Bytes of the slabs not handed out.
    pub const fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.allocated_bytes)
    }
}

/// Memory of one table, in one replica of each group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableMemory {
    /// The table.
    pub table: TableId,
    /// Bytes of the table's slabs.
    pub allocated_bytes: u64,
    /// Bytes of slabs of the index.
    pub index_bytes: u64,
    /// Bytes of slabs for overflow buckets of the index.
    pub overflow_bytes: u64,
    /// Bytes of slabs for records. Records beside their cells are in the index.
    pub record_bytes: u64,
    /// Bytes of the table's slots that are free at this compute node, like
    /// [`GroupMemory::free_here_bytes`].
    pub free_here_bytes: u64,
}

/// Bytes of one group's slabs by table, the offset where the last slab ends, and the bytes of the
/// slabs below this offset that are free again.
#[derive(Default)]
struct Directory {
    end: u64,
    free: u64,
    tables: BTreeMap<TableId, Slabs>,
}

/// Bytes of one table's slabs in one group.
#[derive(Clone, Copy, Default)]
struct Slabs {
    index: u64,
    overflow: u64,
    records: u64,
}

impl Cluster {
    /// Returns the memory in use, as seen by a compute node. Coordinator 0 of the node answers,
    /// between transactions, and reads the directories of all groups.
    ///
    /// The result is an error if a memory node in use cannot be read.
    ///
    /// # Panics
    /// If the compute node is not in this process.
    pub fn memory_figures(&self, compute_node: usize) -> Submitted<MemoryFigures> {
        self.submit(CoordinatorId { compute_node, thread: 0 }, |session| async move {
            let coordinator = session.coordinator();
            match memory_figures(coordinator).await {
                Ok(figures) => Ok(figures),
                Err(error) => Err(coordinator.after_failure(error).await),
            }
        })
    }

    /// Returns the bytes in use on the memory nodes, by place: index, records and older versions,
    /// logs, and the memory's own description. Slabs given back, and slots free at a compute node
    /// of this process or at one of its coordinators, are not in use. 0 for a memory node not in
    /// use.
    ///
    /// # Errors
    /// Memory nodes that cannot be read, or a coordinator that fails meanwhile.
    pub fn memory_in_use(&self) -> Result<Vec<u64>, ClusterError> {
        let mut free = self.shared.free_at_nodes();
        for coordinator_id in self.serving_coordinators() {
            let asked = self.submit(coordinator_id, |session| async move {
                let coordinator = session.coordinator();
                Ok(coordinator.shared.free_in(&coordinator.slabs.borrow()))
            });
            let failed = |_| ClusterError::CoordinatorFailed { node: coordinator_id.compute_node };
            add(&mut free, &self.wait(asked).map_err(failed)?);
        }
        self.in_use_but(&free)
    }

    /// As [`Self::memory_in_use`], before the first transaction: asks no coordinator, so no time
    /// passes on simulated machines.
    ///
    /// # Errors
    /// Memory nodes that cannot be read.
    pub fn memory_loaded(&self) -> Result<Vec<u64>, ClusterError> {
        self.in_use_but(&self.shared.free_at_nodes())
    }

    /// Returns the bytes in use on the memory nodes, given the free bytes of the groups.
    fn in_use_but(&self, free: &[u64]) -> Result<Vec<u64>, ClusterError> {
        let shared = &*self.shared;
        let placement = &shared.surviving();
        let ends = shared.control.with_lane(|lane| async move {
            let mut ends = Vec::new();
            for (_, replicas) in placement.groups() {
                let (primary, layout) = (replicas.primary(), &shared.region);
                let end = allocated_end(&lane, primary, layout).await?;
                ends.push(end - marked_free(&lane, primary, layout).await?);
            }
            Ok(ends)
        })?;
        let ends: Vec<u64> = ends.map_err(unreachable_nodes)?;
        let mut nodes = vec![0; shared.config.memory_nodes];
        for node in placement.nodes() {
            nodes[usize::from(node.0)] += shared.log.region_bytes();
        }
        for ((_, replicas), (end, free)) in placement.groups().zip(ends.iter().zip(free)) {
            debug_assert!(free <= end, "I20: a slot that is free is in a slab that was taken");
            for replica in replicas.members() {
                nodes[usize::from(replica.node.0)] += end - free;
            }
        }
        Ok(nodes)
    }
}

fn add(all: &mut [u64], more: &[u64]) {
    all.iter_mut().zip(more).for_each(|(all, more)| *all += more);
}

impl Shared {
    /// Returns the bytes of free slots in an allocator, by group.
    fn free_in(&self, slabs: &SlabAllocator) -> Vec<u64> {
        let tables = self.all_tables();
        let of = |group: GroupId| {
            let kinds = |def: &Arc<TableDef>| {
                let (id, sizes) = (def.id(), SlotKind::ALL.map(|kind| (kind, def.bytes_of(kind))));
                sizes.map(|(kind, bytes)| slabs.available(purpose(id, group, kind), bytes) * bytes)
            };
            tables.iter().flat_map(kinds).sum()
        };
        self.placement.groups().map(|(group, _)| of(group)).collect()
    }

    /// Returns the bytes of free slots shared by the coordinators of this process's compute nodes,
    /// by group.
    fn free_at_nodes(&self) -> Vec<u64> {
        let mut free = vec![0; self.placement.group_count()];
        self.nodes.iter().for_each(|node| add(&mut free, &self.free_in(&node.slots.lock())));
        free
    }
}

async fn memory_figures(coordinator: &Coordinator) -> Result<MemoryFigures, BatchError> {
    let layout = &coordinator.shared.region;
    let limit_bytes = layout.end() - layout.first_slab();
    let defs = coordinator.shared.all_tables();
    let mut figures = MemoryFigures {
        nodes: vec![None; coordinator.shared.config.memory_nodes],
        groups: Vec::new(),
        tables: Vec::with_capacity(defs.len()),
    };
    figures.tables.extend(defs.iter().map(|table| TableMemory {
        table: table.id(),
        allocated_bytes: 0,
        index_bytes: 0,
        overflow_bytes: 0,
        record_bytes: 0,
        free_here_bytes: 0,
    }));
    let placement = Placement::clone(&coordinator.placement());
    for (group, replicas) in placement.groups() {
        let directory = read_directory(coordinator, replicas.primary(), layout).await?;
        let allocated_bytes = directory.end - directory.free - layout.first_slab();
        for replica in replicas.members() {
            // Memory nodes are numbered first.
            let node = figures.nodes.get_mut(usize::from(replica.node.0));
            if let Some(node) = node.map(Option::get_or_insert_default) {
                node.allocated_bytes += allocated_bytes;
                node.limit_bytes += limit_bytes;
            }
        }
        let mut free_here_bytes = 0;
        for (table, def) in figures.tables.iter_mut().zip(&defs) {
            let free = free_bytes(coordinator, group, def);
            let slabs = directory.tables.get(&table.table).copied().unwrap_or_default();
            let Slabs { index, overflow, records } = slabs;
            table.index_bytes += index;
            table.overflow_bytes += overflow;
            table.record_bytes += records;
            table.allocated_bytes += index + overflow + records;
            table.free_here_bytes += free;
            free_here_bytes += free;
        }
        figures.groups.push(GroupMemory { allocated_bytes, limit_bytes, free_here_bytes });
    }
    Ok(figures)
}

/// Returns the bytes of a table's free slots in a group, of this coordinator and shared by its
/// node.
fn free_bytes(coordinator: &Coordinator, group: GroupId, def: &TableDef) -> u64 {
    let free = SlotKind::ALL.map(|kind| {
        let (slots, bytes) = (purpose(def.id(), group, kind), def.bytes_of(kind));
        let own = coordinator.slabs.borrow().available(slots, bytes);
        (own + coordinator.node.slots.lock().available(slots, bytes)) * bytes
    });
    free.iter().sum()
}

async fn read_directory(
    coordinator: &Coordinator,
    replica: Replica,
    layout: &RegionLayout,
) -> Result<Directory, BatchError> {
    let mut directory = Directory { end: layout.first_slab(), ..Directory::default() };
    let mut slab = layout.first_slab();
    while slab < layout.end() {
        for word in directory_from(&coordinator.lane, replica, layout, slab).await? {
            slab += SLAB_BYTES;
            if word == FREE_SLAB {
                (directory.end, directory.free) = (slab, directory.free + SLAB_BYTES);
            }
            if let Some(entry) = SlabEntry::decode(word) {
                directory.end = slab;
                let slabs = directory.tables.entry(entry.table).or_default();
                *match entry.kind {
                    SlabKind::Index => &mut slabs.index,
                    SlabKind::Overflow => &mut slabs.overflow,
                    SlabKind::Records => &mut slabs.records,
                } += SLAB_BYTES;
            }
        }
    }
    Ok(directory)
}
