//! The secret of the names of rows: each cluster has its own, for all of its lives.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::*;
use lotus::{
    Cluster, ClusterBuilder, CriticalField, Isolation, Naming, PrimaryKey, Secret, SnapshotError,
    SnapshotVisitor, TableSpec, TxnError, read_snapshot,
};
use lotus_fabric::sim::{Config, Profile, SimMachines, World};

/// All rows in one shard, so that names differ in 52 bits of the hash.
const ONE_SHARD: TableSpec = NUMBERS.shards(1);

/// The secret of clusters before there was any.
fn known() -> Secret {
    Secret::from_seed(0)
}

/// A small cluster that draws its own secret.
fn founded() -> ClusterBuilder {
    small().name_secret(None)
}

/// Number whose hash, by the known secret, is `hash`: the two rounds of the mixer, undone. Keys are
/// hashed as they lie in memory, with the highest byte first.
fn made_for(hash: u64) -> u64 {
    // Inverse of an odd number modulo 2^64, by Newton's iteration.
    let inverse =
        |odd: u64| (0..6).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))));
    let unshift = |word: u64, by: u32| (0..64 / by).fold(word, |x, _| word ^ x >> by);
    let number = (0..2).fold(hash, |word, _| {
        let word = unshift(word, 27).wrapping_mul(inverse(0x1C69_B3F7_4AC4_AE35));
        unshift(unshift(word, 33).wrapping_mul(inverse(0x3C79_AC49_2BA7_B653)), 27)
    });
    u64::from_be(number)
}

fn name(naming: Naming, number: u64) -> u64 {
    naming.name(&number.into(), CriticalField::Hashed, 1).key.0
}

fn naming(cluster: &Cluster) -> Naming {
    cluster.naming().expect("there is a table")
}

