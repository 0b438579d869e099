//! `ncosed`: a queue of writers, groups of readers between them, and a home for each lock (N-CoSED,
//! a baseline of DSLR §6.1, described in its §2.2 and §7). The word is [`NcosedWord`].
//!
//! *Readers* count themselves. Without a tail they have the lock; otherwise they ask the tail for
//! the lock, by a notice, and wait. *Writers* make themselves the tail of a word without readers,
//! by a swap of the whole word, and try again while other requests come between. From the swap on,
//! the previous readers are no longer in the word.
//!
//! * No previous tail and no readers: the writer has the lock.
//! * A previous tail: the writer tells the tail that it comes next, and how many readers came
//!   between; the tail gives these readers the lock first.
//! * Readers without a tail have the lock. The writer asks the *home* of the lock to wait until as
//!   many readers have left.
//!
//! *Release of a reader.* Without a tail, the reader takes itself off the word by a swap. With a
//! tail, a waiting writer has taken the reader out of the word: the reader tells the home of its
//! departure.
//!
//! *Release of a writer.* A writer alone in the word swaps the word for zero. If only readers have
//! come since, the writer takes its name out of the word, by which the readers hold the lock, and
//! tells each reader that has asked. If a writer has come, the releasing writer awaits the notice
//! of this successor, gives the lock to the readers before the successor, and then hands the lock
//! to the successor. After a group of readers, the releasing writer tells the home instead, and the
//! home tells the successor when as many readers have left.
//!
//! # Why the home's counts are of one group
//! A writer that waits for a group of readers has the lock only after the home has told it, so the
//! whole group is counted by then. The next readers get the lock from this writer, or later. So the
//! home counts for one writer of a lock at a time, whichever comes first, the request to wait or
//! the departed readers.
//!
//! # Failures
//! None is tolerated, as published: a lost notice, holder, waiter or home stops all later uses.
//! Names in the word are the names of lane slots. A name is not reused too early: a writer stays
//! until every use that has found the name has asked.

use std::time::Duration;

use lotus_locks::word::{Head, Mode};
use lotus_locks::{
    Event, Guarantees, LockSystem, NotHeld, Notice, NoticeKind, Peer, Request, Step, Verb, View,
    Waiter,
};

use crate::word::NcosedWord;

/// Payload of a notice to a reader that is no longer in the word, instead of the number of readers
/// in the word.
const OUT: u64 = u64::MAX;

/// The system. See the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ncosed;

/// State of a use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NcosedUse {
    me: Peer,
    is_reader: bool,
    at: At,
    /// For a writer: the word found when it made itself the tail. For a reader with the lock: the
    /// word that it expects, or `None` if the reader was taken out of the word.
    seen: Option<NcosedWord>,
    /// The next writer, and the number of readers before it.
    successor: Option<(Peer, u32)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// A reader counts itself, or is about to.
    Joining,
    /// A writer makes itself the tail of this word, or is about to.
    Asking(NcosedWord),
    /// The use has sent a notice that it waits, or is about to, and waits for the lock.
    Behind,
    Held,
    /// A reader takes itself off this word.
    Leaving(NcosedWord),
    /// A reader tells the home that it has left.
    Reporting,
    /// A writer swaps the word that has nothing but its name for zero.
    Closing,
    /// A writer leaves the lock to the readers of this word.
    Opening(NcosedWord),
    /// The writer has a successor, not known yet.
    Followed,
    /// The writer gives the lock to as many readers, which have asked it, or will.
    Granting(u32),
    /// The writer hands the lock to the next writer, or tells the home to hand it over later.
    Passing,
}

impl Ncosed {
    fn ask(of: &mut NcosedUse, seen: NcosedWord) -> Step {
        of.at = At::Asking(seen);
        let new = NcosedWord::new(of.me.who.raw(), 0).word();
        Step::Post(Verb::Swap { expected: seen.word(), new })
    }

    /// Tells the tail of a word that the use waits.
    fn follow(of: &mut NcosedUse, kind: NoticeKind, tail: Waiter) -> Step {
        of.at = At::Behind;
        Step::Tell(Notice::new(kind, Peer { who: tail, number: 0 }))
    }

