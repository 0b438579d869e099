//! Turns of nodes with clocks that are stepped, restarted and set back.

use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const RETENTION_MS: u64 = 1600;
const PACE: Pace = Pace { retention_ms: RETENTION_MS, step_ms: 100 };

/// Time, own and others' progress, and what has passed on the own clock; then time and own progress
/// afterwards.
type Turn<'a> = (u64, Option<u64>, &'a [u64], u64, (u64, u64));

#[test]
fn the_time_runs_with_the_slowest_and_no_clock_moves_it_by_more_than_a_step() {
    let day = 86_400_000;
    let cases: [Turn<'_>; 10] = [
        (1000, None, &[], 0, (1000, 1000)),
        (1000, None, &[1050], 70, (1000, 1000)),
        (1000, Some(1000), &[], 40, (1040, 1040)),
        (1000, Some(1000), &[], day, (1100, 1100)),
        (1000, Some(1000), &[1000], day, (1000, 1100)),
        (1000, Some(1100), &[1000], day, (1000, 1100)),
        (1000, Some(1030), &[1080, 1020], 40, (1020, 1070)),
        (1000, Some(1030), &[1080, 1090], 40, (1070, 1070)),
        // It has come back, or was left out, and the others have gone on.
        (1000, Some(300), &[1010], 0, (1000, 1000)),
        (1000, Some(1000), &[200], 50, (1000, 1050)),
    ];
    for (time, own, others, passed, expected) in cases {
        let reached = PACE.turn(time, own, others.iter().copied(), passed);
        assert_eq!((reached.time_ms, reached.own_ms), expected, "{time} {own:?} {others:?}");
    }
}

#[test]
fn rows_of_other_lives_count_for_nothing() {
    assert_eq!(reached_in(&node_row(3, 77), 3), Some(77));
    assert_eq!(reached_in(&node_row(3, 77), 4), None);
    assert_eq!(reached_in(b"short", 3), None);
    assert_eq!(reached_in(&[], 3), None);
}

#[test]
fn rows_of_the_time_are_told_from_records() {
    for (table, row, expected) in [
        (calls::TABLE, key(None), true),
        (calls::TABLE, key(Some(63)), true),
        (calls::TABLE, calls::row_of(7.into(), 1 << 24), false),
        ("orders", key(None), false),
    ] {
        assert_eq!(is_call_time(table, &row), expected, "{table} {row:?}");
    }
}

#[test]
fn a_turn_of_which_nothing_is_known_is_not_counted_twice() {
    let known = CallTime::new(Duration::from_millis(RETENTION_MS));
    assert_eq!((known.stamp(), known.passed_ms(Nanos(5_000_000))), (None, 0));
    known.note(None, Nanos(5_000_000));
    assert_eq!(known.stamp(), None);
    known.note(Some(Reached { time_ms: 2000, own_ms: 2050 }), Nanos(5_000_000));
    assert_eq!(known.stamp(), Some(Stamp { at_ms: 2050, expired_ms: 2000 - 1800 }));
    assert_eq!(known.passed_ms(Nanos(45_000_000)), 40);
    known.note(None, Nanos(45_000_000));
    assert_eq!(known.passed_ms(Nanos(45_000_000)), 0);
    assert_eq!(known.passed_ms(Nanos(4_000_000)), 0, "a clock that was set back");
}

/// A node of a [`World`].
struct Node {
    life: u16,
    is_live: bool,
    /// Its clock beside the right one, in milliseconds.
    wrong_ms: i64,
    /// The live nodes as it knows them.
    view: Vec<(usize, u16)>,
    last_ms: Option<u64>,
    reached: Option<Reached>,
    /// When its next turn is due, by the right time.
    due_ms: u64,
}

/// Nodes that write records of calls, of which node 0 has a clock that jumps.
struct World {
    rng: SmallRng,
    now_ms: u64,
    time_ms: Option<u64>,
    rows: Vec<Vec<u8>>,
    nodes: Vec<Node>,
    next_life: u16,
    /// Records: when they were written, by the right time, and their own times.
    records: Vec<(u64, u64)>,
}

