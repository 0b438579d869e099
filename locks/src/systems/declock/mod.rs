//! `declock`: a queue beside the lock's header, and notices from each leaving holder to the next
//! (DecLock §4, cooperative queue-notify locking). The layout of the words is [`DeclockFields`].
//!
//! A request adds itself to the header. It holds the lock at once if the queue is empty, or if it
//! reads and the queue has only readers. Otherwise the request writes its name into an entry, and
//! waits for a notice. A release takes one round trip: the release takes the use off the header,
//! reads entries, and notifies the next waiters: a writer, or all readers before the first writer.
//! Entries that are not written yet are read again. So an uncontended use takes one verb and one
//! batch, a wait takes one more verb, and a hand-over takes a message.
//!
//! # Entries that a release reads
//! As published, a release reads all entries (DecLock §4.2): a queue has as many entries as there
//! are compute nodes, 8. With a longer queue, with a place for each client, a release would read
//! kilobytes. So a fenced release reads the [`WINDOW`] entries behind its own place, where the next
//! waiters are, and reads on if the window is not enough. A writer reads on as far as it has
//! readers to notify. A reader, which may leave out of turn, reads on over the whole queue by the
//! header found.
//!
//! # Turns
//! A turn is in the words ([`DeclockFields::is_turn`]). A notice only announces the turn sooner. So
//! notices are sent once, and waiters look at the words themselves, after 2 ms, and then less and
//! less often. A release does not look for ever for an unwritten entry either: the entry's waiter
//! looks for itself, and if the waiter was lost, a reset is due.
//!
//! # Queues that are full
//! A request that finds no room, or that comes on a last lap, writes no entry, because the entry
//! would belong to another request. The request's addition to the header stays until a reset. Until
//! the reset, the lane posts no further request for the lock: each request would add to the header,
//! and the fields hold only [`DeclockFields::most_requests`] requests.
//!
//! # As published, and fenced
//! As published, a request without room still writes its entry, over another request's entry. A
//! waiter without a notice for 50 ms has the lock reset, as does a release that finds an entry of a
//! later lap (DecLock §4.4). Such a reset does not wait for nodes that are taken for dead, and
//! frees the header by a WRITE ([`LockSystem::is_forced`]).

use std::time::Duration;

use lotus_sabotage::{Rule, broken};

use crate::contract::{
    Event, Guarantees, LockSystem, NotHeld, Notice, NoticeKind, Peer, Recovery, Request, Step,
    Verb, View, Waiter,
};
use crate::word::{Age, Arrived, DeclockFields, Head, Mode, QueueEntry, QueueHeader, QueuePart};

/// Bounds of the time after which a waiter looks at the words itself. The time doubles after a look
/// without progress of the queue's head.
const LOOK: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// Entries that a release reads with its own verb: a cache line.
const WINDOW: u32 = 8;
/// Entries that a writer's release reads at once if the window was not enough.
const MORE: u64 = 64;
/// Time after which a waiter has the lock reset, as published.
const TIMEOUT: Duration = Duration::from_millis(50);
/// Bounds of the time after which a release reads entries again. The time doubles from the third
/// search on.
const AGAIN: (Duration, Duration) = (Duration::from_micros(1), Duration::from_millis(1));
/// Limit of the number of searches: about five milliseconds.
const SEARCHES: u32 = 16;

/// The system. See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Declock {
    recovery: Recovery,
    fields: DeclockFields,
    /// Entries that a release reads first.
    window: u32,
}

impl Declock {
    /// Number of entries of a queue in DecLock §6.1: the number of compute nodes.
    pub const PUBLISHED_ENTRIES: u32 = 8;

    /// Creates the system, with this treatment of lost holders, and queues of `entries` entries.
    ///
    /// # Panics
    /// See [`DeclockFields::new`].
    pub const fn new(recovery: Recovery, entries: u32) -> Self {
        let window = match recovery {
            Recovery::Paper => entries,
            Recovery::Fenced => WINDOW,
        };
        Self { recovery, fields: DeclockFields::new(entries), window }
    }

