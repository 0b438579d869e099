//! Choice of the shards that an overloaded compute node gives away (LOTUS §4.3).
//!
//! # What it is
//! A pure decision, taken by each node for itself at the end of every interval, from the published
//! loads of all nodes: how long transactions took, and how many locks of each own shard were
//! requested. A node is *overloaded* when the summed time of its transactions has been more than
//! half as long again as the mean of all nodes, for three intervals. The summed time is the number
//! of transactions under way (Little's law), and therefore distinguishes a node with too much work
//! from a node whose transactions wait for other nodes.
//!
//! # Where it goes beyond the paper
//! The paper gives the hottest shard to the node with the lowest latency.
//! * *No thrashing.* A shard moves only if the receiver then clearly has less load than the giver
//!   has, so no move is worth undoing. When several nodes are overloaded their receivers are
//!   disjoint.
//! * *Several at once.* A node gives as many shards as it takes to come down to about the mean; a
//!   node with most of the load does not need an interval for each of its shards.
//! * *A shard that is too hot to help* any receiver stays with its owner, and cooler shards go in
//!   its place. If the cooler shards are not enough the hot shard is reported, for the operator to
//!   split.
//!
//! # What it is not
//! This module only decides: the engine measures loads and moves shards.

use lotus_fabric::ids::ShardId;
use lotus_sabotage::{Rule, broken};

/// Number of intervals for which a node must be overloaded before it gives shards away.
pub const INTERVALS: u32 = 3;
/// Largest number of shards given away at once.
pub const MOST_AT_ONCE: usize = 128;

/// Load of one compute node in an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeLoad {
    /// Mean latency of the node's transactions, in nanoseconds.
    pub latency_ns: u32,
    /// Number of transactions that ended.
    pub transactions: u32,
}

impl NodeLoad {
    /// Encodes the load as the published word.
    pub const fn to_word(self) -> u64 {
        (self.transactions as u64) << 32 | self.latency_ns as u64
    }

    /// Decodes a published word.
    pub const fn from_word(word: u64) -> Self {
        Self { latency_ns: word as u32, transactions: (word >> 32) as u32 }
    }

    /// Total time of the node's transactions, in nanoseconds.
    fn busy_ns(self) -> u64 {
        u64::from(self.latency_ns) * u64::from(self.transactions)
    }
}

/// Number of requests for locks of one shard in an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardLoad {
    /// The shard.
    pub shard: ShardId,
    /// Lock requests.
    pub requests: u64,
}

/// Shards for one receiver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gift {
    /// Receiver, by its place among the nodes.
    pub to: usize,
    /// Shards to move, the hottest first.
    pub shards: Vec<ShardId>,
}

/// Reaction of a node to its load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Do nothing: the load is about the mean, or has not been above the mean for long.
    Keep,
    /// Give these shards away.
    Give(Vec<Gift>),
    /// Overloaded, but no move would help: most of the load is this shard's.
    TooHot(ShardId),
}

/// State of a node from interval to interval.
#[derive(Clone, Debug, Default)]
pub struct Balancer {
    /// Number of consecutive intervals for which the node has been overloaded.
    overloaded: u32,
}

impl Balancer {
    /// Verdict at the end of an interval on node `me`, which owns the shards in `mine`. Expelled
    /// nodes, which publish nothing, are `None` in `nodes`.
    ///
    /// # Panics
    /// If `nodes` has no entry for `me`.
    pub fn judge(&mut self, me: usize, nodes: &[Option<NodeLoad>], mine: &[ShardLoad]) -> Verdict {
        if !is_overloaded(me, nodes) {
            self.overloaded = 0;
            return Verdict::Keep;
        }
        self.overloaded += 1;
        if self.overloaded < INTERVALS {
            return Verdict::Keep;
        }
        let verdict = share_out(me, nodes, mine);
        if let Verdict::Give(_) = verdict {
            // New intervals judge the result of the move.
            self.overloaded = 0;
        }
        verdict
    }
}

/// Total transaction time of each node, and the mean.
fn busy(nodes: &[Option<NodeLoad>]) -> (Vec<Option<u64>>, u64) {
    let busy: Vec<_> = nodes.iter().map(|node| node.map(NodeLoad::busy_ns)).collect();
    let members = busy.iter().flatten().count().max(1) as u64;
    let mean = busy.iter().flatten().sum::<u64>() / members;
    (busy, mean)
}

fn is_overloaded(node: usize, nodes: &[Option<NodeLoad>]) -> bool {
    let (busy, mean) = busy(nodes);
    busy[node].is_some_and(|busy| busy * 2 > mean * 3)
}

