//! Arithmetic of the slabs used by the initial rows: the memory that a limit must leave for
//! loading, before a cluster exists, and the slots kept back afterwards.
//!
//! # What takes slabs
//! Uses in the region of each replica group, in this order:
//! * the header and the slab directory, in the first slabs;
//! * for each table the home buckets of the group's shards, in separate slabs;
//! * the records of the table's loaded rows, and the overflow buckets of full chains, each kind in
//!   separate slabs. A simulated cluster has one loader, so only the last slab of a kind is not
//!   full.
//!
//! A row's shard depends on its key, so rows need not spread evenly over the groups: the shard of
//! each row is computed. The rest of the loader's last slabs goes to the first compute node.

use lotus_benchmarks::config::ClusterConfig;
use lotus_benchmarks::workload::Workload;
use lotus_fabric::ids::TableId;
use lotus_mvcc::layout::bucket::{FAN_OUT, Overflow};
use lotus_mvcc::layout::record::slot_bytes;
use lotus_mvcc::layout::region::{HEADER_BYTES, SLAB_BYTES};
use lotus_mvcc::loader::{LoadedRecord, LoadedRow, PlaceError, ShardImage};
use lotus_mvcc::slab::{SlotKind, reserve};
use lotus_mvcc::{Naming, RowName, Secret, TableDef, TableSpec};

use crate::scenario::format::{self, Scenario, Topology};

/// Minimum number of slabs of a group.
pub const FEWEST_SLABS: u64 = 4;
/// Placeholder for addresses in a region that does not exist. The value does not matter.
const ANYWHERE: u64 = SLAB_BYTES;

/// Specification of a workload's table, with at most `shards` shards.
pub(crate) fn with_shards(asked: TableSpec, shards: u32) -> TableSpec {
    let fewer = asked.shards.min(shards);
    asked.shards(fewer)
}

/// Number of slabs of each replica group in use after loading a workload, including the header's
/// slab, in a cluster with `shards` shards.
///
/// # Panics
/// If the workload's tables or rows could not be loaded with any amount of memory.
pub fn loaded_slabs<W: Workload>(workload: &W, cluster: &ClusterConfig, shards: u32) -> Vec<u64> {
    // Only terabytes need a directory of more than a slab.
    let mut slabs = vec![HEADER_BYTES.div_ceil(SLAB_BYTES); cluster.mns];
    for (index, asked) in workload.tables(cluster).into_iter().enumerate() {
        let bases = vec![ANYWHERE; cluster.mns];
        let spec = with_shards(asked, shards);
        let naming =
            Naming::by(Secret::from_seed(cluster.name_seed)).with_hash_bits(cluster.name_bits);
        let table = TableDef::new(TableId(index as u16), spec, bases, naming);
        let table = table.expect("a valid table");
        let mut value = Vec::new();
        let name = |row| {
            value.clear();
            table.name(&workload.row(index, row, &mut value))
        };
        let mut names: Vec<RowName> = (0..workload.rows(index)).map(name).collect();
        names.sort_unstable_by_key(|name| (name.key.shard(), name.key.hash()));
        for (group, taken) in slabs.iter_mut().enumerate() {
            *taken += table_slabs(&table, &names, group);
        }
    }
    slabs
}

/// Number of record slots that all compute nodes of a scenario keep back for updates, over all
/// groups with rows of [`Pairs`](crate::scenario::pairs::Pairs); 0 for other workloads.
pub(crate) fn kept_back(scenario: &Scenario) -> u64 {
    let format::Workload::Pairs { record_bytes, .. } = scenario.workload else { return 0 };
    let cluster = &scenario.cluster;
    let slot_bytes = slot_bytes(size_of::<u64>(), record_bytes) as u64;
    reserve(slot_bytes) * cluster.compute_nodes as u64 * groups_used(cluster)
}

/// Number of replica groups used by the rows of a table.
pub(crate) fn groups_used(cluster: &Topology) -> u64 {
    u64::from(cluster.shards).min(cluster.memory_nodes as u64)
}

/// Number of slabs of a table in one group; `names` are the names of its rows, sorted by shard.
fn table_slabs(table: &TableDef, names: &[RowName], group: usize) -> u64 {
    let shape = table.geometry().shape();
    let (mut records, mut buckets, mut fans) = (0, 0, 0);
    let of_group = |shard: &&[RowName]| shape.group(shard[0].key.shard()) == group;
    let is_one = |one: &RowName, other: &RowName| one.key.shard() == other.key.shard();
    for shard in names.chunk_by(is_one).filter(of_group) {
        records += if table.spec().is_inline() { 0 } else { shard.len() as u64 };
        let (single, side_by_side) = overflow(table, shard);
        buckets += single;
        fans += side_by_side;
    }
    let cut = |slots: u64, kind| slots.div_ceil(SLAB_BYTES / table.bytes_of(kind));
    let index = shape.index_bytes(group).div_ceil(SLAB_BYTES);
    // Single buckets are cut from fans.
    fans += buckets.div_ceil(FAN_OUT as u64);
    index + cut(records, SlotKind::Record) + cut(fans, SlotKind::Fan)
}