    /// Returns the same system, whose releases read `window` entries at first.
    #[must_use]
    pub const fn reading(self, window: u32) -> Self {
        Self { window, ..self }
    }

    fn is_fenced(&self) -> bool {
        self.recovery == Recovery::Fenced
    }
}

/// State of a use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeclockUse {
    who: Waiter,
    mode: Mode,
    at: At,
    /// Generation and index of the use's place in the queue.
    generation: u64,
    index: u64,
    /// The first index whose entry the last verb reads, and the index behind the last.
    read: (u64, u64),
    /// Number of looks in vain, or of searches.
    tries: u32,
    /// The queue's head at the last look.
    seen: u64,
    /// Time of the request, if its node shares the lock among its clients.
    time: Option<u16>,
    /// Request time of the earliest waiter of a node other than the last addressee's. The last
    /// addressee is this use, or its successor.
    next_time: Option<u16>,
}

/// Bit of a payload beside a time.
const HAS_TIME: u64 = 1 << 16;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// The use adds itself, or is about to.
    Asking,
    /// The use writes its entry.
    Writing,
    /// The use waits for a notice.
    Waiting,
    /// The use looks at the words itself.
    Looking,
    Held,
    Leaving,
    /// The use reads the entries again, because it does not know the next waiter yet.
    Searching(Search),
    /// The use has notified a waiter, or is about to.
    Telling(Search),
}

/// State of a release's search: the next index without a notice, and the end of the queue and the
/// number of writers when the use left.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Search {
    next: u64,
    first: u64,
    end: u64,
    writers: u32,
}

impl DeclockUse {
    /// Whether the last verb has read the entries of these indexes.
    const fn has_read(&self, from: u64, to: u64) -> bool {
        self.read.0 <= from && to <= self.read.1
    }
}

/// Whether a request is from another node.
fn is_elsewhere(who: u32, node: u8) -> bool {
    Waiter::of(who).is_some_and(|who| who.node() != node)
}

impl Declock {
    fn ask(&self, of: &mut DeclockUse) -> Step {
        (of.at, of.tries) = (At::Asking, 0);
        Step::Post(Verb::Add(self.fields.asking(of.mode)))
    }

    /// Handles the answer of a request's first verb.
    #[inline]
    fn asked(&self, of: &mut DeclockUse, found: QueueHeader) -> Step {
        let most = self.fields.most_requests();
        // As published, a request of a node that was taken for dead may have come between.
        assert!(
            found.size < most || !self.is_fenced(),
            "more requests than a lock can count, {most}"
        );
        (of.generation, of.index, of.seen) = (found.generation, found.end(), found.head);
        let mut arrived = self.fields.arrived(found, of.mode);
        let writes_over = !self.is_fenced() || broken(Rule::OverflowWritesNothing);
        if arrived == Arrived::Full && writes_over && !self.fields.is_used_up(found) {
            arrived = self.fields.placed(found, of.mode);
        }
        match arrived {
            Arrived::Resetting => Step::Barred,
            Arrived::Full => Step::Full(found.generation),
            Arrived::Held => Self::hold(of),
            Arrived::Waits => self.write(of),
        }
    }

    const fn hold(of: &mut DeclockUse) -> Step {
        of.at = At::Held;
        Step::Held
    }

    fn write(&self, of: &mut DeclockUse) -> Step {
        of.at = At::Writing;
        let writes = of.mode != Mode::Shared;
        let entry = QueueEntry { writes, timestamp: of.time.unwrap_or(0), who: of.who.raw() };
        let word = self.fields.entry(of.index, entry);
        Step::Post(Verb::Write { entry: self.fields.place(of.index), word })
    }

