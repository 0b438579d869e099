//! Beginnings, by what the hosts of two compute nodes have.

use super::*;

const DIRECTORY: &str = "/kept";

fn life(number: u64) -> SnapshotLife {
    SnapshotLife { number, cluster: 77, id: 100 + number }
}

fn rank(number: u64, sequence: u64) -> Rank {
    Rank { life: life(number), sequence, timestamp: 10 * sequence }
}

fn held(rank: Rank) -> HeldFile {
    let path = format!("/kept/{}-{}", rank.life.number, rank.sequence).into();
    HeldFile { path, rank: Some(rank), time: "a day".to_owned() }
}

fn holding(node: u16, ranks: &[Rank], lived: Option<ClusterMark>) -> Holding {
    let held = ranks.iter().rev().map(|rank| held(*rank)).collect();
    Holding { node: NodeName::compute(node), held, lived }
}

/// Mark of a life with its newest snapshot at compute node 1.
fn mark(number: u64, newest: Option<Rank>) -> Option<ClusterMark> {
    let known = |rank| KnownSnapshot { rank, node: NodeName::compute(1), path: "/there".into() };
    Some(ClusterMark { life: life(number), newest: newest.map(known) })
}

/// Evidence of two nodes; the other one may be silent.
struct Case {
    own: Holding,
    other: Option<Holding>,
    shared: Vec<HeldFile>,
}

impl Case {
    fn new(
        own: &[Rank],
        mark: Option<ClusterMark>,
        other: Option<(&[Rank], Option<ClusterMark>)>,
    ) -> Self {
        let other = other.map(|(ranks, mark)| holding(1, ranks, mark));
        Self { own: holding(0, own, mark), other, shared: Vec::new() }
    }

    fn decide(&self, choice: IfDamaged) -> Result<InitialData, String> {
        let silent: &[NodeName] = match self.other {
            Some(_) => &[],
            None => &[NodeName::compute(1)],
        };
        let others: Vec<Holding> = self.other.iter().cloned().collect();
        decide(&Evidence {
            own: &self.own,
            others: &others,
            silent,
            shared: &self.shared,
            directory: Path::new(DIRECTORY),
            choice,
            drawn: (5, 6),
        })
    }

    /// The snapshot that it begins with, as life and number, and the number of the life.
    #[track_caller]
    fn begins(&self, choice: IfDamaged) -> (Option<String>, u64) {
        let beginning = self.decide(choice).expect("nothing is lost unasked");
        let first = beginning.paths.first().map(|path| path.display().to_string());
        (first, beginning.life.number)
    }

    #[track_caller]
    fn is_refused(&self, choice: IfDamaged, parts: &[&str]) {
        let refused = self.decide(choice).expect_err("something would be lost");
        assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
    }
}

fn path(number: u64, sequence: u64) -> Option<String> {
    Some(format!("/kept/{number}-{sequence}"))
}

#[test]
fn a_cluster_that_never_lived_begins_afresh_once_all_nodes_have_said_so() {
    let first = Case::new(&[], None, Some((&[], None)));
    for choice in [IfDamaged::Stop, IfDamaged::UseOlder, IfDamaged::Afresh] {
        let expected = SnapshotLife { number: 1, cluster: 5, id: 6 };
        let beginning = InitialData { paths: Vec::new(), life: expected, last: 0 };
        assert_eq!(first.decide(choice), Ok(beginning));
    }
    let silent = Case::new(&[], None, None);
    silent.is_refused(IfDamaged::Stop, &["compute node 1 has not said", "start it", "--fresh"]);
    assert_eq!(silent.begins(IfDamaged::Afresh), (None, 1));
}

