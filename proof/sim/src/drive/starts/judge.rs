//! Verdict on a start.
//!
//! # Outcomes
//! | outcome | cause |
//! |---|---|
//! | all nodes take part, with all rows, and work | the cluster survives all faults |
//! | none; processes find the cluster cut short | the founder ended before all rows were loaded |
//! | none; processes are refused, as their nodes are known | all ended later, or came late |
//!
//! Other outcomes are violations (I211). In the last case no node remains to settle the leftovers
//! of dead nodes: at least one compute node must survive, or else an operator ends the cluster. The
//! judge recognises the case by the simulator's faults and the errors of processes, not by the
//! membership: every node was struck down or gave up unanswered, none took part when the faults
//! ended, and none has since.
//!
//! A lost memory node changes little: every row has another copy. But if all compute nodes have
//! ended, no node remains to give the memory node up, and processes may be told that it does not
//! answer.
//!
//! # What it is not
//! A check of the rows that a node finds when it begins to take part; [`super::WHOLE`] covers the
//! rows.

use std::rc::Rc;

use lotus::{Authority as _, Cluster, ClusterError, Data, Isolation, Transaction, TxnError};

use super::{ACCOUNTS, PlaceState, ROWS, STARTED, STRUCK, StartTest, WHOLE, rows};

/// Observations after the last fault.
pub(super) struct AfterFaults {
    /// Whether a node took part when the calm began, or has since.
    lived: bool,
    /// Whether every start since then was refused because the node had been started before, or
    /// failed because a lost memory node did not answer.
    refuses: bool,
}

impl AfterFaults {
    /// Begins the calm, while no process is starting.
    pub(super) fn begin(places: &[PlaceState]) -> Self {
        Self { lived: places.iter().any(|place| place.cluster().is_some()), refuses: true }
    }

    /// Records the result of a process's start.
    pub(super) fn note(
        &mut self,
        process: usize,
        outcome: &Result<Rc<Cluster>, ClusterError>,
        has_lost_memory: bool,
    ) {
        let refused = |error: &ClusterError| match error {
            ClusterError::JoinedBefore { node } => *node == process,
            ClusterError::Unreachable(_) => has_lost_memory,
            _ => false,
        };
        self.lived |= outcome.is_ok();
        self.refuses &= outcome.as_ref().is_err_and(refused);
    }
}

impl StartTest {
    /// Records the violations of this start, once every node is decided or the last start is over.
    pub(super) fn judge(&self) {
        // No more faults happen from here on.
        self.starts.set(STRUCK);
        if let Some(failure) = self.shared_machines.failure() {
            return self.violated(STARTED, failure.to_string());
        }
        let places = self.places.take();
        let out = |place: &usize| !places[*place].is_decided();
        let out: Vec<usize> = (0..places.len()).filter(out).collect();
        if !out.is_empty() {
            self.is_lost.set(out.len() == places.len() && self.all_have_ended());
            if !self.is_lost.get() {
                self.violated(STARTED, format!("{out:?} do not, started again and again"));
            }
            return;
        }
        let up: Vec<_> = places.iter().filter_map(PlaceState::cluster).collect();
        if up.is_empty() {
            if !self.is_struck.get() {
                self.violated(STARTED, "it was cut short, and nothing went wrong".to_owned());
            }
            return;
        }
        if up.len() < places.len() {
            let (up, all) = (up.len(), places.len());
            return self
                .violated(STARTED, format!("{up} of {all} take part, others were cut short"));
        }
        self.try_out(&up);
    }

    /// Whether all rows were loaded and every node ended, with later processes refused.
    fn all_have_ended(&self) -> bool {
        let refused = self.calm.borrow().as_ref().is_some_and(|calm| !calm.lived && calm.refuses);
        let ended = self.ended.borrow();
        let mut ended = ended.iter().enumerate();
        let ended = ended.all(|(place, ended)| *ended || self.did_not_come(place));
        refused && ended && matches!(Data::read(&*self.store), Ok(Data::Loaded))
    }

    /// Whether the other nodes had stopped waiting for the first process of a node.
    fn did_not_come(&self, place: usize) -> bool {
        let word = self.store.read(&format!("joined/{place}"));
        word.is_ok_and(|word| word.is_some_and(|word| word.value == b"nobody"))
    }

    /// Checks that the cluster works when all nodes take part.
    fn try_out(&self, up: &[&Cluster]) {
        for (node, cluster) in up.iter().enumerate() {
            let added = (0..ROWS).try_for_each(|row| add_one(cluster, row));
            let settled = added.and_then(|()| cluster.settle());
            if let Err(error) = settled {
                self.violated(STARTED, format!("compute node {node} does not work: {error}"));
            }
            let found = rows(cluster);
            if !matches!(found, Ok(ROWS)) {
                self.violated(WHOLE, format!("compute node {node} finds {found:?} in the end"));
            }
        }
        for cluster in up {
            let findings = cluster.audit().and_then(|mut all| {
                all.extend(cluster.inspect()?);
                Ok(all)
            });
            match findings {
                Ok(all) => all.into_iter().filter(|finding| !finding.passed).for_each(|finding| {
                    self.violated(finding.name, finding.detail);
                }),
                Err(error) => self.violated(STARTED, error.to_string()),
            }
        }
    }
}

fn add_one(cluster: &Cluster, row: u64) -> Result<(), TxnError> {
    let table = cluster.table(&ACCOUNTS.name).ok_or(TxnError::Timeout)?;
    let added = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        let item = txn.add_rw(table, row)?;
        txn.execute().await?;
        let mut value = [0; 8];
        value.copy_from_slice(txn.value(item).expect("it is loaded"));
        txn.put(item, &(u64::from_le_bytes(value) + 1).to_le_bytes())?;
        Ok(())
    });
    cluster.wait(added).map(drop)
}