    fn wait(&self, of: &mut DeclockUse) -> Step {
        of.at = At::Waiting;
        let (first, most) = if self.is_fenced() { LOOK } else { (TIMEOUT, TIMEOUT) };
        Step::Await(first.saturating_mul(1 << of.tries.min(10)).min(most))
    }

    /// Handles the end of a wait without a notice.
    fn look(&self, of: &mut DeclockUse) -> Step {
        if !self.is_fenced() {
            return Step::Full(of.generation);
        }
        of.at = At::Looking;
        Step::Post(Verb::ReadQueue(self.all(of)))
    }

    /// Handles a look of a waiter at the words.
    fn looked(&self, of: &mut DeclockUse, found: QueueHeader, entries: &[u64]) -> Step {
        if found.is_resetting || found.generation != of.generation {
            return Step::Barred;
        }
        if self.fields.is_turn(found, entries, of.index, of.mode) {
            return Self::hold(of);
        }
        of.tries = if found.head == of.seen { of.tries + 1 } else { 0 };
        of.seen = found.head;
        // The waiter's WRITE may have been lost, or overwritten by a WRITE for an earlier lap.
        match self.fields.age_of(entries, of.index) {
            Age::Current(entry) if entry.who == of.who.raw() => self.wait(of),
            _ => self.write(of),
        }
    }

    fn leave(&self, of: &mut DeclockUse) -> Step {
        (of.at, of.tries) = (At::Leaving, 0);
        let part = self.part(of, of.index + 1, u64::from(self.window));
        Step::Post(Verb::AddAndRead(self.fields.leaving(of.mode), part))
    }

    /// Returns the part of `most` entries from this index on, which the use is about to read; fewer
    /// where the array ends. All entries if the window covers the array, or if the use's node
    /// shares the lock and needs all times.
    fn part(&self, of: &mut DeclockUse, from: u64, most: u64) -> QueuePart {
        if self.window >= self.fields.capacity() || of.time.is_some() {
            return self.all(of);
        }
        let part = self.fields.part(from, most);
        of.read = (from, from + u64::from(part.count));
        part
    }

    fn all(&self, of: &mut DeclockUse) -> QueuePart {
        of.read = (0, u64::MAX);
        self.fields.all()
    }

    /// Handles the answer of a release.
    #[inline]
    fn left(&self, of: &mut DeclockUse, found: QueueHeader, entries: &[u64]) -> Step {
        let is_last = found.size <= 1;
        let holds_already = of.mode == Mode::Shared && found.writers == 0;
        if found.is_resetting || is_last || holds_already {
            return Step::Gone(Ok(()));
        }
        let first = found.head + 1;
        let search = Search { next: first, first, end: found.end(), writers: found.writers };
        self.search(of, search, found.head + 1, entries)
    }

    /// Handles the answer of a release that has read the entries again.
    fn searched(
        &self,
        of: &mut DeclockUse,
        search: Search,
        found: QueueHeader,
        entries: &[u64],
    ) -> Step {
        if found.is_resetting || found.generation != of.generation {
            return Step::Gone(Ok(()));
        }
        self.search(of, search, found.head, entries)
    }

    /// Looks for the next waiter to notify, with the head of a header that was read before the
    /// entries.
    fn search(&self, of: &mut DeclockUse, mut search: Search, head: u64, entries: &[u64]) -> Step {
        if of.mode == Mode::Shared {
            return self.search_writer(of, search, head, entries);
        }
        while search.next < search.end {
            if !of.has_read(search.next, search.next + 1) {
                return self.read_on(of, search);
            }
            match self.fields.age_of(entries, search.next) {
                // Readers before this writer were notified, and hold the lock.
                Age::Current(entry) if entry.writes && search.next > search.first => break,
                Age::Current(entry) => {
                    let turn = search.next;
                    search.next = if entry.writes { search.end } else { search.next + 1 };
                    return self.tell(of, search, turn, entry, entries);
                }
                Age::Newer if !self.is_fenced() => return Step::Full(of.generation),
                // The waiter's turn has come: the waiter has found out without a notice, or will.
                Age::Newer => search.next += 1,
                Age::Older if head > search.next => search.next += 1,
                Age::Older => return self.search_again(of, search),
            }
        }
        Step::Gone(Ok(()))
    }

