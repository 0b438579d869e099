//! Growth of an index: buckets for inserts that find their chain full
//! ([`lotus_mvcc::layout::bucket`]).
//!
//! During execution, a transaction only allocates memory and claims places in it. The buckets join
//! their chain when the transaction commits, and are free memory again if it aborts. Each of these
//! inserts holds the lock of the home bucket, which keeps other transactions away from the chain.

use std::pin::Pin;
use std::rc::Rc;

use lotus_mvcc::layout::bucket::{BUCKET_SLOTS, FAN_OUT, MAX_BEHIND, Overflow, slot_offset};
use lotus_mvcc::layout::cvt::Cell;
use lotus_mvcc::slab::SlotKind;

use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::node::memory::slots::Use;
use crate::txn::body::{Body, GrownChain, Row, Target, purpose};
use crate::txn::fetch::{Fetch, NextRead};
use crate::txn::reserve::allocate;

impl Body {
    /// Allocates overflow buckets for inserts with full chains. They join the chains when the
    /// transaction commits; its bucket locks protect the chains until then.
    ///
    /// Boxed, so that this rare code stays out of the common path.
    #[cold]
    #[inline(never)]
    pub(super) fn grow_chains<'a>(
        &'a mut self,
        coordinator: &'a Rc<Coordinator>,
    ) -> Pin<Box<dyn Future<Output = Result<(), TxnError>> + 'a>> {
        Box::pin(self.grow_chains_now(coordinator))
    }

    async fn grow_chains_now(&mut self, coordinator: &Rc<Coordinator>) -> Result<(), TxnError> {
        for index in 0..self.fetches.len() {
            let Fetch { row, wants: NextRead::Overflow { tail, behind }, .. } = self.fetches[index]
            else {
                continue;
            };
            let Row { table, group, key, primary_key, .. } = self.rows[row];
            let shape = self.table(table).def.cvt();
            // This transaction's own buckets behind the tail may be full, too.
            let (mut tail, mut behind) = (tail, behind);
            let cvt = loop {
                if behind >= MAX_BEHIND {
                    return Err(TxnError::KeyCollision { table, key: primary_key.into() });
                }
                behind += 1;
                let is_behind = |grown: &&GrownChain| {
                    (grown.table, grown.group, grown.tail) == (table, group, tail)
                };
                let buckets = match self.grown.iter().find(is_behind) {
                    Some(grown) => grown.buckets,
                    None => self.grow_chain(coordinator, row, tail).await?,
                };
                let bucket = buckets.bucket_of(key, shape);
                let mut slots = (0..BUCKET_SLOTS).map(|slot| bucket + slot_offset(shape, slot));
                match slots.find(|cvt| !self.claims.contains(cvt)) {
                    Some(cvt) => break cvt,
                    None => tail = bucket,
                }
            };
            let absent_since = self.fetches[index].absent_since.unwrap_or_default();
            self.claim(row, Target::new_cvt(shape, cvt, Cell::NEVER_USED, absent_since))?;
            self.rows[row].executed = true;
        }
        let rows = &self.rows;
        self.fetches.retain(|fetch| !rows[fetch.row].executed);
        Ok(())
    }

    /// Allocates the buckets behind `tail`, the end of a row's chain.
    async fn grow_chain(
        &mut self,
        coordinator: &Rc<Coordinator>,
        row: usize,
        tail: u64,
    ) -> Result<Overflow, TxnError> {
        let Row { table, group, key, .. } = self.rows[row];
        let def = &self.table(table).def;
        let kind = def.geometry().behind(key, tail);
        let (fan_bytes, bytes) = (def.bytes_of(SlotKind::Fan), def.bytes_of(SlotKind::Bucket));
        let [fans, singles] = [SlotKind::Fan, SlotKind::Bucket].map(|k| purpose(table, group, k));
        let take_fan = || allocate(coordinator, Use::Insert, fans, group, fan_bytes);
        let buckets = if kind == SlotKind::Fan {
            Overflow::fan(take_fan().await?)
        } else if let Some(free) = coordinator.take_slot(Use::Insert, singles, bytes) {
            Overflow::bucket(free)
        } else {
            match take_fan().await {
                // Single buckets are cut from fans, so that both kinds share a slab.
                Ok(fan) => {
                    let others = (1..FAN_OUT as u64).map(|index| fan + index * bytes);
                    others.for_each(|bucket| coordinator.release_slot(singles, bucket));
                    Overflow::bucket(fan)
                }
                // Another node may have free single buckets.
                Err(TxnError::TableFull { .. }) => Overflow::bucket(
                    allocate(coordinator, Use::Insert, singles, group, bytes).await?,
                ),
                Err(error) => return Err(error),
            }
        };
        self.grown.push(GrownChain { table, group, tail, buckets });
        Ok(buckets)
    }
}