    /// Handles the answer of the verb by which a reader counts itself.
    fn joined(of: &mut NcosedUse, found: NcosedWord) -> Step {
        match Waiter::of(found.tail()) {
            Some(tail) => Self::follow(of, NoticeKind::Joins, tail),
            None => {
                of.seen = Some(NcosedWord::of(found.word() + NcosedWord::READER));
                of.at = At::Held;
                Step::Held
            }
        }
    }

    /// Handles the answer of the swap by which a writer makes itself the tail of `expected`.
    fn asked(of: &mut NcosedUse, expected: NcosedWord, found: NcosedWord) -> Step {
        if found != expected {
            if found.is_free() {
                return Self::ask(of, found);
            }
            // Not in the queue yet, the writer may still leave.
            of.at = At::Asking(found);
            return Step::Pause(Duration::ZERO);
        }
        of.seen = Some(found);
        if let Some(tail) = Waiter::of(found.tail()) {
            return Self::follow(of, NoticeKind::Successor, tail);
        }
        if found.readers() > 0 {
            of.at = At::Behind;
            return Step::Tell(Notice::new(NoticeKind::Awaits, of.me));
        }
        of.at = At::Held;
        Step::Held
    }

    fn leave(of: &mut NcosedUse) -> Step {
        if of.is_reader {
            return match of.seen {
                Some(seen) => Self::take_off(of, seen),
                None => Self::report(of),
            };
        }
        match of.successor {
            Some((_, readers)) => Self::serve(of, readers),
            None => {
                of.at = At::Closing;
                Step::Post(Verb::Swap { expected: Self::alone(of).word(), new: 0 })
            }
        }
    }

    /// Returns the word with nothing but a writer's name.
    const fn alone(of: &NcosedUse) -> NcosedWord {
        NcosedWord::new(of.me.who.raw(), 0)
    }

    /// Takes a reader off the word that was `seen` last.
    fn take_off(of: &mut NcosedUse, seen: NcosedWord) -> Step {
        of.at = At::Leaving(seen);
        let new = seen.word() - NcosedWord::READER;
        Step::Post(Verb::Swap { expected: seen.word(), new })
    }

    /// Tells the home that a reader has left.
    fn report(of: &mut NcosedUse) -> Step {
        of.at = At::Reporting;
        Step::Tell(Notice::new(NoticeKind::Left, of.me))
    }

    /// Handles the answer of the swap by which a reader takes itself off `expected`.
    fn taken_off(of: &mut NcosedUse, expected: NcosedWord, found: NcosedWord) -> Step {
        match (found == expected, found.tail()) {
            (true, _) => Step::Gone(Ok(())),
            // This reader was taken for a departed reader.
            (false, 0) if found.is_free() => Step::Gone(Err(NotHeld::Reset)),
            (false, 0) => Self::take_off(of, found),
            (false, _) => Self::report(of),
        }
    }

    /// Handles a word other than expected, found by a leaving writer.
    fn closed(of: &mut NcosedUse, found: NcosedWord) -> Step {
        if found.tail() != of.me.who.raw() {
            of.at = At::Followed;
            return Step::Listen;
        }
        of.at = At::Opening(found);
        let new = NcosedWord::new(0, found.readers()).word();
        Step::Post(Verb::Swap { expected: found.word(), new })
    }

    /// Gives the lock to `readers` readers, and to the writer behind them, if any.
    fn serve(of: &mut NcosedUse, readers: u32) -> Step {
        of.at = At::Granting(readers);
        match (readers, of.successor) {
            (0, None) => Step::Gone(Ok(())),
            (0, Some((successor, before))) => {
                of.at = At::Passing;
                let kind = if before == 0 { NoticeKind::Handover } else { NoticeKind::Awaits };
                Step::Tell(Notice::new(kind, successor))
            }
            _ => Step::Listen,
        }
    }

    /// Handles the answer of a use's verb.
    fn found(of: &mut NcosedUse, found: NcosedWord) -> Step {
        match of.at {
            At::Joining => Self::joined(of, found),
            At::Asking(expected) => Self::asked(of, expected, found),
            At::Leaving(expected) => Self::taken_off(of, expected, found),
            At::Closing if found == Self::alone(of) => Step::Gone(Ok(())),
            At::Opening(expected) if found == expected => {
                of.seen = Some(NcosedWord::new(0, found.readers()));
                Self::serve(of, found.readers())
            }
            At::Closing | At::Opening(_) => Self::closed(of, found),
            at => unreachable!("no verb is under way at {at:?}"),
        }
    }
}

