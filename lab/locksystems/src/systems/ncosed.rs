//! `ncosed`: a queue of writers, groups of readers between them, and a home for each lock
//! (N-CoSED, a baseline of DSLR §6.1, described in its §2.2 and §7). The word is [`NcosedWord`].
//!
//! *Readers* count themselves. Without a tail they have the lock; otherwise they ask the tail for
//! it, by a notice, and wait to be told. *Writers* make themselves the tail of a word without
//! readers, by a swap of the whole word: they try again as long as others come between. From then
//! on the readers that the word had are no longer in it.
//!
//! * No tail and no readers before: the writer has the lock.
//! * A tail: the writer tells it that it comes next, and how many readers came between: that one
//!   gives them the lock before.
//! * Readers without a tail have the lock. The writer has the *home* of the lock wait until as many
//!   have left.
//!
//! *Release of a reader.* It takes itself off the word by a swap, if there is no tail. If there is
//! one, it was taken out of the word by a writer, who waits: it tells the home that it has left.
//!
//! *Release of a writer.* The only one in the word swaps it for zero. If readers have come since,
//! and no writer, it takes its name out of the word, by which the readers are those that hold the
//! lock, and tells each so that has asked it. If a writer has come, it awaits its notice; tells the
//! readers before that one that they have the lock; and then that one, or, if there were readers,
//! the home, which tells that one when as many have left.
//!
//! # Why the home's counts are of one group
//! A writer that waits for a group of readers has the lock only after the home has told it, so all
//! of that group are counted by then. The next readers have the lock from that writer, or after it.
//! So the home counts for one writer of a lock at a time, whichever comes first, the request to
//! wait or the readers that have left.
//!
//! # Failures
//! None is tolerated, as published: a notice, a holder, a waiter or a home that is lost stops all
//! uses that come after it. Names in the word are those of the slots of lanes. They are not used
//! again too early: a writer stays until all that have found its name have asked it.

use std::time::Duration;

use lotus_locks::word::{Head, Mode};
use lotus_locks::{
    Event, LockSystem, NotHeld, Notice, Peer, Promises, Request, Said, Step, Verb, View, Waiter,
};

use crate::word::NcosedWord;

/// Said to a reader in the place of the number of readers in the word, if it is in the word no
/// more.
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
    /// A writer's: the word that it has found when it made itself the tail. A reader's that has the
    /// lock: the word that it expects, or none if it was taken out of that.
    seen: Option<NcosedWord>,
    /// The writer that comes next, and the number of readers before that.
    successor: Option<(Peer, u32)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// A reader counts itself, or is about to.
    Joining,
    /// A writer makes itself the tail of this word, or is about to.
    Asking(NcosedWord),
    /// It has told another that it waits, or is about to, and waits to be told.
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
    /// Another writer has come after it; it is not known yet which one.
    Followed,
    /// It gives the lock to so many readers that have asked it, or will.
    Granting(u32),
    /// It tells the next writer that it has the lock, or the home to do so later.
    Passing,
}

impl Ncosed {
    fn ask(of: &mut NcosedUse, seen: NcosedWord) -> Step {
        of.at = At::Asking(seen);
        let new = NcosedWord::new(of.me.who.raw(), 0).word();
        Step::Post(Verb::Swap { expected: seen.word(), new })
    }

    /// Tells the tail of a word that the use waits.
    fn follow(of: &mut NcosedUse, said: Said, tail: Waiter) -> Step {
        of.at = At::Behind;
        Step::Tell(Notice::new(said, Peer { who: tail, number: 0 }))
    }

    /// What a reader has found that counts itself.
    fn joined(of: &mut NcosedUse, found: NcosedWord) -> Step {
        match Waiter::of(found.tail()) {
            Some(tail) => Self::follow(of, Said::Joins, tail),
            None => {
                of.seen = Some(NcosedWord::of(found.word() + NcosedWord::READER));
                of.at = At::Held;
                Step::Held
            }
        }
    }