/// Deals out shards of an overloaded node until it has about the mean: halfway down from the load
/// at which it would be overloaded again. Going further would take many shards that are hardly
/// used.
fn share_out(me: usize, nodes: &[Option<NodeLoad>], mine: &[ShardLoad]) -> Verdict {
    let (busy, mean) = busy(nodes);
    let requests: u64 = mine.iter().map(|shard| shard.requests).sum();
    let mut hottest: Vec<_> = mine.iter().filter(|shard| shard.requests > 0).collect();
    hottest.sort_unstable_by_key(|shard| (std::cmp::Reverse(shard.requests), shard.shard));
    let Some(first) = hottest.first() else { return Verdict::Keep };
    let mut receivers = receivers(me, nodes, &busy, mean);
    let all = busy[me].unwrap_or(0);
    let mut left = all;
    let mut gifts: Vec<Gift> = Vec::new();
    let mut given = 0;
    for shard in &hottest {
        // A shard is assumed to cost its part of all requests. The part is exact for locks; the
        // rest of a transaction's work is assumed to be proportional to them.
        let cost = (u128::from(all) * u128::from(shard.requests) / u128::from(requests)) as u64;
        let Some((to, has)) = receivers.iter_mut().min_by_key(|(_, has)| *has) else { break };
        // Both sides of the move must be clearly better off than the giver was.
        let helps = broken(Rule::GiftsHelp) || (*has + cost) * 10 <= left * 9;
        if left * 4 <= mean * 5 || !helps || given == MOST_AT_ONCE {
            continue;
        }
        (left, *has, given) = (left.saturating_sub(cost), *has + cost, given + 1);
        match gifts.iter_mut().find(|gift| gift.to == *to) {
            Some(gift) => gift.shards.push(shard.shard),
            None => gifts.push(Gift { to: *to, shards: vec![shard.shard] }),
        }
    }
    match gifts.is_empty() {
        false => Verdict::Give(gifts),
        true => Verdict::TooHot(first.shard),
    }
}

