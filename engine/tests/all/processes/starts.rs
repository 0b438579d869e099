//! Starts of parts of a cluster, and the remains of one that fails to start. As in `parts`, they
//! share one process and its fabric, and know of each other by the authority alone.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lotus::{
    Authority, Cluster, ClusterBuilder, ClusterError, Data, LoadWatch, PrimaryKey, SnapshotError,
    TableSpec, Threads,
};
use lotus_authority::EmbeddedAuthority;
use lotus_authority::Version;
use lotus_authority::testing::TestAuthority;
use lotus_fabric::env::Env;
use lotus_fabric::ids::NodeId;
use lotus_fabric::local::LocalFabric;
use lotus_recovery::membership;

use super::parts::{COMPUTE_NODES, MEMORY_NODES, builder};
use super::{ACCOUNTS, BALANCE, LEASE, PATIENCE, ROWS, load, load_rows, sound_total};
use super::{transfer, wait_until};

/// Fabric and authority on which parts of a cluster are started.
struct StartTest {
    fabric: LocalFabric,
    authority: Arc<dyn Authority>,
}

impl StartTest {
    fn new(authority: impl Authority + 'static) -> Self {
        let fabric = LocalFabric::new(MEMORY_NODES + COMPUTE_NODES);
        Self { fabric, authority: Arc::new(authority) }
    }

    fn start(&self, builder: ClusterBuilder, nodes: &[usize]) -> Result<Cluster, ClusterError> {
        let machines = Threads::over(self.fabric.clone(), Env::real(0));
        let authority = Arc::clone(&self.authority);
        builder.part(nodes.iter().copied(), authority, PATIENCE).start_on(machines)
    }

    fn part(&self, nodes: &[usize]) -> Cluster {
        self.start(builder(Some(LEASE)), nodes).expect("it takes part, sooner or later")
    }
}

/// Fills the table up to an invalid row.
fn half_a_load(cluster: &Cluster) -> Result<(), String> {
    let table = cluster.create_table(ACCOUNTS).map_err(|error| error.to_string())?;
    let row = |row: u64, value: &mut Vec<u8>| {
        let bytes = if row < ROWS / 2 { 8 } else { 4096 };
        value.resize(bytes, 1);
        PrimaryKey::from(row)
    };
    let loaded = cluster.load(table, ROWS, &row, &AtomicU64::new(0));
    loaded.map_err(|error| error.to_string())
}

/// Waits for the data as a part does, and returns the outcome.
fn awaited(cluster: &Cluster) -> Data {
    let mut watch = LoadWatch::new(PATIENCE);
    let mut data = watch.look(cluster).expect("it answers");
    wait_until("the load comes to an end", || {
        data = watch.look(cluster).expect("it answers");
        !matches!(data, Data::Loading { .. })
    });
    data
}

/// Checks that a snapshot is refused, and leaves no file that could be taken for one.
fn cannot_be_copied(cluster: &Cluster) {
    let path = std::env::temp_dir().join(format!("lotus-unloaded-{}", std::process::id()));
    let refused = cluster.snapshot(&path).expect_err("not all data is there");
    assert!(matches!(refused, SnapshotError::NotLoaded(_)), "{refused}");
    assert!(!Path::new(&path).exists());
}

#[test]
fn nothing_is_copied_before_all_data_is_there() {
    let start_test = StartTest::new(EmbeddedAuthority::new());
    let (most, one) = (start_test.part(&[0, 2]), start_test.part(&[1]));
    let mut watch = LoadWatch::new(PATIENCE);
    let filled = most.fill(|| {
        for part in [&most, &one] {
            assert!(matches!(part.data(), Ok(Data::Loading { .. })));
            cannot_be_copied(part);
        }
        assert!(matches!(watch.look(&one), Ok(Data::Loading { .. })));
        Ok(load_rows(&most))
    });
    let table = filled.expect("nobody is lost");
    assert_eq!((awaited(&one), awaited(&most)), (Data::Loaded, Data::Loaded));
    assert_eq!(one.open_table(&ACCOUNTS.name).expect("it was made"), table);
    assert_eq!(sound_total(&one, table), ROWS * BALANCE);
}