    /// What a writer has found that was to become the tail of the word `expected`.
    fn asked(of: &mut NcosedUse, expected: NcosedWord, found: NcosedWord) -> Step {
        if found != expected {
            if found.is_free() {
                return Self::ask(of, found);
            }
            // Not in the queue yet, it may still go.
            of.at = At::Asking(found);
            return Step::Pause(Duration::ZERO);
        }
        of.seen = Some(found);
        if let Some(tail) = Waiter::of(found.tail()) {
            return Self::follow(of, Said::Successor, tail);
        }
        if found.readers() > 0 {
            of.at = At::Behind;
            return Step::Tell(Notice::new(Said::Awaits, of.me));
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

    /// The word with nothing but a writer's name.
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
        Step::Tell(Notice::new(Said::Left, of.me))
    }

    /// What a reader has found that was to take itself off the word `expected`.
    fn taken_off(of: &mut NcosedUse, expected: NcosedWord, found: NcosedWord) -> Step {
        match (found == expected, found.tail()) {
            (true, _) => Step::Gone(Ok(())),
            // It was taken for one that has left.
            (false, 0) if found.is_free() => Step::Gone(Err(NotHeld::Reset)),
            (false, 0) => Self::take_off(of, found),
            (false, _) => Self::report(of),
        }
    }

    /// What a writer that leaves has found in the place of the word `expected`.
    fn closed(of: &mut NcosedUse, found: NcosedWord) -> Step {
        if found.tail() != of.me.who.raw() {
            of.at = At::Followed;
            return Step::Listen;
        }
        of.at = At::Opening(found);
        let new = NcosedWord::new(0, found.readers()).word();
        Step::Post(Verb::Swap { expected: found.word(), new })
    }

    /// Gives the lock to as many readers, and to the writer behind them, if there is one.
    fn serve(of: &mut NcosedUse, readers: u32) -> Step {
        of.at = At::Granting(readers);
        match (readers, of.successor) {
            (0, None) => Step::Gone(Ok(())),
            (0, Some((successor, before))) => {
                of.at = At::Passing;
                let said = if before == 0 { Said::Handover } else { Said::Awaits };
                Step::Tell(Notice::new(said, successor))
            }
            _ => Step::Listen,
        }
    }

    /// What the verb of a use has found.
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

    fn promises(&self) -> Promises {
        Promises { shares: true, in_order: false, survives_losses: false, upgrades: false }
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

    /// A number of readers: those before a writer, or of the word in which those are that are told.
    fn says(&self, of: &NcosedUse) -> u64 {
        match (of.at, of.successor) {
            (At::Granting(_), Some(_)) => OUT,
            (At::Passing, Some((_, readers))) => readers.into(),
            _ => of.seen.map_or(0, |seen| seen.readers().into()),
        }
    }

    fn take_note(&self, of: &mut NcosedUse, notice: Notice, says: u64) -> bool {
        match notice.said() {
            Said::Successor => of.successor = Some((notice.peer(), says as u32)),
            Said::Handover if of.is_reader => {
                of.seen = (says != OUT).then(|| NcosedWord::new(0, says as u32));
            }
            _ => {}
        }
        true
    }

    fn hear(&self, of: &mut NcosedUse, notice: Notice) -> Step {
        match (of.at, notice.said()) {
            (At::Behind, Said::Handover) => {
                of.at = At::Held;
                Step::Held
            }
            (At::Behind, Said::Successor) => Step::Listen,
            (At::Held, Said::Successor) => Step::Held,
            (At::Followed, Said::Successor) => Self::leave(of),
            (At::Granting(readers @ 1..), Said::Joins) => {
                of.at = At::Granting(readers - 1);
                Step::Tell(Notice::new(Said::Handover, notice.peer()))
            }
            (at, said) => unreachable!("{said:?} at {at:?}"),
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
            // Nothing of it is in the word.
            (At::Joining | At::Asking(_), Event::Leave) => Step::Gone(Ok(())),
            (_, Event::Lost) => Step::Gone(Err(NotHeld::Unavailable)),
            (at, event) => unreachable!("{event:?} at {at:?}"),
        }
    }
}

#[cfg(test)]
mod tests;
