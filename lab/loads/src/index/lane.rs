//! Work of each lane of a load on the tree: the lane's clients, and writing the first pages.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use lotus_fabric::env::SmallRng;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId};
use lotus_fabric::lane::Lane;
use lotus_fabric::transport::{Fabric, FabricError};
use lotus_locks::LockSystem as _;
use lotus_locksystems::local::Access;
use rand::Rng;

use super::audit::{self, Parts};
use super::ledger::Ledger;
use super::page::Image;
use super::tree::{Failed, Places, Tree, add_words};
use super::{Shape, Shared, TreeTally};
use crate::lanes::{LaneClient, Load, Mark, Work, nanos};

/// Number of pages written in one batch.
const PUT: usize = 16;
/// Lane that writes the first pages.
const LOADING: LaneId = LaneId(1);

/// Opens the lane that writes the first pages.
pub(super) fn open(
    executor: &mut Executor,
    fabric: &dyn Fabric,
    node: NodeId,
) -> Result<Lane, FabricError> {
    let at = Endpoint { node, lane: LOADING };
    let transport = fabric.open_lane(at, Epoch(1), executor.handle().waker())?;
    let lane = Lane::new(at, executor.handle().clone(), transport);
    executor.add_driver(lane.driver());
    Ok(lane)
}

/// Writes the first pages, and the word that counts pages.
pub(super) async fn put_pages(
    lane: &Lane,
    places: Places,
    pages: &[(u64, Image)],
) -> Result<(), String> {
    for some in pages.chunks(PUT) {
        let mut batch = lane.batch();
        for (number, image) in some {
            add_words(&mut batch, places.page(*number), image);
        }
        batch.write_word(places.count, pages.len() as u64);
        let done = batch.post().await;
        done.map_err(|error| format!("the tree cannot be written: {error}"))?;
    }
    Ok(())
}

/// A lane that searches and updates the tree.
pub(super) struct Visits<A: Access> {
    context: LaneClient<A>,
    tree: Tree<A>,
    shared: Arc<Shared>,
}

impl Load for Arc<Shared> {
    type Tally = TreeTally;
    type Work<A: Access> = Visits<A>;

    fn work<A: Access>(&self, context: LaneClient<A>) -> Visits<A> {
        Visits::new(context, Self::clone(self))
    }
}

impl<A: Access> Work for Visits<A> {
    type Access = A;
    type Tally = TreeTally;
    type Failed = Failed;

    fn context(&self) -> &LaneClient<A> {
        &self.context
    }

    /// Searches or updates one key.
    async fn operate(&self, rng: &mut SmallRng, tally: &RefCell<TreeTally>) -> Result<(), Failed> {
        let (shared, executor) = (&*self.shared, self.context.executor());
        let key = shared.chooser.draw(rng);
        let updates = rng.random_bool(shared.load.update_ratio);
        let began = executor.now();
        match updates {
            true => self.update(key).await?,
            false => self.search(key).await?,
        }
        let ended = executor.now();
        self.context.tick(began, ended);
        if began >= self.context.times().counts_from {
            let (tally, ns) = (&mut *tally.borrow_mut(), nanos(began, ended));
            tally.operations += 1;
            tally.operation_ns.saturating_record(ns);
            let of_kind = if updates { &mut tally.update_ns } else { &mut tally.search_ns };
            of_kind.saturating_record(ns);
        }
        Ok(())
    }

    fn mark(self: &Rc<Self>, mark: Mark, tally: &mut TreeTally) {
        let counts = self.tree.counts();
        match mark {
            Mark::Begin => {}
            // Between `From` and `To`, holds the counts that are subtracted at `To`.
            Mark::From => tally.tree = counts,
            Mark::To => tally.tree = counts - tally.tree,
            Mark::End => tally.tree.mended = counts.mended,
        }
    }
}

impl<A: Access> Visits<A> {
    pub(super) fn new(context: LaneClient<A>, shared: Arc<Shared>) -> Self {
        let tree = Tree::new(context.lane().clone(), context.client().clone(), shared.places);
        Self { context, tree, shared }
    }

    async fn update(&self, key: u64) -> Result<(), Failed> {
        let Some(ledger) = &self.shared.ledger else { return self.tree.update(key, || 1).await };
        let drawn = Cell::new(0);
        let value = || {
            drawn.set(ledger.begin(key));
            drawn.get()
        };
        self.tree.update(key, value).await?;
        ledger.end(key, drawn.get());
        Ok(())
    }

    async fn search(&self, key: u64) -> Result<(), Failed> {
        let ledger = self.shared.ledger.as_ref();
        let oldest = ledger.map(|ledger| ledger.oldest(key));
        let found = self.tree.search(key).await?;
        if let Some((ledger, oldest)) = ledger.zip(oldest) {
            ledger.found(key, oldest, found);
        }
        Ok(())
    }

    /// Audits the pages and locks; returns the findings, or a sentence if the tree cannot be read.
    pub(super) async fn audit(self) -> Result<(Shape, Vec<String>), String> {
        let places = self.shared.places;
        let parts = Parts::read(self.context.lane(), places).await?;
        let is_free = |words| self.context.client().client().system().is_unused(words);
        let ledger = self.shared.ledger.as_ref();
        let keys = ledger.map_or(0, Ledger::keys);
        let may_have = |key, value| ledger.is_none_or(|ledger| ledger.may_have(key, value));
        Ok(audit::judge(&parts, is_free, keys, may_have))
    }

    /// See [`Tree::stop_within_split`].
    #[cfg(test)]
    pub(super) async fn stop_within_split(&self) -> Result<(), Failed> {
        self.tree.stop_within_split(0).await
    }

    /// Updates all keys, and searches them. For tests, after lanes were
    /// lost: each lock has to become free, and each page whole.
    #[cfg(test)]
    pub(super) async fn visit_all(&self) -> Result<super::TreeCounts, Failed> {
        for key in 0..self.shared.load.keys {
            self.update(key).await?;
            self.search(key).await?;
        }
        self.context.client().client().quiet().await;
        Ok(self.tree.counts())
    }
}