/// A founder was killed in the middle of its load. Its next process took part again and passed the
/// half-loaded cluster for whole; a snapshot of that replaced the one that was being restored.
#[test]
fn a_load_that_its_founder_does_not_end_is_cut_short_for_everybody() {
    let start_test = StartTest::new(EmbeddedAuthority::new());
    let (most, one) = (start_test.part(&[0, 2]), start_test.part(&[1]));
    load_rows(&most);
    assert!(matches!(one.data(), Ok(Data::Loading { .. })));
    [0, 2].into_iter().for_each(|node| most.kill(node));
    drop(most);
    // Either part may notice first.
    let refused = start_test.start(builder(Some(LEASE)), &[0, 2]).err().expect("it has not loaded");
    assert!(matches!(refused, ClusterError::CutShort { .. }), "{refused}");
    assert!(matches!(awaited(&one), Data::CutShort { .. }));
    cannot_be_copied(&one);
    one.kill(1);
    drop(one);
    let refused = start_test.start(builder(Some(LEASE)), &[1]).err().expect("it never will be");
    assert!(matches!(refused, ClusterError::CutShort { .. }), "{refused}");
}

#[test]
fn a_load_that_fails_is_over_for_everybody_with_its_reason() {
    let start_test = StartTest::new(EmbeddedAuthority::new());
    let (most, one) = (start_test.part(&[0, 2]), start_test.part(&[1]));
    let refused = most.fill(|| half_a_load(&most)).expect_err("a row is too large");
    assert!(refused.to_string().contains("4096"), "{refused}");
    let Data::CutShort { why } = awaited(&one) else { panic!("half of it is there") };
    assert!(why.contains("4096"), "{why}");
    cannot_be_copied(&most);
}

/// A founder that paused, and was expelled, comes to the end of its load.
#[test]
fn a_founder_that_was_expelled_meanwhile_does_not_pass_its_load_for_whole() {
    let start_test = StartTest::new(EmbeddedAuthority::new());
    let (most, one) = (start_test.part(&[0, 2]), start_test.part(&[1]));
    let refused = most.fill(|| {
        let (by, founder) = (NodeId(MEMORY_NODES + 1), NodeId(MEMORY_NODES));
        membership::change(&*start_test.authority, |now| now.expel(by, founder))
            .expect("it answers");
        let found = awaited(&one);
        assert!(matches!(found, Data::CutShort { .. }), "{found:?}");
        Ok(())
    });
    let refused = refused.expect_err("it has been taken for dead");
    assert!(matches!(refused, ClusterError::CutShort { .. }), "{refused}");
}

/// A process ended between joining and its first beat: nodes that expel by beats saw nothing, and
/// its place was lost for ever.
#[test]
fn who_has_joined_and_never_beats_is_expelled_and_its_place_can_be_taken() {
    let start_test = StartTest::new(EmbeddedAuthority::new());
    let lease = Duration::from_secs(1);
    let start = |nodes: &[usize]| start_test.start(builder(Some(lease)), nodes);
    let most = start(&[0, 2]).expect("it founds");
    let table = load(&most);
    start_test.authority.compare_and_swap("joined/1", Version::ABSENT, b"it died").expect("first");
    let one = start(&[1]).expect("the place can be taken again");
    assert!(one.has_returned());
    for row in 0..ROWS {
        wait_until("its rows can be used", || transfer(&one, table, row, (row + 1) % ROWS).is_ok());
    }
    assert_eq!(sound_total(&most, table), ROWS * BALANCE);
}

/// Two of three nodes were started. A dropped table, a lost memory node and the death of the oracle
/// each stopped the others for ever: all waited for the third one. Its own rows could not be used.
#[test]
fn whoever_does_not_come_is_given_up_and_comes_as_another_life() {
    let start_test = StartTest::new(EmbeddedAuthority::new());
    let lease = Duration::from_millis(500);
    let start = |nodes: &[usize]| start_test.start(builder(Some(lease)), nodes);
    let most = start(&[0, 2]).expect("it founds");
    let table = most.fill(|| Ok(load_rows(&most))).expect("nobody is lost");
    let absent = NodeId(MEMORY_NODES + 1);
    let members = || membership::read(&*start_test.authority).expect("it answers");
    wait_until("the third one is given up", || members().is_resolved(absent));
    let works = |part: &Cluster, step: u64| {
        for row in 0..ROWS {
            wait_until("every row can be used", || {
                transfer(part, table, row, (row + step) % ROWS).is_ok()
            });
        }
    };
    works(&most, 1);

    let other = TableSpec::new("other").record_bytes(8).capacity(ROWS);
    most.create_table(other).expect("there is room");
    most.drop_table("other").expect("it is there");
    wait_until("its memory is given back", || {
        most.tables_cleared() == 1 && most.is_open(0) && most.is_open(2)
    });
    works(&most, 3);

    start_test.fabric.set_reachable(NodeId(1), false).expect("there is such a node");
    wait_until("the memory node is given up", || {
        members().lost_memory().len() == 1 && most.is_open(0) && most.is_open(2)
    });
    works(&most, 5);

    most.kill(0);
    wait_until("the oracle is recovered", || members().is_resolved(NodeId(MEMORY_NODES)));
    works(&most, 7);

    let one = start(&[1]).expect("the place can be taken");
    assert!(one.has_returned() && one.takes_part(1));
    works(&one, 2);
    one.settle().expect("nobody fails");
    assert_eq!(sound_total(&one, table), ROWS * BALANCE);
}

