//! Searches and updates of a tree in remote memory, by the verbs of one lane.
//!
//! # Searches
//! Inner nodes are remembered, and may be out of date. A page that was split has given keys to its
//! right sibling, and shows the split by its high fence; the search goes to the sibling, and
//! forgets the node that named the wrong page (a B-link tree, as in Sherman). Leaves are READ each
//! time, without a lock, until the READ shows a [whole](Leaf::read) page. The result is the state
//! of the key at some time during the READ:
//! * The words of the page were all of one version, so the page was responsible for the key, and
//!   each slot shows its state at some time during the READ.
//! * No other page was responsible at that time: a key is given to a new page before the old page
//!   shows the split, and the new page is reached, read and locked only through pages that show the
//!   split. The old page is locked until all its words are written.
//!
//! # Updates
//! An update locks the leaf, READs it, WRITEs an entry, and releases the lock behind the WRITE,
//! without waiting for the answer where the lock system [allows it](Access::RELEASES_IN_ORDER). A
//! full leaf is split: the new page is written, then the old page. Only then, with no lock held, is
//! the new page added to the level above, in the same way. So each lane holds one lock at a time.
//!
//! # Lost lanes
//! With fenced locks, the lock of a lost lane becomes free when no verb of the lane can land any
//! more. The next holder finds the page whole, or makes the page whole ([`page::mended`]); the lost
//! lane's update is then either made or not. A page that no level above names yet is found through
//! its sibling; an update that comes through the sibling, and has just read the parent of the leaf,
//! adds the page to the level above. Pages that were drawn but not written are lost.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::lane::{Batch, Completed, Lane};
use lotus_fabric::verbs::VerbError;
use lotus_locks::{Limits, LockSpace, Mode, NotHeld};
use lotus_locksystems::local::Access;

use super::inner::{Added, InnerPage, ROOT, Toward};
use super::leaf::{Leaf, Piece, Put};
use super::page::{self, BYTES, Image, WORDS};

/// Torn READs after which a search takes the lock of the page: perhaps a lost holder has left the
/// page torn.
const PATIENCE: u64 = 64;
/// Time after which a client retries a lock that was being reset.
const AGAIN: Duration = Duration::from_micros(10);

/// Places of pages and their locks on a memory node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Objects, each with a lock, a page, and the page's spare.
    pub(super) space: LockSpace,
    /// Bytes of a lock.
    pub(super) lock_bytes: u64,
    /// Word that counts the pages.
    pub(super) count: RemoteAddr,
}

impl Places {
    /// Bytes of an object behind its lock.
    pub(super) const BEHIND: u64 = 2 * BYTES as u64;

    pub(super) fn lock(&self, number: u64) -> RemoteAddr {
        self.space.object(number)
    }

    pub(super) fn page(&self, number: u64) -> RemoteAddr {
        self.lock(number).plus(self.lock_bytes)
    }

    fn spare(&self, number: u64) -> RemoteAddr {
        self.page(number).plus(BYTES as u64)
    }
}

/// Reason why a search or an update did not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("{0}")]
    Lock(#[from] NotHeld),
    #[error("the memory node: {0}")]
    Verb(VerbError),
    #[error("page {0} cannot be read: neither it nor its spare is whole")]
    Lost(u64),
    #[error("the tree has no room for another page")]
    Full,
}

/// Counts of the lanes' work beyond the one READ or the one WRITE of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TreeCounts {
    /// READs of torn pages.
    pub torn: u64,
    /// READs of inner nodes that were not remembered.
    pub inner_reads: u64,
    /// Moves to a right sibling, because a page had been split.
    pub hops: u64,
    /// Pages that were split.
    pub splits: u64,
    /// Pages that a lost lane had left torn.
    pub mended: u64,
    /// Locks lost before their release, which happens only with locks as published: writes under
    /// these locks may be lost too.
    pub lost: u64,
}

impl TreeCounts {
    fn each(&mut self, other: Self, of: impl Fn(&mut u64, u64)) {
        of(&mut self.torn, other.torn);
        of(&mut self.inner_reads, other.inner_reads);
        of(&mut self.hops, other.hops);
        of(&mut self.splits, other.splits);
        of(&mut self.mended, other.mended);
        of(&mut self.lost, other.lost);
    }
}

impl std::ops::AddAssign for TreeCounts {
    fn add_assign(&mut self, other: Self) {
        self.each(other, |count, more| *count += more);
    }
}

impl std::ops::Sub for TreeCounts {
    type Output = Self;

    /// Counts since the earlier counts `earlier`.
    fn sub(mut self, earlier: Self) -> Self {
        self.each(earlier, |count, less| *count -= less);
        self
    }
}