/// Nodes that may receive shards of `me`, with their loads: the nodes below the mean, dealt out
/// among all overloaded nodes.
fn receivers(
    me: usize,
    nodes: &[Option<NodeLoad>],
    busy: &[Option<u64>],
    mean: u64,
) -> Vec<(usize, u64)> {
    let givers: Vec<usize> = (0..nodes.len()).filter(|node| is_overloaded(*node, nodes)).collect();
    let turn = givers.iter().position(|giver| *giver == me).unwrap_or(0);
    let known = busy.iter().enumerate().filter_map(|(node, busy)| Some((node, (*busy)?)));
    let mut below: Vec<_> = known.filter(|(_, busy)| *busy < mean).collect();
    below.sort_unstable_by_key(|(node, busy)| (*busy, *node));
    below.into_iter().skip(turn).step_by(givers.len().max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(busy_us: &[u32]) -> Vec<Option<NodeLoad>> {
        let node = |busy: &u32| NodeLoad { latency_ns: 1_000, transactions: *busy };
        busy_us.iter().map(|busy| Some(node(busy))).collect()
    }

    fn shards(requests: &[u64]) -> Vec<ShardLoad> {
        let shard = |(number, requests): (u64, &u64)| ShardLoad {
            shard: ShardId::from_low_bits(number),
            requests: *requests,
        };
        (0..).zip(requests).map(shard).collect()
    }

    fn gift(to: usize, shards: &[u64]) -> Gift {
        Gift { to, shards: shards.iter().map(|shard| ShardId::from_low_bits(*shard)).collect() }
    }

    /// Verdict on node 0 after three equal intervals.
    fn verdict(busy_us: &[u32], requests: &[u64]) -> Verdict {
        let mut balancer = Balancer::default();
        let mut judge = || balancer.judge(0, &nodes(busy_us), &shards(requests));
        assert_eq!([judge(), judge()], [Verdict::Keep, Verdict::Keep], "not so soon");
        judge()
    }

    #[test]
    fn an_overloaded_node_gives_what_helps() {
        let hot = |shard| Verdict::TooHot(ShardId::from_low_bits(shard));
        // (time spent by each node, requests of node 0's shards, verdict)
        let cases: &[(&[u32], &[u64], Verdict)] = &[
            (&[100, 100, 100], &[50, 50], Verdict::Keep),
            // Exactly half as much again is not overloaded.
            (&[150, 75, 75], &[50, 50], Verdict::Keep),
            (&[160, 70, 70], &[10, 60, 30], Verdict::Give(vec![gift(1, &[2])])),
            // Several at once, to several.
            (
                &[400, 0, 0, 0],
                &[25, 25, 25, 25],
                Verdict::Give(vec![gift(1, &[0]), gift(2, &[1]), gift(3, &[2])]),
            ),
            // The hottest would only take the overload along: the others go.
            (&[300, 30, 30], &[90, 5, 5], Verdict::Give(vec![gift(1, &[1]), gift(2, &[2])])),
            (&[300, 30, 30], &[100], hot(0)),
            (&[300, 30, 30], &[0, 70], hot(1)),
            // A single node, or one with nothing to give.
            (&[300], &[100], Verdict::Keep),
            (&[300, 0], &[0, 0], Verdict::Keep),
        ];
        for (busy, requests, expected) in cases {
            assert_eq!(&verdict(busy, requests), expected, "{busy:?} {requests:?}");
        }
    }

    #[test]
    fn one_quiet_interval_begins_the_count_anew() {
        let mut balancer = Balancer::default();
        let mine = shards(&[50, 50]);
        for _ in 0..2 {
            assert_eq!(balancer.judge(0, &nodes(&[300, 0]), &mine), Verdict::Keep);
            assert_eq!(balancer.judge(0, &nodes(&[300, 0]), &mine), Verdict::Keep);
            assert_eq!(balancer.judge(0, &nodes(&[150, 150]), &mine), Verdict::Keep);
        }
    }

    #[test]
    fn two_givers_have_receivers_of_their_own() {
        let nodes = nodes(&[400, 400, 10, 20]);
        let (busy, mean) = busy(&nodes);
        assert_eq!(receivers(0, &nodes, &busy, mean), [(2, 10_000)]);
        assert_eq!(receivers(1, &nodes, &busy, mean), [(3, 20_000)]);
    }

    #[test]
    fn who_is_out_counts_for_nothing() {
        let mut nodes = nodes(&[300, 0, 50, 50]);
        nodes[1] = None;
        let mut balancer = Balancer { overloaded: INTERVALS - 1 };
        let verdict = balancer.judge(0, &nodes, &shards(&[20, 20, 20, 20]));
        assert_eq!(verdict, Verdict::Give(vec![gift(2, &[0]), gift(3, &[1])]));
    }

    #[test]
    fn loads_survive_packing() {
        for (latency_ns, transactions) in [(0, 1), (u32::MAX, 0), (7, u32::MAX)] {
            let load = NodeLoad { latency_ns, transactions };
            assert_eq!(NodeLoad::from_word(load.to_word()), load);
        }
    }

    /// Runs a cluster for `intervals`, in which shard `n` is asked for `heat(n)` locks; updates
    /// `owner`. Returns the last interval in which anything moved, and the last verdicts.
    fn play(
        members: usize,
        owner: &mut [usize],
        intervals: u32,
        mut heat: impl FnMut(usize) -> u64,
    ) -> (u32, Vec<Verdict>) {
        let mut balancers = vec![Balancer::default(); members];
        let (mut last_move, mut verdicts) = (0, Vec::new());
        for interval in 0..intervals {
            let heat: Vec<u64> = (0..owner.len()).map(&mut heat).collect();
            let busy = |node: usize| -> u32 {
                let own = heat.iter().zip(&*owner).filter(|(_, owner)| **owner == node);
                own.map(|(heat, _)| *heat as u32).sum()
            };
            let loads = nodes(&(0..members).map(busy).collect::<Vec<_>>());
            let before = owner.to_vec();
            verdicts.clear();
            for (me, balancer) in balancers.iter_mut().enumerate() {
                let mut mine = shards(&heat);
                mine.retain(|one| before[usize::from(one.shard.raw())] == me);
                let verdict = balancer.judge(me, &loads, &mine);
                verdicts.push(verdict.clone());
                let Verdict::Give(gifts) = verdict else { continue };
                last_move = interval;
                for Gift { to, shards } in gifts {
                    shards.iter().for_each(|one| owner[usize::from(one.raw())] = to);
                }
            }
        }
        (last_move, verdicts)
    }

    /// Loads that are never the same twice, and two nodes that could pass shards to and fro.
    #[test]
    fn two_nodes_whose_loads_waver_come_to_rest() {
        let mut draw = random(7);
        let mut owner = [0; 8];
        let (last_move, verdicts) = play(2, &mut owner, 400, |_| 70 + draw(60));
        assert!(last_move < 5, "still moving at {last_move}");
        assert!(
            (3..=4).contains(&owner.iter().sum::<usize>()),
            "about half of them moved: {owner:?}"
        );
        assert_eq!(verdicts, [Verdict::Keep, Verdict::Keep]);
    }

    /// One shard has nearly all of the load: the others move away, it stays and is reported.
    #[test]
    fn a_shard_too_hot_for_any_node_stays_and_is_named_as_long_as_that_lasts() {
        let mut draw = random(8);
        let mut owner = [0, 0, 0, 1, 2, 1, 2, 1];
        let heat = |shard: usize| if shard == 0 { 900 + draw(200) } else { 10 + draw(5) };
        let (last_move, verdicts) = play(3, &mut owner, 200, heat);
        assert_eq!((owner[0], last_move < 10), (0, true), "{owner:?}, {last_move}");
        assert_eq!(verdicts[0], Verdict::TooHot(ShardId::from_low_bits(0)));
    }

    fn random(mut seed: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        }
    }

    /// Under any constant load, moves come to an end, and no shard moves back.
    #[test]
    fn moves_come_to_an_end() {
        let mut draw = random(1);
        for _ in 0..200 {
            let members = 2 + draw(8) as usize;
            let heat: Vec<u64> = (0..64).map(|_| draw(4) * draw(300)).collect();
            let mut owner: Vec<usize> = (0..64).map(|_| draw(3) as usize % members).collect();
            let (last_move, _) = play(members, &mut owner, 60, |shard| heat[shard]);
            assert!(last_move < 30, "{members} nodes, still moving at {last_move}");
        }
    }
}