/// The founder alone was started, of two nodes.
#[test]
fn a_founder_that_is_alone_goes_on() {
    let start_test = StartTest::new(EmbeddedAuthority::new());
    let lease = Duration::from_millis(500);
    let first = start_test.start(builder(Some(lease)), &[0]).expect("it founds");
    let table = first.fill(|| Ok(load_rows(&first))).expect("nobody is lost");
    for row in 0..ROWS {
        wait_until("every row can be used", || {
            transfer(&first, table, row, (row + 1) % ROWS).is_ok()
        });
    }
    assert_eq!(sound_total(&first, table), ROWS * BALANCE);
}

#[test]
fn whoever_was_never_started_is_waited_for_while_data_is_loaded() {
    let start_test = StartTest::new(EmbeddedAuthority::new());
    let lease = Duration::from_millis(300);
    let start = |nodes: &[usize]| start_test.start(builder(Some(lease)), nodes);
    let most = start(&[0, 2]).expect("it founds");
    let begun = Env::real(0).now();
    wait_until("some leases have passed", || Env::real(0).now().since(begun) > lease * 20);
    let one = start(&[1]).expect("its place is free");
    assert!(!one.has_returned() && most.is_serving());
}

/// Nodes that were never started complain of no memory node, so the others are not half of the
/// members. The only one that was started expelled itself as if it alone did not reach the memory
/// node, and no node was left to recover it.
#[test]
fn a_memory_node_that_is_lost_before_all_are_started_ends_none_of_the_others() {
    let start_test = StartTest::new(EmbeddedAuthority::new());
    let lease = Duration::from_secs(1);
    let first = start_test.start(builder(Some(lease)), &[0]).expect("it founds");
    let table = first.fill(|| Ok(load_rows(&first))).expect("nothing fails");
    start_test.fabric.set_reachable(NodeId(1), false).expect("there is such a node");
    let begun = Env::real(0).now();
    wait_until("it is silent for long", || Env::real(0).now().since(begun) > lease * 12);
    assert!(first.is_serving());
    let attempt = |node: usize| {
        let machines = Threads::over(start_test.fabric.clone(), Env::real(0));
        let authority = Arc::clone(&start_test.authority);
        builder(Some(lease)).part([node], authority, lease).start_on(machines).ok()
    };
    let mut others = [None, None];
    wait_until("the others take part, started again and again", || {
        for (node, part) in (1..).zip(&mut others) {
            if part.is_none() {
                *part = attempt(node);
            }
        }
        others.iter().all(Option::is_some)
    });
    for part in others.iter().flatten().chain([&first]) {
        assert!(part.is_serving());
        for row in 0..ROWS {
            wait_until("rows can be used", || transfer(part, table, row, (row + 1) % ROWS).is_ok());
        }
    }
    assert_eq!(sound_total(&first, table), ROWS * BALANCE);
}

/// There was no memory for the lock table of a node that had joined: its restart with a smaller one
/// was refused.
#[test]
fn what_cannot_be_had_is_found_out_before_a_node_joins() {
    let start_test = StartTest::new(EmbeddedAuthority::new());
    let too_large = || builder(Some(LEASE)).lock_table_bytes(64 << 30);
    for nodes in [&[0, 2][..], &[1]] {
        let refused = start_test.start(too_large(), nodes).err().expect("nobody has so much");
        assert!(matches!(refused, ClusterError::LockTable(_)), "{refused}");
        let part = start_test.part(nodes);
        assert!(!part.has_returned());
        // The founded cluster must stay founded.
        std::mem::forget(part);
    }
}

/// The answers to each key's first read and first write are lost: a node that missed its first
/// answer was not let in, and a load was cut short.
#[test]
fn answers_that_are_lost_keep_nobody_out_and_cut_no_load_short() {
    let start_test = StartTest::new(TestAuthority::forgetful());
    let (most, one) = (start_test.part(&[0, 2]), start_test.part(&[1]));
    assert!(most.has_founded() && !one.has_returned());
    let table = most.fill(|| Ok(load_rows(&most))).expect("nobody is lost");
    assert_eq!(awaited(&one), Data::Loaded);
    one.open_table(&ACCOUNTS.name).expect("it was made");
    assert_eq!(sound_total(&one, table), ROWS * BALANCE);
}
