//! Balancing spreads a constant load, and then comes to rest.

use std::collections::BTreeMap;

use lotus::ShardStatus;
use lotus_benchmarks::history::{Attempt, History, Status};
use lotus_fabric::ids::Incarnation;

use crate::verdict::Violation;

/// Property that the load is shared.
pub const SHARED: &str = "no compute node carries far more than its share of a steady load";
/// Property that shards stop moving.
pub const RESTS: &str = "shards do not go round in circles while the load is steady";

/// Maximum number of moves of a shard: intervals are short in simulation, and their counts are only
/// a sample of the load. Adoptions count too.
const MOST_MOVES: u32 = 8;
/// Maximum commits of a node, relative to the mean of the nodes with any commits.
const MOST_ABOVE: f64 = 1.75;

/// The shard with most moves, if more than `MOST_MOVES`.
pub fn circles(owners: &[ShardStatus]) -> Option<Violation> {
    let moves = |status: &ShardStatus| status.epoch.0.saturating_sub(1);
    let worst = owners.iter().max_by_key(|status| moves(status))?;
    let detail = format!("shard {} has changed hands {} times", worst.shard.raw(), moves(worst));
    (moves(worst) > MOST_MOVES).then(|| Violation { property: RESTS.to_owned(), detail })
}

/// A node that committed far more than the others since `settled_ns`, on the clients' clock.
pub fn crowds(history: &History, settled_ns: u64) -> Option<Violation> {
    judge(history.attempts().map(|(attempt, _)| attempt), settled_ns)
}

fn judge<'a>(attempts: impl Iterator<Item = &'a Attempt>, settled_ns: u64) -> Option<Violation> {
    let mut commits: BTreeMap<Incarnation, u64> = BTreeMap::new();
    for attempt in attempts {
        if attempt.status == Status::Ok && attempt.start_ns > settled_ns {
            *commits.entry(attempt.id.incarnation()).or_default() += 1;
        }
    }
    let all: u64 = commits.values().sum();
    let mean = all as f64 / commits.len() as f64;
    let (node, most) = commits.into_iter().max_by_key(|(_, commits)| *commits)?;
    let detail = format!("{node:?} has committed {most} of {all} transactions");
    (most as f64 > mean * MOST_ABOVE).then(|| Violation { property: SHARED.to_owned(), detail })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus::{ShardEpoch, ShardId};
    use lotus_benchmarks::engine::{Isolation, Receipt};
    use lotus_fabric::ids::TxnId;

    #[test]
    fn one_node_with_most_of_the_load_is_noticed() {
        // (commits of each node, whether one has too many)
        let cases: &[(&[u64], bool)] = &[
            (&[], false),
            (&[10], false),
            (&[10, 10, 10], false),
            (&[17, 7, 6], false),
            (&[18, 6, 6], true),
            (&[70, 10, 10, 10], true),
            // Nodes without commits do not count.
            (&[0, 40, 30, 30], false),
        ];
        for (commits, crowd) in cases {
            let attempts: Vec<Attempt> = (1_u16..)
                .zip(*commits)
                .flat_map(|(node, commits)| (0..*commits).map(move |number| (node, number)))
                .map(|(node, number)| attempt(node, number, Status::Ok))
                .chain((0..500).map(|number| attempt(9, number, Status::Fail)))
                .collect();
            assert_eq!(judge(attempts.iter(), 100).is_some(), *crowd, "{commits:?}");
            assert_eq!(judge(attempts.iter(), 300), None);
        }
    }

    fn attempt(node: u16, number: u64, status: Status) -> Attempt {
        Attempt {
            id: TxnId::new(Incarnation::new(node).expect("few nodes"), 0, number),
            session: 0,
            start_ns: 200,
            end_ns: 300,
            isolation: Isolation::Serializable,
            status,
            receipt: Receipt::default(),
        }
    }

    #[test]
    fn a_shard_that_moves_and_moves_is_noticed() {
        let status = |shard, epoch| ShardStatus {
            shard: ShardId::from_low_bits(shard),
            owner: None,
            epoch: ShardEpoch(epoch),
            requests: 0,
        };
        assert_eq!(circles(&[status(0, 1), status(1, 9)]), None);
        let found = circles(&[status(0, 10), status(1, 9)]).expect("nine times");
        assert_eq!(found.detail, "shard 0 has changed hands 9 times");
    }
}