/// Compute node 1 had a newer snapshot than compute node 0, and all memory was lost: the cluster
/// began with the older one, and its next snapshot was another number 2.
#[test]
fn the_newest_snapshot_counts_wherever_it_is() {
    let own = [rank(1, 1)];
    let theirs = [rank(1, 2)];
    let mut case = Case::new(&own, None, Some((&theirs, None)));
    let said =
        ["number 2 of a day", "host of compute node 1", "copy /kept/1-2", "--older-snapshot"];
    case.is_refused(IfDamaged::Stop, &said);
    let older = case.decide(IfDamaged::UseOlder).expect("the operator has agreed");
    assert_eq!((older.paths, older.last), (vec![PathBuf::from("/kept/1-1")], 2));
    assert_eq!(older.life, SnapshotLife { number: 2, cluster: 77, id: 6 });
    // Where its file can be read here, it is used.
    case.shared = vec![held(theirs[0])];
    assert_eq!(case.begins(IfDamaged::Stop), (path(1, 2), 2));
    // A node that is not there may have a newer one.
    let silent = Case::new(&own, None, None);
    silent.is_refused(IfDamaged::Stop, &["compute node 1 has not said", "number 1 of a day"]);
    assert_eq!(silent.begins(IfDamaged::UseOlder), (path(1, 1), 2));
    // It is known from the mark of this host that there is one.
    let marked = Case::new(&own, mark(1, Some(rank(1, 2))), Some((&[], None)));
    marked.is_refused(IfDamaged::Stop, &["number 2", "compute node 1 as /there", "no host"]);
    let here = Case::new(&[rank(1, 1), rank(1, 2)], mark(1, Some(rank(1, 2))), Some((&own, None)));
    assert_eq!(here.begins(IfDamaged::Stop), (path(1, 2), 2));
}

#[test]
fn what_was_decided_once_stays_and_numbers_never_branch() {
    // The cluster began with number 1 though there was a number 3 elsewhere, and took number 2.
    let case = Case::new(&[rank(1, 1), rank(2, 2)], None, Some((&[rank(1, 3)], None)));
    assert_eq!(case.begins(IfDamaged::Stop), (path(2, 2), 3));
    let other = Rank { life: SnapshotLife { id: 9, ..life(2) }, ..rank(2, 2) };
    let branches = Case::new(&[rank(2, 2)], None, Some((&[other], None)));
    let said = ["of two lives of the cluster that know nothing of each other", "move those away"];
    branches.is_refused(IfDamaged::Stop, &said);
    branches.is_refused(IfDamaged::UseOlder, &said);
    assert_eq!(branches.begins(IfDamaged::Afresh), (None, 3));
    let foreign = Rank { life: SnapshotLife { cluster: 9, ..life(7) }, ..rank(7, 1) };
    let mixed = Case::new(&[rank(2, 2)], None, Some((&[foreign], None)));
    mixed.is_refused(IfDamaged::Stop, &["of two clusters", "/kept/2-2", "/kept/7-1"]);
    // Files from before lives were counted belong to any.
    let old = Rank { sequence: 9, timestamp: 9, ..Rank::default() };
    let with_old = Case::new(&[old, rank(1, 2)], None, Some((&[old], None)));
    assert_eq!(with_old.begins(IfDamaged::Stop), (path(1, 2), 2));
}

/// A directory that was empty, as of a disk that is not mounted, passed for that of a new cluster.
#[test]
fn a_cluster_that_has_lived_begins_afresh_only_if_it_is_told_to() {
    for newest in [None, Some(rank(1, 4))] {
        let gone = Case::new(&[], mark(1, newest), Some((&[], None)));
        for choice in [IfDamaged::Stop, IfDamaged::UseOlder] {
            gone.is_refused(choice, &["--fresh", DIRECTORY]);
        }
        let afresh = gone.decide(IfDamaged::Afresh).expect("the operator has agreed");
        assert_eq!((afresh.life.number, afresh.life.cluster), (2, 77));
        assert_eq!(afresh.last, newest.map_or(0, |rank| rank.sequence));
        let theirs = Case::new(&[], None, Some((&[], mark(1, newest))));
        theirs.is_refused(IfDamaged::Stop, &["--fresh"]);
    }
    // The data of a life before the last one is not served in its place.
    let earlier = Case::new(&[rank(1, 4)], mark(2, None), Some((&[], None)));
    earlier.is_refused(IfDamaged::Stop, &["begun afresh after", "--older-snapshot", "--fresh"]);
    assert_eq!(earlier.begins(IfDamaged::UseOlder), (path(1, 4), 3));
}

#[test]
fn a_file_of_which_nothing_is_known_may_be_the_newest() {
    let mut case = Case::new(&[rank(1, 4)], mark(1, Some(rank(1, 4))), Some((&[], None)));
    let unknown = HeldFile { path: "/kept/x".into(), rank: None, time: String::new() };
    case.own.held.insert(0, unknown);
    assert_eq!(case.begins(IfDamaged::Stop).0, Some("/kept/x".to_owned()));
}