impl LockSystem for Ncosed {
    type Use = NcosedUse;

    const TELLS: bool = true;

    const HAS_HOMES: bool = true;

    /// No name is used again while a notice to it is under way.
    const LATER: Option<fn(u64, u64) -> bool> = Some(|_, _| false);

    fn name(&self) -> &'static str {
        "ncosed"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { shares: true, in_order: false, survives_losses: false, upgrades: false }
    }

    fn can_leave(&self, of: &NcosedUse) -> bool {
        matches!(of.at, At::Joining | At::Asking(_))
    }

    fn head(&self) -> Option<Head> {
        None
    }

    fn is_free(&self, head: u64) -> bool {
        NcosedWord::of(head).is_free()
    }

    fn may_have_writer(&self, head: u64) -> bool {
        NcosedWord::of(head).tail() != 0
    }

    fn start(&self, request: Request) -> NcosedUse {
        let is_reader = request.mode == Mode::Shared;
        NcosedUse {
            me: Peer { who: request.who, number: 0 },
            is_reader,
            at: if is_reader { At::Joining } else { At::Asking(NcosedWord::default()) },
            seen: None,
            successor: None,
        }
    }

    fn renumber(&self, of: &mut NcosedUse, number: u64) {
        of.me.number = number;
    }

    fn gathers(&self, of: &NcosedUse) -> bool {
        matches!(of.at, At::Granting(1..))
    }

    /// A number of readers: the readers before a writer, or the readers in the word that contains
    /// the notified readers.
    fn says(&self, of: &NcosedUse) -> u64 {
        match (of.at, of.successor) {
            (At::Granting(_), Some(_)) => OUT,
            (At::Passing, Some((_, readers))) => readers.into(),
            _ => of.seen.map_or(0, |seen| seen.readers().into()),
        }
    }

    fn take_note(&self, of: &mut NcosedUse, notice: Notice, says: u64) -> bool {
        match notice.kind() {
            NoticeKind::Successor => of.successor = Some((notice.peer(), says as u32)),
            NoticeKind::Handover if of.is_reader => {
                of.seen = (says != OUT).then(|| NcosedWord::new(0, says as u32));
            }
            _ => {}
        }
        true
    }

    fn hear(&self, of: &mut NcosedUse, notice: Notice) -> Step {
        match (of.at, notice.kind()) {
            (At::Behind, NoticeKind::Handover) => {
                of.at = At::Held;
                Step::Held
            }
            (At::Behind, NoticeKind::Successor) => Step::Listen,
            (At::Held, NoticeKind::Successor) => Step::Held,
            (At::Followed, NoticeKind::Successor) => Self::leave(of),
            (At::Granting(readers @ 1..), NoticeKind::Joins) => {
                of.at = At::Granting(readers - 1);
                Step::Tell(Notice::new(NoticeKind::Handover, notice.peer()))
            }
            (at, kind) => unreachable!("{kind:?} at {at:?}"),
        }
    }

    fn step(&self, of: &mut NcosedUse, event: Event, _: &mut View<'_>) -> Step {
        match (of.at, event) {
            (_, Event::Begin) if of.is_reader => {
                of.at = At::Joining;
                Step::Post(Verb::Add(NcosedWord::READER))
            }
            (_, Event::Begin) => Self::ask(of, NcosedWord::default()),
            (At::Asking(seen), Event::Paused) => Self::ask(of, seen),
            (_, Event::Found(found)) => Self::found(of, NcosedWord::of(found)),
            (At::Behind, Event::Told) => Step::Listen,
            (At::Granting(readers), Event::Told) => Self::serve(of, readers),
            (At::Reporting | At::Passing, Event::Told) => Step::Gone(Ok(())),
            (At::Held, Event::Leave) => Self::leave(of),
            // The use has left nothing in the word.
            (At::Joining | At::Asking(_), Event::Leave) => Step::Gone(Ok(())),
            (_, Event::Lost) => Step::Gone(Err(NotHeld::Unavailable)),
            (at, event) => unreachable!("{event:?} at {at:?}"),
        }
    }
}

#[cfg(test)]
mod tests;