/// Whether a row can be locked while another transaction holds row 0.
fn is_free_beside_row_0(builder: ClusterBuilder, number: u64) -> bool {
    let builder = builder.stop_timeout(Duration::from_millis(1));
    let (cluster, table) = with_table(builder, ONE_SHARD);
    let _holding = hold(&cluster, FIRST, table, 1);
    let locked = outcome(cluster.submit(FIRST, move |mut session| async move {
        let mut txn = session.begin(Isolation::Serializable).await?;
        txn.add_rw(table, number)?;
        txn.execute().await?;
        txn.commit().await.map(drop)
    }));
    match locked {
        Ok(()) => true,
        Err(TxnError::Conflict { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Ten keys that whoever knows the secret has made for the name of row 0. They shared its lock in
/// every cluster, while all had one secret.
#[test]
fn keys_that_are_made_to_share_a_name_by_a_known_secret_share_none_in_a_founded_cluster() {
    let twins: Vec<u64> = (1..=10).map(made_for).collect();
    let by_known = Naming::by(known());
    assert!(twins.iter().all(|twin| name(by_known, *twin) == name(by_known, 0)));
    assert!(!is_free_beside_row_0(small().name_secret(Some(known())), twins[0]));

    let (cluster, _) = with_table(founded(), ONE_SHARD);
    let names = twins.iter().map(|twin| name(naming(&cluster), *twin));
    let mut names: Vec<u64> = names.chain([name(naming(&cluster), 0)]).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 11);
    stop(cluster);
    assert!(is_free_beside_row_0(founded(), twins[0]));
}

#[test]
fn two_clusters_have_other_names_for_one_key() {
    let [(one, _), (other, _)] = [(); 2].map(|()| with_table(founded(), ONE_SHARD));
    for number in [0, 1, u64::MAX] {
        assert_ne!(name(naming(&one), number), name(naming(&other), number));
    }
    let long: PrimaryKey = (7_u64, 7_u64).into();
    let of = |cluster: &Cluster| naming(cluster).name(&long, CriticalField::Hashed, 1);
    assert_ne!(of(&one), of(&other));
    stop(one);
    stop(other);
}

/// All tables of a cluster have one naming, and it stays when all are dropped.
#[test]
fn a_cluster_has_one_secret_whatever_tables_come_and_go() {
    let cluster = start(founded());
    assert_eq!(cluster.naming(), None, "without a table nothing has a name");
    let shard = |table| cluster.shard_of(table, 77).expect("there is such a table");
    let first = cluster.create_table(NUMBERS).expect("there is room");
    let (before, shard_before) = (naming(&cluster), shard(first));
    cluster.drop_table(&NUMBERS.name).expect("nothing stands in its way");
    let again = cluster.create_table(NUMBERS).expect("there is room");
    assert_ne!(first, again);
    assert_eq!((naming(&cluster), shard(again)), (before, shard_before));
    stop_clean(cluster);
}

/// File that is removed with the test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Secret in a snapshot.
#[derive(Default)]
struct FoundSecret(Option<Secret>);

impl SnapshotVisitor for FoundSecret {
    fn secret(&mut self, secret: Secret) -> Result<(), SnapshotError> {
        assert_eq!(self.0.replace(secret), None, "there is one");
        Ok(())
    }

    fn table(&mut self, _: TableSpec) -> Result<(), SnapshotError> {
        assert!(self.0.is_some(), "it comes before all tables");
        Ok(())
    }

    fn row(&mut self, _: PrimaryKey, _: &[u8]) -> Result<(), SnapshotError> {
        Ok(())
    }
}

/// Three lives, each begun with the snapshot of the one before, by a builder that would draw
/// another secret.
#[test]
fn rows_keep_their_names_in_the_next_life_of_a_cluster() {
    let name = format!("lotus-names-{}", std::process::id());
    let scratch = Scratch(std::env::temp_dir().join(name));
    let (mut cluster, table) = with_zeroes(founded(), 50);
    let first = naming(&cluster);
    for life in 1..=2 {
        cluster.snapshot(&scratch.0).expect("nothing stands in its way");
        stop_clean(cluster);
        let mut found = FoundSecret::default();
        let mut file = std::fs::File::open(&scratch.0).expect("it was written");
        read_snapshot(&mut file, &mut found).expect("it is sound");
        assert_eq!(found.0, Some(first.secret()));
        cluster = start(founded().compute_nodes(2));
        cluster.restore(&scratch.0).expect("it is whole");
        assert_eq!(naming(&cluster), first, "life {life}");
        assert_eq!(cluster.table(&NUMBERS.name), Some(table));
        done(cluster.submit(FIRST, move |mut session| async move {
            for row in 0..50 {
                assert_eq!(session.read(table, row).await?, Some(life - 1));
                session.update(table, row, life).await?;
            }
            Ok(())
        }));
    }
    stop_clean(cluster);
}

/// A simulated cluster repeats itself, and two seeds have two secrets.
#[test]
fn a_simulated_cluster_draws_its_secret_from_the_seed() {
    let drawn = |seed| {
        let machines =
            SimMachines::new(World::new(Config::new(seed, 4, Profile::ideal())).unwrap());
        let cluster = founded().seed(seed).start_on(machines).expect("the settings are sound");
        cluster.create_table(NUMBERS).expect("there is room");
        let drawn = cluster.naming().expect("there is a table");
        cluster.stop().expect("nobody fails");
        drawn
    };
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
}

/// Neither the cluster's settings nor its tables show the secret when they are printed.
#[test]
fn the_secret_is_not_printed() {
    let secret = Secret::from_seed(7);
    let builder = small().name_secret(Some(secret));
    let (cluster, _) = with_table(builder.clone(), NUMBERS);
    let shown = format!("{builder:?} {:?} {:?}", cluster.config(), cluster.naming());
    stop(cluster);
    assert!(shown.contains("Secret(..)") && shown.contains("Naming(..)"), "{shown}");
    let words = secret.to_bytes();
    for word in words.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)) {
        for shown_as in [format!("{word}"), format!("{word:x}"), format!("{word:X}")] {
            assert!(!shown.contains(&shown_as), "{shown}");
        }
    }
    assert!(!shown.contains(&format!("{words:?}")), "{shown}");
}
