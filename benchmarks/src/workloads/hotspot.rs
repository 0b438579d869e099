//! Jumping hotspot: for a while, a few shards of one compute node take most of the load.
//!
//! Load balancing is measured against this hotspot (LOTUS §4.3). The owner of the hot shards
//! follows from the initial placement, which deals shards out to the compute nodes in turn. Each
//! jump goes to the next node, and to shards of the node that have not been hot before, until the
//! node runs out of them; so the node still owns these shards, unless they were given away while
//! they were cold.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

/// A jumping hotspot; see the module documentation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Hotspot {
    /// Number of shards that are hot at a time.
    pub hot_shards: u64,
    /// Share of requests that go to hot shards, in 0..=1.
    pub ratio: f64,
    /// Interval between jumps; zero for a hotspot that stays.
    pub every: Duration,
    /// Number of compute nodes that the shards were dealt out to.
    pub nodes: u64,
    /// Number of shards. Key `k` lies in shard `k` modulo this number.
    pub shards: u64,
}

impl Hotspot {
    /// Draws the next of `keys` keys, `elapsed` after the first request.
    ///
    /// # Panics
    /// If there are no keys, shards or nodes.
    #[inline]
    pub fn draw(&self, keys: u64, elapsed: Duration, rng: &mut SmallRng) -> u64 {
        if rng.random::<f64>() >= self.ratio {
            return rng.random_range(0..keys);
        }
        let shard = self.shard(self.jumps(elapsed), rng.random_range(0..self.hot_shards));
        // A shard beyond the last key is empty; the shard of its number modulo `keys` replaces it.
        let first = shard % keys;
        first + self.shards * rng.random_range(0..(keys - first).div_ceil(self.shards))
    }

    /// Number of jumps up to `elapsed`.
    fn jumps(&self, elapsed: Duration) -> u64 {
        elapsed.as_nanos().checked_div(self.every.as_nanos()).unwrap_or(0) as u64
    }

    /// The `number`-th hot shard after `jumps` jumps.
    fn shard(&self, jumps: u64, number: u64) -> u64 {
        let (node, round) = (jumps % self.nodes, jumps / self.nodes);
        ((round * self.hot_shards + number) * self.nodes + node) % self.shards
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use std::collections::BTreeSet;

    const SECOND: Duration = Duration::from_secs(1);
    const HOTSPOT: Hotspot =
        Hotspot { hot_shards: 16, ratio: 0.8, every: SECOND, nodes: 9, shards: 4096 };

    #[test]
    fn it_stays_on_shards_of_one_node_and_jumps_to_fresh_ones_of_the_next() {
        let mut seen = BTreeSet::new();
        for jumps in 0..20 {
            let shards: BTreeSet<u64> = (0..16).map(|n| HOTSPOT.shard(jumps, n)).collect();
            assert_eq!(shards.len(), 16);
            assert!(shards.iter().all(|shard| shard % 9 == jumps % 9 && seen.insert(*shard)));
        }
    }

    #[test]
    fn the_ratio_holds_and_every_key_exists() {
        let mut rng = SmallRng::seed_from_u64(5);
        for (keys, at) in [(100_000, 0), (100_000, 3), (5_000, 11), (10, 2)] {
            let hot: BTreeSet<u64> = (0..16).map(|n| HOTSPOT.shard(at, n) % keys).collect();
            let mut hits = 0;
            for _ in 0..20_000 {
                let key = HOTSPOT.draw(keys, SECOND * at as u32, &mut rng);
                assert!(key < keys);
                hits += u32::from(hot.contains(&(key % 4096)));
            }
            assert!(hits > 15_700, "{keys} keys: {hits}");
        }
    }

    #[test]
    fn without_an_interval_it_stays() {
        let stays = Hotspot { every: Duration::ZERO, ..HOTSPOT };
        assert_eq!((stays.jumps(SECOND * 1000), HOTSPOT.jumps(SECOND * 3)), (0, 3));
    }
}
