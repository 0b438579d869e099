//! What each lane of a load on the tree does: its clients; the first pages.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId};
use lotus_fabric::lane::Lane;
use lotus_fabric::rpc::Service;
use lotus_fabric::transport::{Fabric, FabricError};
use lotus_locks::{Client, Identity, LockSystem, Member, Roster};
use rand::Rng;

use super::audit::{self, Parts};
use super::ledger::Ledger;
use super::page::Image;
use super::tree::{Failed, Places, Tree, add_words};
use super::{Shape, Shared, Times, TreeTally};

/// Service by which lanes tell one another of locks.
const SERVICE: Service = Service(0);
/// Time after which a lane looks again whether the run has failed.
const LOOK: Duration = Duration::from_millis(10);
/// Pages that are written in one batch.
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

/// Writes the first pages, and their number.
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

/// A lane.
pub(super) struct Seat<S: LockSystem, F> {
    lane: Lane,
    client: Client<S>,
    tree: Tree<S>,
    shared: Arc<Shared<F>>,
    /// Number of the lane among all that have clients.
    index: usize,
}

impl<S: LockSystem, F: Fn() -> S + Send + Sync + 'static> Seat<S, F> {
    pub(super) fn open(
        executor: &mut Executor,
        fabric: &dyn Fabric,
        member: Member,
        lane: u16,
        roster: Roster,
        shared: Arc<Shared<F>>,
    ) -> Result<Self, FabricError> {
        let index = usize::from(member.node.0 - 1) * usize::from(shared.load.threads);
        let index = index + usize::from(lane);
        let identity = Identity { member, peers: Rc::new(roster), service: SERVICE };
        let (client, lane) = Client::open((shared.make)(), executor, fabric, lane, identity)?;
        let tree = Tree::new(lane.clone(), client.clone(), shared.places);
        Ok(Self { lane, client, tree, shared, index })
    }

    pub(super) fn client(&self) -> Client<S> {
        self.client.clone()
    }

    /// Whether something outside of the run has made it worthless. Then nothing is waited for: a
    /// client may ask for ever what is never answered.
    fn has_failed(&self) -> bool {
        self.shared.progress.failure().is_some()
    }

    fn is_over(&self) -> bool {
        self.has_failed() || self.shared.progress.is_complete(self.index)
    }

    /// Waits for a time, or until the run is over.
    async fn wait_until(&self, time: Nanos) {
        let executor = self.lane.executor();
        while executor.now() < time && !self.is_over() {
            executor.sleep_until(time.min(executor.now().after(LOOK))).await;
        }
    }

    /// Runs the lane's clients until the time is over, or the run has failed.
    pub(super) async fn run(self) -> TreeTally {
        let executor = self.lane.executor().clone();
        let Times { begins, counts_from, ends } = self.shared.times;
        let clients = self.shared.load.coroutines;
        let seat = Rc::new(self);
        let tally = Rc::new(RefCell::new(TreeTally::default()));
        let (running, is_quiet) = (Rc::new(Cell::new(clients)), Rc::new(Cell::new(false)));
        seat.wait_until(begins).await;
        for number in 0..clients {
            let (seat, tally) = (Rc::clone(&seat), Rc::clone(&tally));
            let (running, is_quiet) = (Rc::clone(&running), Rc::clone(&is_quiet));
            executor.spawn(async move {
                seat.run_client(number, &tally).await;
                running.set(running.get() - 1);
                if running.get() == 0 {
                    // The last one sees to it that the lane has nothing outstanding.
                    seat.client.quiet().await;
                    is_quiet.set(true);
                }
            });
        }
        seat.wait_until(counts_from).await;
        let now = || (seat.client.counts(), seat.lane.counters(), seat.tree.counts());
        let before = now();
        seat.wait_until(ends).await;
        let after = now();
        while !is_quiet.get() && !seat.has_failed() {
            executor.sleep(Duration::from_micros(20)).await;
        }
        let mut tally = tally.take();
        tally.counts = after.0 - before.0;
        tally.verbs = after.1 - &before.1;
        tally.tree = after.2 - before.2;
        tally.tree.mended = seat.tree.counts().mended;
        tally
    }

    /// Runs one client until the time is over.
    async fn run_client(&self, number: u16, tally: &RefCell<TreeTally>) {
        let at = self.lane.at();
        let stream = [at.node.0, at.lane.0, number].into_iter();
        let stream = stream.fold(0, |stream, part| stream << 16 | u64::from(part));
        let mut rng = self.lane.executor().env().rng(stream);
        while self.lane.executor().now() < self.shared.times.ends && !self.is_over() {
            if let Err(why) = self.operate(&mut rng, tally).await {
                tally.borrow_mut().ended = Some(why.to_string());
                break;
            }
        }
    }

    /// Searches a key, or updates it.
    async fn operate(&self, rng: &mut SmallRng, tally: &RefCell<TreeTally>) -> Result<(), Failed> {
        let (shared, executor) = (&*self.shared, self.lane.executor());
        let key = shared.chooser.draw(rng);
        let updates = rng.random_bool(shared.load.update_ratio);
        let began = executor.now();
        match updates {
            true => self.update(key).await?,
            false => self.search(key).await?,
        }
        let ended = executor.now();
        shared.progress.tick(self.index, ended.0, true);
        if began >= shared.times.counts_from {
            let tally = &mut *tally.borrow_mut();
            let ns = ended.since(began).as_nanos() as u64;
            tally.operations += 1;
            tally.operation_ns.saturating_record(ns);
            let of_kind = if updates { &mut tally.update_ns } else { &mut tally.search_ns };
            of_kind.saturating_record(ns);
        }
        Ok(())
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

    /// Looks at all pages and locks; returns what is wrong, or a sentence if they cannot be read.
    pub(super) async fn audit(self) -> Result<(Shape, Vec<String>), String> {
        let places = self.shared.places;
        let parts = Parts::read(&self.lane, places).await?;
        let is_free = |words| self.client.system().is_unused(words);
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
        self.client.quiet().await;
        Ok(self.tree.counts())
    }
}
