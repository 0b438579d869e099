//! Holders and waiters of a lock.

use std::collections::VecDeque;

use lotus_locks::word::Mode;

use super::name::Asker;

/// Order of grants for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// In the order of arrival.
    Arrival,
    /// In the order of arrival, but readers pass waiting writers while readers hold the lock. The
    /// number limits the readers that pass a writer (DSLR §6.4 has 10).
    ReadersPass(u32),
    /// No request waits: a request that cannot hold the lock at once is refused.
    NoQueue,
}

/// A request that holds the lock or waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueuePlace {
    pub(super) asker: Asker,
    pub(super) is_reader: bool,
    /// Number of readers that have passed the request.
    passed: u32,
}

/// Result of a new request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    Held,
    Waits,
    Refused,
}

/// Holders and waiters of a lock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct LockQueue {
    holders: Vec<QueuePlace>,
    waiting: VecDeque<QueuePlace>,
}

impl LockQueue {
    pub(super) fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiting.is_empty()
    }

    /// Number of holders and waiters.
    pub(super) fn len(&self) -> usize {
        self.holders.len() + self.waiting.len()
    }

    pub(super) fn is_held_by(&self, asker: Asker) -> bool {
        self.holders.iter().any(|place| place.asker == asker)
    }

    /// Adds a request that is not in the queue yet.
    pub(super) fn enter(&mut self, asker: Asker, mode: Mode, waits: bool, order: Order) -> Entry {
        self.waiting.push_back(QueuePlace { asker, is_reader: mode == Mode::Shared, passed: 0 });
        let mut is_held = false;
        self.promote(order, |granted| is_held |= granted == asker);
        if is_held {
            return Entry::Held;
        }
        if waits && order != Order::NoQueue {
            return Entry::Waits;
        }
        self.waiting.pop_back();
        Entry::Refused
    }

    /// Takes a request out, and calls `granted` for every new holder.
    pub(super) fn leave(&mut self, asker: Asker, order: Order, granted: impl FnMut(Asker)) {
        self.holders.retain(|place| place.asker != asker);
        self.waiting.retain(|place| place.asker != asker);
        self.promote(order, granted);
    }

    /// Whether a request is compatible with the current holders.
    fn fits(&self, place: &QueuePlace) -> bool {
        match self.holders.first() {
            None => true,
            Some(holder) => holder.is_reader && place.is_reader,
        }
    }

    /// Grants the lock to the requests next in turn.
    fn promote(&mut self, order: Order, mut granted: impl FnMut(Asker)) {
        while let Some(next) = self.waiting.front().copied().filter(|next| self.fits(next)) {
            self.waiting.pop_front();
            self.holders.push(next);
            granted(next.asker);
        }
        let Order::ReadersPass(most) = order else { return };
        while let Some(index) = self.passer(most) {
            self.waiting.iter_mut().take(index).for_each(|writer| writer.passed += 1);
            let Some(reader) = self.waiting.remove(index) else { return };
            self.holders.push(reader);
            granted(reader.asker);
        }
    }

    /// The first waiting reader, if allowed to pass the earlier writers now.
    fn passer(&self, most: u32) -> Option<usize> {
        let reader = self.waiting.iter().position(|place| place.is_reader)?;
        let mut before = self.waiting.iter().take(reader);
        let may_pass = self.fits(&self.waiting[reader]) && before.all(|one| one.passed < most);
        may_pass.then_some(reader)
    }
}