/// The page that inner nodes name for a key.
#[derive(Clone, Copy, Debug)]
struct Way {
    number: u64,
    /// The node that names the page, or that named the first of the pages on the way to the right.
    parent: Option<u64>,
    /// Whether the parent was read just now.
    is_new: bool,
}

/// Result of locking a page for a key: the locked page, or the sibling to the right that has the
/// key.
enum Locked<A: Access> {
    Here(A::Held, Box<Image>),
    Right(u64),
}

/// A lane's use of the tree.
pub(super) struct Tree<A: Access> {
    lane: Lane,
    client: A,
    places: Places,
    inner: RefCell<HashMap<u64, Rc<InnerPage>>>,
    counts: Cell<TreeCounts>,
}

impl<A: Access> Tree<A> {
    pub(super) fn new(lane: Lane, client: A, places: Places) -> Self {
        Self { lane, client, places, inner: RefCell::default(), counts: Cell::default() }
    }

    pub(super) fn counts(&self) -> TreeCounts {
        self.counts.get()
    }

    fn count(&self, one: impl FnOnce(&mut TreeCounts) -> &mut u64) {
        let mut counts = self.counts.get();
        *one(&mut counts) += 1;
        self.counts.set(counts);
    }

    /// Returns the value of a key.
    pub(super) async fn search(&self, key: u64) -> Result<Option<u64>, Failed> {
        let mut way = self.descend(key, 0).await?;
        loop {
            let look = |words: &[u64]| {
                let leaf = Leaf::read(words)?;
                let right = leaf.head().is_left_of(key).then(|| leaf.head().sibling).flatten();
                Some(right.map_or_else(|| Ok(leaf.get(key)), Err))
            };
            match self.read(way.number, look).await? {
                Ok(found) => return Ok(found),
                Err(right) => self.hop(&mut way, right),
            }
        }
    }

    /// Sets a key to the value that `value` draws while the lock of the key's leaf is held.
    pub(super) async fn update(&self, key: u64, value: impl FnOnce() -> u64) -> Result<(), Failed> {
        let mut way = self.descend(key, 0).await?;
        let first = way.number;
        let (hold, image) = loop {
            match self.lock_for(way.number, key).await? {
                Locked::Here(hold, image) => break (hold, image),
                Locked::Right(right) => self.hop(&mut way, right),
            }
        };
        let leaf = Leaf::read(&*image).ok_or(Failed::Lost(way.number))?;
        let value = value();
        let mut batch = self.lane.batch();
        let page = self.places.page(way.number);
        let mut add = |pieces: &[Piece]| {
            for piece in pieces {
                let words = &piece.words[..piece.len];
                add_words(&mut batch, page.plus(8 * piece.at as u64), words);
            }
        };
        match leaf.put(key, value) {
            Put::Replace(piece) => add(&[piece]),
            Put::Add(pieces) => add(&pieces),
            Put::Full => {
                let right = self.fresh().await?;
                let split = leaf.split(key, value, right);
                add_words(&mut batch, self.places.page(right), &split.right);
                self.rewrite(&mut batch, way.number, &split.left);
                self.write_and_release(batch, hold).await?;
                self.count(|counts| &mut counts.splits);
                return self.add(1, split.separator, right).await;
            }
        }
        self.write_and_release(batch, hold).await?;
        if way.number != first && way.is_new {
            // The split of the page is still under way, or was never completed.
            self.add(1, leaf.head().low, way.number).await?;
        }
        Ok(())
    }

    /// Names a page in the level above, which is `level`.
    async fn add(&self, mut level: u8, mut key: u64, mut child: u64) -> Result<(), Failed> {
        loop {
            let mut way = self.descend(key, level).await?;
            let (hold, image) = loop {
                match self.lock_for(way.number, key).await? {
                    Locked::Here(hold, image) => break (hold, image),
                    Locked::Right(right) => self.hop(&mut way, right),
                }
            };
            let number = way.number;
            self.forget(Some(number));
            let node = InnerPage::read(&*image).ok_or(Failed::Lost(number))?;
            if node.level() != level {
                // The root has grown since it was remembered.
                self.release(hold).await?;
                continue;
            }
            let mut batch = self.lane.batch();
            let too_large = match node.add(key, child) {
                Added::Already => return self.release(hold).await,
                Added::Fits(image) => {
                    self.rewrite(&mut batch, number, &image);
                    return self.write_and_release(batch, hold).await;
                }
                Added::TooLarge(bytes) => bytes,
            };
            self.count(|counts| &mut counts.splits);
            let right = self.fresh().await?;
            if number == ROOT {
                let left = self.fresh().await?;
                let [lower, upper, root] = node.grow(&too_large, key, [left, right]);
                add_words(&mut batch, self.places.page(left), &lower);
                add_words(&mut batch, self.places.page(right), &upper);
                self.rewrite(&mut batch, number, &root);
                return self.write_and_release(batch, hold).await;
            }
            let split = node.split(&too_large, key, right);
            add_words(&mut batch, self.places.page(right), &split.right);
            self.rewrite(&mut batch, number, &split.left);
            self.write_and_release(batch, hold).await?;
            (level, key, child) = (level + 1, split.separator, right);
        }
    }