/// Number of overflow buckets, and of fans of overflow buckets, that the rows of a shard need.
fn overflow(table: &TableDef, shard: &[RowName]) -> (u64, u64) {
    let mut image = ShardImage::new(table, shard[0].key.shard());
    let (mut buckets, mut fans) = (0, 0);
    for name in shard {
        let row = LoadedRow { record: LoadedRecord::At(ANYWHERE), length: 0 };
        while let Err(error) = image.place(*name, row) {
            match error {
                PlaceError::NeedsOverflow(SlotKind::Bucket) => {
                    buckets += 1;
                    image.add_overflow(Overflow::bucket(ANYWHERE));
                }
                PlaceError::NeedsOverflow(SlotKind::Fan) => {
                    fans += 1;
                    image.add_overflow(Overflow::fan(ANYWHERE));
                }
                error => panic!("a row that can be loaded: {error}"),
            }
        }
    }
    (buckets, fans)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use lotus::ClusterError;
    use lotus_benchmarks::lotus::Embedded;
    use lotus_benchmarks::smallbank::SmallBank;
    use lotus_benchmarks::tatp::Tatp;
    use lotus_fabric::sim::{Config, Profile, SimMachines, World};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::campaigns::swarm;
    use crate::drive::run::settings;
    use crate::scenario::pairs::Pairs;

    /// Loads a workload in a scenario's cluster with `slabs` slabs; returns those in use
    /// afterwards, by group.
    fn load<W: Workload>(
        workload: &W,
        scenario: &Scenario,
        slabs: u64,
    ) -> Result<Vec<u64>, ClusterError> {
        let mut scenario = scenario.clone();
        scenario.cluster.group_slabs = slabs;
        let config = scenario.cluster_config();
        let world = |nodes| {
            let world = World::new(Config::new(1, nodes, Profile::ideal()));
            Ok(SimMachines::new(world.expect("a world")))
        };
        let builder = settings(&scenario, &scenario.load_config(1));
        let cluster = Embedded::start_on(builder, world).expect("a cluster");
        let loaded = AtomicU64::new(0);
        for (index, asked) in workload.tables(&config).into_iter().enumerate() {
            let spec = with_shards(asked, scenario.cluster.shards);
            let table = cluster.cluster().create_table(spec)?;
            let row = |row, value: &mut Vec<u8>| workload.row(index, row, value);
            cluster.cluster().load(table, workload.rows(index), &row, &loaded)?;
        }
        let figures = cluster.outcomes(vec![cluster.cluster().memory_figures(0)]);
        let groups = figures.expect("an answer").remove(0).groups;
        let free = |limit: u64, allocated: u64| (limit - allocated) / SLAB_BYTES;
        Ok(groups.iter().map(|it| slabs - free(it.limit_bytes, it.allocated_bytes)).collect())
    }

    /// Compares the arithmetic with the loader: it takes as many slabs in each group, and fails
    /// with one slab less than the fullest group takes.
    fn check<W: Workload>(workload: &W, scenario: &Scenario) {
        let (config, shards) = (scenario.cluster_config(), scenario.cluster.shards);
        let expected = loaded_slabs(workload, &config, shards);
        let most = *expected.iter().max().expect("a group").max(&FEWEST_SLABS);
        assert_eq!(load(workload, scenario, most).ok().as_ref(), Some(&expected), "{config:?}");
        assert_eq!(load(workload, scenario, most + 3).ok(), Some(expected), "{config:?}");
        if most > FEWEST_SLABS {
            let refused = load(workload, scenario, most - 1).err();
            let full = matches!(refused, Some(ClusterError::OutOfMemory { .. }));
            assert!(full, "{refused:?}: {config:?}");
        }
    }

    #[test]
    fn what_is_loaded_takes_as_many_slabs_as_arithmetic_says() {
        let mut rng = SmallRng::seed_from_u64(1);
        for seed in 0..60 {
            // Any topology will do.
            let scenario = swarm::scenario(seed);
            let bytes = [16, 100, 4096, 8192][rng.random_range(0..4)];
            check(&Pairs::new(rng.random_range(1..600), 0, bytes), &scenario);
            if seed % 10 == 0 {
                check(&SmallBank::new(rng.random_range(2..3000), 0, 0.0, 1), &scenario);
                check(&Tatp::new(rng.random_range(1..500), 1), &scenario);
            }
        }
    }

    #[test]
    fn the_rows_of_every_drawn_scenario_that_fills_memory_fit() {
        let (mut fit, mut full) = (0, 0);
        for one in (500_000..500_100).filter_map(swarm::with_full_memory) {
            let format::Workload::Pairs { pairs, record_bytes, .. } = one.workload else {
                panic!("{one:?}")
            };
            let workload = Pairs::new(pairs, 0, record_bytes);
            let slabs = one.cluster.group_slabs;
            let taken = load(&workload, &one, slabs).expect("they fit");
            fit += 1;
            full += u32::from(taken.contains(&slabs));
        }
        assert!(fit >= 50 && full >= 10, "{fit} {full}");
    }
}
