//! A model of transactions that wait in order, in every interleaving: several rounds, upgrades,
//! retries that know their locks, and queues at two owners, which are the two halves of the keys.
//!
//! In no state do all that are left wait (no deadlock, so no deadline), locks exclude one another,
//! and a transaction is refused at most as often as it has rounds.
#![cfg(not(lotus_loom))]

use std::collections::{BTreeMap, BTreeSet};

use lotus_fabric::ids::{Key, TableId};
use lotus_locktable::LockMode::{self, Read, Write};
use lotus_locktable::{LockKey, WaitOrder, may_wait};

/// Locks of one transaction, round by round.
type Script = &'static [&'static [(u64, LockMode)]];

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Txn {
    /// Round under way; the script's length once it has committed.
    round: usize,
    held: BTreeMap<u64, LockMode>,
    /// Locks that the round still needs.
    todo: BTreeMap<u64, LockMode>,
    waits: Option<u64>,
    /// What attempts before held or wanted.
    known: BTreeMap<u64, LockMode>,
    refused: usize,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct State {
    txns: Vec<Txn>,
    /// Transactions that wait, by lock, in the order in which they are served.
    queues: BTreeMap<u64, Vec<usize>>,
}

fn order(key: u64) -> WaitOrder {
    WaitOrder::of(&LockKey::row(TableId(1), Key(key)))
}

fn add(locks: &mut BTreeMap<u64, LockMode>, more: impl IntoIterator<Item = (u64, LockMode)>) {
    for (key, mode) in more {
        let kept = locks.entry(key).or_insert(mode);
        *kept = mode.max(*kept);
    }
}

impl State {
    fn new(scripts: &[Script]) -> Self {
        let mut state = Self { txns: vec![Txn::default(); scripts.len()], queues: BTreeMap::new() };
        (0..scripts.len()).for_each(|index| state.begin_round(scripts, index));
        state
    }

    fn begin_round(&mut self, scripts: &[Script], index: usize) {
        let txn = &mut self.txns[index];
        txn.todo.clear();
        if txn.round == 0 {
            add(&mut txn.todo, txn.known.clone());
        }
        let round = scripts[index].get(txn.round).copied().unwrap_or_default();
        add(&mut txn.todo, round.iter().copied());
        let held = txn.held.clone();
        txn.todo.retain(|key, mode| held.get(key).is_none_or(|held| held < mode));
    }

    fn is_free(&self, index: usize, key: u64, mode: LockMode) -> bool {
        let mut others = self.txns.iter().enumerate().filter(|(other, _)| *other != index);
        others.all(|(_, txn)| txn.held.get(&key).is_none_or(|held| (*held, mode) == (Read, Read)))
    }

    fn end(&mut self, index: usize) {
        let released = std::mem::take(&mut self.txns[index].held);
        for key in released.into_keys() {
            let queue = self.queues.get(&key).cloned().unwrap_or_default();
            for next in queue {
                let mode = self.txns[next].todo[&key];
                if !self.is_free(next, key, mode) {
                    break;
                }
                let txn = &mut self.txns[next];
                (txn.waits, _) = (None, txn.todo.remove(&key));
                txn.held.insert(key, mode);
                self.queues.entry(key).or_default().retain(|one| *one != next);
            }
        }
    }

    /// Takes the next step of a transaction that does not wait.
    fn step(&mut self, scripts: &[Script], index: usize) {
        let txn = &self.txns[index];
        let Some((&key, &mode)) = txn.todo.iter().next() else {
            self.txns[index].round += 1;
            if self.txns[index].round == scripts[index].len() {
                self.end(index);
            } else {
                self.begin_round(scripts, index);
            }
            return;
        };
        let upgrade = txn.held.contains_key(&key);
        let queued = self.queues.get(&key).is_some_and(|queue| !queue.is_empty());
        if self.is_free(index, key, mode) && (upgrade || !queued) {
            self.txns[index].todo.remove(&key);
            self.txns[index].held.insert(key, mode);
            return;
        }
        let highest = txn.held.keys().map(|key| order(*key)).max();
        if !upgrade && may_wait(highest, order(key)) {
            self.txns[index].waits = Some(key);
            // By age: a transaction that has been refused is older, then by number.
            let age = |state: &Self, one: usize| (std::cmp::Reverse(state.txns[one].refused), one);
            let mut queue = self.queues.remove(&key).unwrap_or_default();
            let place = queue.iter().filter(|one| age(self, **one) <= age(self, index)).count();
            queue.insert(place, index);
            self.queues.insert(key, queue);
            return;
        }
        let txn = &mut self.txns[index];
        let (held, todo) = (txn.held.clone(), std::mem::take(&mut txn.todo));
        add(&mut txn.known, held);
        add(&mut txn.known, todo);
        (txn.round, txn.refused) = (0, txn.refused + 1);
        self.end(index);
        self.begin_round(scripts, index);
    }

    fn check(&self, scripts: &[Script]) {
        let left = || {
            let all = self.txns.iter().zip(scripts);
            all.filter(|(txn, script)| txn.round < script.len()).map(|(txn, _)| txn)
        };
        let stuck = left().count() > 0 && left().all(|txn| txn.waits.is_some());
        assert!(!stuck, "all that are left wait: {self:?}");
        for (index, txn) in self.txns.iter().enumerate() {
            let shared = txn.held.iter().all(|(key, mode)| self.is_free(index, *key, *mode));
            assert!(shared, "two hold a lock: {self:?}");
            assert!(txn.refused <= scripts[index].len(), "refused too often: {self:?}");
        }
    }
}

/// Visits every state; returns their number.
fn explore(scripts: &[Script]) -> usize {
    let first = State::new(scripts);
    let (mut seen, mut open) = (BTreeSet::from([first.clone()]), vec![first]);
    while let Some(state) = open.pop() {
        state.check(scripts);
        for (index, script) in scripts.iter().enumerate() {
            let txn = &state.txns[index];
            if txn.waits.is_some() || txn.round == script.len() {
                continue;
            }
            let mut next = state.clone();
            next.step(scripts, index);
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    seen.len()
}

const UP: Script = &[&[(1, Write)], &[(2, Write)], &[(3, Write)]];
const DOWN: Script = &[&[(3, Write)], &[(2, Write)], &[(1, Write)]];
const UPGRADES: Script = &[&[(1, Read), (2, Read)], &[(2, Write), (1, Write)]];
const READS: Script = &[&[(1, Read), (3, Read)], &[(2, Read)]];
const ALL: Script = &[&[(1, Write), (2, Write), (3, Write), (4, Write)]];

#[test]
fn no_interleaving_of_transactions_that_wait_in_order_is_stuck() {
    let worlds: [&[Script]; 6] = [
        &[UP, DOWN],
        &[UP, DOWN, DOWN],
        &[UPGRADES, UPGRADES, UPGRADES],
        &[UPGRADES, DOWN, READS],
        &[ALL, DOWN, UPGRADES],
        &[READS, READS, ALL, DOWN],
    ];
    for scripts in worlds {
        assert!(explore(scripts) > 20, "{scripts:?}");
    }
}
