//! The lock table against a model that knows true names: a map from names to their holders.
//!
//! With whole fingerprints and enough buckets, every answer must be the model's. With one bucket
//! or one bit of fingerprint the table may refuse what the model would grant, because names look
//! alike or the bucket is full; but it must never grant what the model refuses, lose a holder or
//! keep a slot.
#![cfg(not(lotus_loom))]

use std::collections::BTreeMap;

use lotus_fabric::ids::{Incarnation, Key, TableId, TxnId};
use lotus_locktable::{
    Grant, LockKey, LockMode, LockRequest, LockSpace, LockTable, LockTableConfig, Refusal, Release,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Lock(u64, LockRequest),
    LockSet(u64, Vec<LockRequest>),
    Unlock(u64, LockKey),
    EndAll(u64),
}

/// The specification: read or write locks on true names, upgraded for a sole reader.
#[derive(Clone, Default)]
struct Model(BTreeMap<LockKey, BTreeMap<TxnId, LockMode>>);

impl Model {
    fn lock(&mut self, txn: TxnId, LockRequest { name, mode }: LockRequest) -> Option<Grant> {
        let holders = self.0.entry(name).or_default();
        let others = holders.iter().filter(|(holder, _)| **holder != txn);
        let conflict = others.clone().any(|(_, held)| (*held, mode) != READ_READ);
        let grant = match (holders.get(&txn), mode) {
            (Some(held), _) if *held >= mode => Grant::AlreadyHeld,
            _ if conflict => return None,
            (Some(_), _) => Grant::Upgraded,
            (None, _) => Grant::Acquired,
        };
        if grant != Grant::AlreadyHeld {
            holders.insert(txn, mode);
        }
        Some(grant)
    }

    fn unlock(&mut self, txn: TxnId, name: &LockKey) -> Release {
        match self.0.get_mut(name).and_then(|holders| holders.remove(&txn)) {
            Some(_) => Release::Released,
            None => Release::NotHeld,
        }
    }

    fn lock_set(&mut self, txn: TxnId, requests: &[LockRequest]) -> Result<(), usize> {
        let before = self.clone();
        match requests.iter().position(|request| self.lock(txn, *request).is_none()) {
            None => Ok(()),
            Some(index) => {
                *self = before;
                Err(index)
            }
        }
    }

    fn holders(&self) -> Vec<(LockKey, TxnId, LockMode)> {
        let all = self.0.iter();
        all.flat_map(|(name, holders)| holders.iter().map(|(txn, mode)| (*name, *txn, *mode)))
            .collect()
    }

    fn is_write_locked(&self, name: &LockKey) -> bool {
        self.0.get(name).is_some_and(|holders| holders.values().any(|m| *m == LockMode::Write))
    }
}

const READ_READ: (LockMode, LockMode) = (LockMode::Read, LockMode::Read);
const TXNS: u64 = 4;

fn txn(number: u64) -> TxnId {
    TxnId::new(Incarnation::new(1).expect("fits"), number as u16, 1)
}

fn names() -> impl Strategy<Value = LockKey> {
    (0u16..3, any::<bool>(), 0u64..4).prop_map(|(table, bucket, key)| LockKey {
        table: TableId(table),
        space: if bucket { LockSpace::Bucket } else { LockSpace::Row },
        key: Key(key << 12),
    })
}

fn requests() -> impl Strategy<Value = LockRequest> {
    (names(), any::<bool>()).prop_map(|(name, write)| LockRequest {
        name,
        mode: if write { LockMode::Write } else { LockMode::Read },
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..TXNS, requests()).prop_map(|(txn, request)| Step::Lock(txn, request)),
        2 => (0..TXNS, prop::collection::vec(requests(), 0..6))
            .prop_map(|(txn, set)| Step::LockSet(txn, set)),
        3 => (0..TXNS, names()).prop_map(|(txn, name)| Step::Unlock(txn, name)),
        1 => (0..TXNS).prop_map(Step::EndAll),
    ];
    prop::collection::vec(step, 0..80)
}

/// Strictness with which the table must follow the model.
#[derive(Clone, Copy, PartialEq)]
enum Follows {
    Exactly,
    /// The table may refuse more.
    Safely,
}

/// Takes `step` in both; the model only takes the locks that the table took.
fn take(
    table: &LockTable,
    model: &mut Model,
    step: Step,
    follows: Follows,
) -> Result<(), TestCaseError> {
    match step {
        Step::Lock(number, request) => {
            let answer = table.try_lock(txn(number), request);
            if answer.is_ok() || follows == Follows::Exactly {
                let expected = model.lock(txn(number), request).ok_or(Refusal::Conflict);
                prop_assert_eq!(answer, expected);
            }
        }
        Step::LockSet(number, set) => {
            let answer = table.try_lock_set(txn(number), &set);
            if answer.is_ok() || follows == Follows::Exactly {
                let expected = model.lock_set(txn(number), &set);
                let expected = expected.map_err(|index| (index, Refusal::Conflict));
                prop_assert_eq!(answer, expected);
            }
        }
        Step::Unlock(number, name) => {
            prop_assert_eq!(table.unlock(txn(number), &name), model.unlock(txn(number), &name));
        }
        Step::EndAll(number) => {
            let names: Vec<_> = model.0.keys().copied().collect();
            table.unlock_all(txn(number), &names);
            for name in &names {
                model.unlock(txn(number), name);
            }
        }
    }
    Ok(())
}

/// Compares the locks held in both.
fn compare(table: &LockTable, model: &Model, follows: Follows) -> Result<(), TestCaseError> {
    let mut held = Vec::new();
    table.for_each_holder(|holder| held.push((holder.name, holder.txn, holder.mode)));
    held.sort_unstable();
    prop_assert_eq!(&held, &model.holders());
    prop_assert_eq!(table.held(), held.len());
    for name in model.0.keys() {
        let (ours, theirs) = (table.is_write_locked(name), model.is_write_locked(name));
        prop_assert!(ours == theirs || (ours && follows == Follows::Safely), "{:?}", name);
    }
    Ok(())
}

/// Runs `steps`, then ends every transaction; each name must be free for a writer again.
fn run(config: LockTableConfig, steps: Vec<Step>, follows: Follows) -> Result<(), TestCaseError> {
    let table = LockTable::new(config).expect("valid");
    let mut model = Model::default();
    for step in steps {
        take(&table, &mut model, step, follows)?;
        compare(&table, &model, follows)?;
    }
    for number in 0..TXNS {
        take(&table, &mut model, Step::EndAll(number), follows)?;
    }
    prop_assert_eq!(table.held(), 0);
    for name in model.0.keys() {
        prop_assert_eq!(table.try_lock(txn(0), LockRequest::write(*name)), Ok(Grant::Acquired));
        prop_assert_eq!(table.unlock(txn(0), name), Release::Released);
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_large_table_answers_like_the_model(steps in steps()) {
        let config = LockTableConfig::with_bytes(1 << 20);
        run(config, steps, Follows::Exactly)?;
    }

    #[test]
    fn a_small_table_refuses_more_and_never_less(
        steps in steps(),
        buckets in 1usize..4,
        fingerprint_bits in prop_oneof![1u32..4, Just(56)],
    ) {
        let config = LockTableConfig { bytes: buckets * 64, fingerprint_bits };
        run(config, steps, Follows::Safely)?;
    }
}