    /// The page of a level that inner nodes name for a key, or a page to its left.
    async fn descend(&self, key: u64, level: u8) -> Result<Way, Failed> {
        let (mut number, mut parent) = (ROOT, None);
        loop {
            let (node, is_new) = self.inner(number).await?;
            if node.level() < level {
                // The root has grown since it was remembered.
                self.forget(Some(number));
                (number, parent) = (ROOT, None);
                continue;
            }
            if node.level() == level {
                return Ok(Way { number, parent, is_new });
            }
            match node.next(key) {
                Toward::Down(child) if node.level() == level + 1 => {
                    return Ok(Way { number: child, parent: Some(number), is_new });
                }
                Toward::Down(child) => (number, parent) = (child, Some(number)),
                Toward::Right(right) => {
                    self.count(|counts| &mut counts.hops);
                    self.forget(parent);
                    number = right;
                }
            }
        }
    }

    /// Goes on to the page on the right, and forgets the node that did not name this page.
    fn hop(&self, way: &mut Way, right: u64) {
        self.count(|counts| &mut counts.hops);
        self.forget(way.parent);
        way.number = right;
    }

    fn forget(&self, number: Option<u64>) {
        if let Some(number) = number {
            self.inner.borrow_mut().remove(&number);
        }
    }

    /// Returns an inner node, remembered or read, and whether it was read.
    async fn inner(&self, number: u64) -> Result<(Rc<InnerPage>, bool), Failed> {
        if let Some(known) = self.inner.borrow().get(&number) {
            return Ok((Rc::clone(known), false));
        }
        self.count(|counts| &mut counts.inner_reads);
        let node = Rc::new(self.read(number, InnerPage::read).await?);
        self.inner.borrow_mut().insert(number, Rc::clone(&node));
        Ok((node, true))
    }

    /// Reads a page without its lock until `view` finds the page whole.
    async fn read<T>(&self, number: u64, view: impl Fn(&[u64]) -> Option<T>) -> Result<T, Failed> {
        for tries in 1.. {
            let mut batch = self.lane.batch();
            let buffer = batch.read(self.places.page(number), BYTES);
            if let Some(found) = view(self.post(batch).await?.words(buffer)) {
                return Ok(found);
            }
            self.count(|counts| &mut counts.torn);
            if tries % PATIENCE == 0 {
                let hold = self.lock(number).await?;
                let image = self.read_locked(number).await?;
                self.release(hold).await?;
                return view(&*image).ok_or(Failed::Lost(number));
            }
        }
        unreachable!("tries do not end")
    }

    async fn lock(&self, number: u64) -> Result<A::Held, Failed> {
        loop {
            let lock = self.places.lock(number);
            match self.client.acquire(lock, Mode::Exclusive, Limits::PATIENT).await {
                Err(NotHeld::Reset) => self.lane.executor().sleep(AGAIN).await,
                acquired => return Ok(acquired?),
            }
        }
    }

    async fn release(&self, hold: A::Held) -> Result<(), Failed> {
        let released = self.client.release(hold).await;
        self.released(released)
    }

    /// Counts a lock that was lost before its release.
    fn released(&self, released: Result<(), NotHeld>) -> Result<(), Failed> {
        match released {
            Err(NotHeld::Reset) => {
                self.count(|counts| &mut counts.lost);
                Ok(())
            }
            released => Ok(released?),
        }
    }

    /// Locks and reads a page, unless the key belongs to a page on the right.
    async fn lock_for(&self, number: u64, key: u64) -> Result<Locked<A>, Failed> {
        let hold = self.lock(number).await?;
        let image = self.read_locked(number).await?;
        let (head, _) = page::read_head(&*image).ok_or(Failed::Lost(number))?;
        match head.sibling.filter(|_| head.is_left_of(key)) {
            Some(right) => {
                self.release(hold).await?;
                Ok(Locked::Right(right))
            }
            None => Ok(Locked::Here(hold, image)),
        }
    }