    /// Search of a leaving reader: notifies the next use in the queue if it is a writer. The
    /// readers hold the lock already, and may have no entry, because they never had to wait.
    fn search_writer(
        &self,
        of: &mut DeclockUse,
        search: Search,
        head: u64,
        entries: &[u64],
    ) -> Step {
        let Search { first, end, writers, .. } = search;
        if !of.has_read(first, first + 1) {
            return self.read_on(of, search);
        }
        match self.fields.age_of(entries, first) {
            Age::Current(entry) if entry.writes => {
                self.tell(of, Search { next: end, ..search }, first, entry, entries)
            }
            Age::Newer if !self.is_fenced() => Step::Full(of.generation),
            Age::Current(_) | Age::Newer => Step::Gone(Ok(())),
            Age::Older if head > first => Step::Gone(Ok(())),
            Age::Older if !of.has_read(first, end) => self.read_on(of, search),
            Age::Older if self.fields.writers(entries, first, end) == writers => Step::Gone(Ok(())),
            Age::Older => self.search_again(of, search),
        }
    }

    fn search_again(&self, of: &mut DeclockUse, search: Search) -> Step {
        of.tries += 1;
        of.at = At::Searching(search);
        match of.tries {
            1 | 2 => self.read_on(of, search),
            SEARCHES.. => Step::Gone(Ok(())),
            tries => Step::Pause(AGAIN.0.saturating_mul(1 << (tries - 3)).min(AGAIN.1)),
        }
    }

    /// Reads the entries in which a search goes on.
    fn read_on(&self, of: &mut DeclockUse, search: Search) -> Step {
        of.at = At::Searching(search);
        let (next, left) = (search.next, search.end - search.next);
        let part = match of.mode {
            // A reader's search has to know all entries.
            Mode::Shared if self.fields.part(next, left).count < left as u32 => self.all(of),
            Mode::Shared => self.part(of, next, left),
            _ => self.part(of, next, left.min(MORE)),
        };
        Step::Post(Verb::ReadQueue(part))
    }

    fn tell(
        &self,
        of: &mut DeclockUse,
        search: Search,
        turn: u64,
        entry: QueueEntry,
        entries: &[u64],
    ) -> Step {
        of.at = At::Telling(search);
        match Waiter::of(entry.who) {
            Some(who) => {
                if of.time.is_some() {
                    let (behind, node) = (turn + 1..search.end, who.node());
                    let is_other = |who| is_elsewhere(who, node);
                    of.next_time = self.fields.earliest(entries, behind, entry.writes, is_other);
                }
                let number = self.number(of.generation, turn);
                Step::Tell(Notice::new(NoticeKind::Handover, Peer { who, number }))
            }
            None => Step::Gone(Ok(())),
        }
    }

    /// Number of a turn. A number names a turn of one generation, because notices may be late.
    fn number(&self, generation: u64, index: u64) -> u64 {
        let generation = if broken(Rule::TurnsNameGenerations) { 0 } else { generation };
        self.fields.turn(generation, index)
    }
}

impl LockSystem for Declock {
    type Use = DeclockUse;

    const TELLS: bool = true;
    const RELEASES_IN_ORDER: bool = true;
    const TELLS_ONCE: bool = true;
    const QUEUES: bool = true;