const NODES: usize = 3;
const HOURS_MS: i64 = 100 * 24 * 3_600_000;

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            rng: SmallRng::seed_from_u64(seed),
            now_ms: 1 << 40,
            time_ms: None,
            rows: vec![Vec::new(); NODES],
            nodes: Vec::new(),
            next_life: 1,
            records: Vec::new(),
        };
        world.begin();
        world
    }

    fn step_of_a_clock(&mut self) -> i64 {
        self.rng.random_range(-HOURS_MS..HOURS_MS)
    }

    /// A life of the cluster: with what is in its tables, and clocks that show anything.
    fn begin(&mut self) {
        self.next_life = 1;
        self.nodes.clear();
        for _ in 0..NODES {
            let node = self.node();
            self.nodes.push(node);
        }
        let all = self.live();
        self.nodes.iter_mut().for_each(|node| node.view.clone_from(&all));
    }

    fn node(&mut self) -> Node {
        let (life, wrong_ms) = (self.next_life, self.step_of_a_clock());
        self.next_life += 1;
        let (view, due_ms) = (self.live(), self.now_ms);
        Node { life, is_live: true, wrong_ms, view, last_ms: None, reached: None, due_ms }
    }

    fn live(&self) -> Vec<(usize, u16)> {
        let live = self.nodes.iter().enumerate().filter(|(_, node)| node.is_live);
        live.map(|(index, node)| (index, node.life)).collect()
    }

    fn turn(&mut self, index: usize) {
        let node = &self.nodes[index];
        let clock_ms = self.now_ms.saturating_add_signed(node.wrong_ms);
        let passed_ms = node.last_ms.map_or(0, |last_ms| clock_ms.saturating_sub(last_ms));
        let others = node.view.iter().filter(|(other, _)| *other != index);
        let others = others.filter_map(|(other, life)| reached_in(&self.rows[*other], *life));
        let own_ms = reached_in(&self.rows[index], node.life);
        let time_ms = self.time_ms.unwrap_or(clock_ms);
        let reached = PACE.turn(time_ms, own_ms, others, passed_ms);
        self.rows[index] = node_row(node.life, reached.own_ms);
        self.time_ms = Some(reached.time_ms);
        let next_ms = self.now_ms + self.rng.random_range(20..60);
        let node = &mut self.nodes[index];
        (node.last_ms, node.reached, node.due_ms) = (Some(clock_ms), Some(reached), next_ms);
    }

    /// Time passes: turns are taken that are due, and nothing is forgotten too early.
    fn pass(&mut self) {
        self.now_ms += self.rng.random_range(0..10);
        for index in 0..NODES {
            if self.nodes[index].is_live && self.nodes[index].due_ms <= self.now_ms {
                self.turn(index);
            }
            // Nodes learn of others a moment late.
            if self.rng.random_bool(0.3) {
                self.nodes[index].view = self.live();
            }
            let Some(expired_ms) = self.expired_ms(index) else { continue };
            for (written_ms, at_ms) in &self.records {
                let age_ms = self.now_ms - written_ms;
                assert!(*at_ms >= expired_ms || age_ms >= RETENTION_MS, "node {index}: {age_ms}");
            }
        }
        let least = (0..NODES).filter_map(|index| self.expired_ms(index)).min().unwrap_or(0);
        self.records.retain(|(_, at_ms)| *at_ms >= least);
    }

    /// Time before which records have expired, at a node that commits.
    fn expired_ms(&self, index: usize) -> Option<u64> {
        let node = &self.nodes[index];
        node.reached.filter(|_| node.is_live).map(|reached| PACE.stamp(reached).expired_ms)
    }

    fn write(&mut self, index: usize) {
        let node = &self.nodes[index];
        if let Some(reached) = node.reached.filter(|_| node.is_live) {
            self.records.push((self.now_ms, PACE.stamp(reached).at_ms));
        }
    }
}

/// A compute node with a clock that was ten minutes ahead forgot the calls of all others, and a
/// clock that was set back kept rows full for as long as it had been ahead.
#[test]
fn whatever_a_clock_does_calls_are_remembered_for_the_retention_and_not_much_longer() {
    let mut forgotten = 0;
    for seed in 0..60 {
        let mut world = World::new(seed);
        for _ in 0..3000 {
            world.pass();
            let index = world.rng.random_range(0..NODES);
            match world.rng.random_range(0..1000) {
                0..100 => world.write(index),
                // One clock jumps; it is never the only one.
                100..120 => world.nodes[0].wrong_ms = world.step_of_a_clock(),
                // One of the others may be expelled, and returns as another life.
                120..124 if world.live().len() == NODES => world.nodes[index].is_live = false,
                124..140 if !world.nodes[index].is_live => {
                    world.nodes[index] = world.node();
                }
                140..141 => world.begin(),
                _ => {}
            }
        }
        let written = world.records.len();
        let end_ms = world.now_ms + 2 * RETENTION_MS;
        for index in 0..NODES {
            if !world.nodes[index].is_live {
                world.nodes[index] = world.node();
            }
        }
        while world.now_ms < end_ms {
            world.pass();
        }
        assert_eq!(world.records, [], "seed {seed}: kept for longer than twice the retention");
        forgotten += written;
    }
    assert!(forgotten > 0);
}