    /// Reads a page under its lock, and repairs the page if its last holder was lost.
    async fn read_locked(&self, number: u64) -> Result<Box<Image>, Failed> {
        let mut image = Box::new([0; WORDS]);
        let mut batch = self.lane.batch();
        // The front of the spare follows.
        let buffer = batch.read(self.places.page(number), BYTES + 8);
        let done = self.post(batch).await?;
        let words = done.words(buffer);
        image.copy_from_slice(&words[..WORDS]);
        if words[WORDS] == 0 && page::is_whole(words) {
            return Ok(image);
        }
        drop(done);
        let mut batch = self.lane.batch();
        let buffer = batch.read(self.places.page(number), 2 * BYTES);
        let done = self.post(batch).await?;
        let (now, spare) = done.words(buffer).split_at(WORDS);
        match page::mended(now, spare).map_err(|page::Lost| Failed::Lost(number))? {
            None => image.copy_from_slice(now),
            Some(mended) => {
                drop(done);
                self.count(|counts| &mut counts.mended);
                let mut batch = self.lane.batch();
                add_words(&mut batch, self.places.page(number), &mended);
                batch.write_word(self.places.spare(number), 0);
                self.post(batch).await?;
                *image = mended;
            }
        }
        Ok(image)
    }

    /// Adds the verbs that overwrite a page.
    fn rewrite(&self, batch: &mut Batch, number: u64, image: &Image) {
        let buffer = batch.stage(BYTES);
        batch.words_mut(buffer).copy_from_slice(image);
        batch.write(self.places.spare(number), buffer);
        batch.write(self.places.page(number), buffer);
        batch.write_word(self.places.spare(number), 0);
    }

    /// Posts the WRITEs of a holder, and releases the lock behind the WRITEs.
    async fn write_and_release(&self, batch: Batch, hold: A::Held) -> Result<(), Failed> {
        if !A::RELEASES_IN_ORDER {
            // A dropped `hold` is released: see `post`.
            self.post(batch).await?;
            return self.release(hold).await;
        }
        let written = batch.post();
        let released = self.client.release(hold);
        // If the WRITEs fail, so does the release behind them, and the client repeats the release
        // after reconnecting. The next holder mends the page.
        let written = written.await;
        self.released(released.await)?;
        written.map(drop).map_err(|failed| Failed::Verb(failed.first().error))
    }

    /// Begins to split the leaf of a key, and stops when half of the page is written. For tests of
    /// what a lost lane has left.
    #[cfg(test)]
    pub(super) async fn stop_within_split(&self, key: u64) -> Result<(), Failed> {
        let number = self.descend(key, 0).await?.number;
        let Locked::Here(hold, image) = self.lock_for(number, key).await? else {
            return Err(Failed::Lost(number));
        };
        let leaf = Leaf::read(&*image).ok_or(Failed::Lost(number))?;
        let right = self.fresh().await?;
        let split = leaf.halves(leaf.entries().collect(), right);
        let mut batch = self.lane.batch();
        add_words(&mut batch, self.places.page(right), &split.right);
        add_words(&mut batch, self.places.spare(number), &split.left);
        add_words(&mut batch, self.places.page(number), &split.left[..WORDS / 2]);
        self.post(batch).await?;
        std::mem::forget(hold);
        std::future::pending().await
    }

    /// Draws the number of an unused page.
    async fn fresh(&self) -> Result<u64, Failed> {
        let mut batch = self.lane.batch();
        let buffer = batch.fetch_and_add(self.places.count, 1);
        let number = self.post(batch).await?.words(buffer)[0];
        if number < self.places.space.count() { Ok(number) } else { Err(Failed::Full) }
    }

    /// Posts verbs. If the verbs fail, none of them takes effect after reconnecting, and no verb
    /// releases a lock before that, so a holder may release its own lock.
    async fn post(&self, batch: Batch) -> Result<Completed, Failed> {
        let failed = match batch.post().await {
            Ok(done) => return Ok(done),
            Err(failed) => failed.first(),
        };
        // The error of reconnecting would say less than the error of the verb.
        let _ = self.lane.reconnect(failed.node).await;
        Err(Failed::Verb(failed.error))
    }
}

/// Adds a WRITE of `words`.
pub(super) fn add_words(batch: &mut Batch, at: RemoteAddr, words: &[u64]) {
    if let [word] = *words {
        return batch.write_word(at, word);
    }
    let buffer = batch.stage(8 * words.len());
    batch.words_mut(buffer).copy_from_slice(words);
    batch.write(at, buffer);
}