    fn name(&self) -> &'static str {
        "declock"
    }

    fn guarantees(&self) -> Guarantees {
        let survives_losses = self.is_fenced();
        Guarantees { shares: true, in_order: true, survives_losses, upgrades: false }
    }

    fn can_leave(&self, of: &DeclockUse) -> bool {
        of.at == At::Asking
    }

    fn head(&self) -> Option<Head> {
        Some(self.fields.head())
    }

    fn is_free(&self, head: u64) -> bool {
        let QueueHeader { is_resetting, writers, size, .. } = self.fields.of(head);
        !is_resetting && writers == 0 && size == 0
    }

    fn entries(&self) -> u32 {
        self.fields.capacity()
    }

    fn is_forced(&self) -> bool {
        !self.is_fenced()
    }

    #[inline]
    fn start(&self, request: Request) -> DeclockUse {
        let Request { who, mode, .. } = request;
        let (at, read) = (At::Asking, (0, 0));
        let (generation, index, tries, seen) = (0, 0, 0, 0);
        let (time, next_time) = (None, None);
        DeclockUse { who, mode, at, generation, index, read, tries, seen, time, next_time }
    }

    fn stamp(&self, of: &mut DeclockUse, time: u16) {
        of.time = Some(time);
    }

    fn next_time(&self, of: &DeclockUse) -> Option<u16> {
        of.next_time
    }

    fn earliest(&self, head: u64, entries: &[u64], node: u8) -> Option<u16> {
        let found = self.fields.of(head);
        let (from, to) = (found.head, found.end());
        // A writer without an entry holds the lock.
        let is_behind = self.fields.writers(entries, from, to) < found.writers;
        self.fields.earliest(entries, from..to, is_behind, |who| is_elsewhere(who, node))
    }

    fn may_have_writer(&self, head: u64) -> bool {
        self.fields.of(head).writers > 0
    }

    fn says(&self, of: &DeclockUse) -> u64 {
        of.next_time.map_or(0, |time| HAS_TIME | u64::from(time))
    }

    fn take_note(&self, of: &mut DeclockUse, _notice: Notice, says: u64) -> bool {
        of.next_time = (says & HAS_TIME != 0).then_some(says as u16);
        true
    }

    fn turn(&self, of: &DeclockUse) -> u64 {
        self.number(of.generation, of.index)
    }

    fn hear(&self, of: &mut DeclockUse, notice: Notice) -> Step {
        assert!(of.at == At::Waiting, "{notice:?} to {of:?}");
        Self::hold(of)
    }

    #[inline]
    fn step(&self, of: &mut DeclockUse, event: Event, view: &mut View<'_>) -> Step {
        let found = |word| self.fields.of(word);
        match (of.at, event) {
            (_, Event::Begin) => self.ask(of),
            (At::Asking, Event::Found(word)) => self.asked(of, found(word)),
            (At::Writing, Event::Written) => self.wait(of),
            (At::Waiting, Event::Paused) => self.look(of),
            (At::Looking, Event::Found(word)) => self.looked(of, found(word), view.entries),
            (At::Held, Event::Leave) => self.leave(of),
            (At::Leaving, Event::Found(word)) => self.left(of, found(word), view.entries),
            (At::Searching(search), Event::Found(word)) => {
                self.searched(of, search, found(word), view.entries)
            }
            (At::Searching(search), Event::Paused) => self.read_on(of, search),
            (At::Telling(search), Event::Told) => match search.next < search.end {
                true => self.search(of, search, search.first, view.entries),
                false => Step::Gone(Ok(())),
            },
            // Not posted yet.
            (At::Asking, Event::Leave) => Step::Gone(Ok(())),
            (_, Event::Lost) if !self.is_fenced() => Step::Gone(Err(NotHeld::Unavailable)),
            // An entry may be written again, and a READ changes nothing.
            (At::Writing, Event::Lost) => self.look(of),
            (At::Looking, Event::Lost) => self.look(of),
            (At::Searching(search), Event::Lost) => self.read_on(of, search),
            (_, Event::Lost) => Step::Doubt,
            (at, event) => unreachable!("{event:?} at {at:?}"),
        }
    }
}

#[cfg(test)]
mod tests;
