//! Locks with a queue of entries: the parts of a run that only their systems need.

use std::future::Future as _;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::lane::{Batch, Completed};
use lotus_fabric::verbs::Buffer;

use super::listening::Listened;
use super::{BARRED, Core, DOUBT, Doing, Run, Turn};
use crate::client::ENTRIES;
use crate::contract::{Event, LockSystem, NotHeld, Step, Verb};

/// What the answer of a verb on entries has.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    Written,
    /// The head, and all entries.
    Read(Buffer, Buffer),
}

/// Whether the verb is on the entries of a lock.
pub(super) const fn is_on_entries(verb: Verb) -> bool {
    matches!(verb, Verb::Write { .. } | Verb::ReadAll | Verb::AddAndRead(_))
}

impl<S: LockSystem> Run<S> {
    /// Posts a verb on the entries. A use that writes one is told of its turn from now on.
    pub(super) fn post_on_entries(&mut self, core: &Core<S>, verb: Verb) {
        let mut batch = core.lane.batch();
        self.add_on_entries(core, &mut batch, verb);
        self.doing = Doing::Entries(batch.post());
    }

    /// Adds a verb on the entries to a batch.
    pub(super) fn add_on_entries(&mut self, core: &Core<S>, batch: &mut Batch, verb: Verb) {
        self.posts(core);
        let entries = self.at.plus(ENTRIES);
        let bytes = 8 * core.system.entries() as usize;
        self.answer = match verb {
            Verb::Write { entry, word } => {
                core.open_for(self.slot, self.at, core.system.turn(&self.state));
                batch.write_word(entries.plus(8 * u64::from(entry)), word);
                Answer::Written
            }
            Verb::AddAndRead(summand) => {
                let head = batch.fetch_and_add(self.at, summand);
                Answer::Read(head, batch.read(entries, bytes))
            }
            _ => {
                let head = batch.read(self.at, 8);
                Answer::Read(head, batch.read(entries, bytes))
            }
        };
    }

    /// Ready when the verb on the entries has ended; without an event if it had no answer.
    pub(super) fn poll_entries(&mut self, task: &mut Context<'_>) -> Poll<Option<Event>> {
        let Doing::Entries(posted) = &mut self.doing else { unreachable!("it is posted") };
        let done = ready!(Pin::new(posted).poll(task));
        Poll::Ready(match done {
            Ok(done) => Some(self.read(&done)),
            Err(_) => {
                self.doing = Doing::Mending;
                None
            }
        })
    }

    pub(super) fn read(&mut self, done: &Completed) -> Event {
        match self.answer {
            Answer::Written => Event::Written,
            Answer::Read(head, entries) => {
                self.entries.clear();
                self.entries.extend_from_slice(done.words(entries));
                Event::Found(done.words(head)[0])
            }
        }
    }

    /// Waits for a notice for so long, unless the acquisition is given up.
    pub(super) fn wait_for_turn(
        &mut self,
        core: &Rc<Core<S>>,
        time: Duration,
        until: Nanos,
    ) -> Option<Turn> {
        let now = core.lane.executor().now();
        if self.may_stop(core, now, until) {
            self.doing = Doing::Next(Step::Await(time));
            return Some(Turn::Stopped(NotHeld::TimedOut));
        }
        self.has_waited |= !self.is_leaving;
        self.look_for_losses(core, now);
        self.doing = Doing::Awaiting(now.after(time));
        None
    }

    /// Ready when there is a notice, or a reset to know of, or it is time to look at the words.
    pub(super) fn poll_turn(
        &mut self,
        core: &Rc<Core<S>>,
        due: Nanos,
        until: Nanos,
    ) -> Poll<Listened> {
        if self.is_told(core) {
            self.doing = Doing::Next(Step::Barred);
            return Poll::Ready(Listened::Next);
        }
        if let Some(step) = self.hear(core) {
            self.doing = Doing::Next(step);
            return Poll::Ready(Listened::Next);
        }
        let executor = core.lane.executor();
        let now = executor.now();
        if self.may_stop(core, now, until) {
            return Poll::Ready(Listened::Turn(Turn::Stopped(NotHeld::TimedOut)));
        }
        if now >= due {
            return Poll::Ready(Listened::Look);
        }
        let stops = !self.is_leaving && !self.is_ghost;
        core.slots.borrow_mut().get(self.slot).task = Some(executor.current());
        executor.wake_at(if stops { due.min(until) } else { due }, executor.current());
        Poll::Pending
    }

    /// Has a lock reset: its queue has no room in this generation.
    pub(super) fn has_no_room(&mut self, core: &Rc<Core<S>>, generation: u64) -> Option<Turn> {
        core.shut(self.at, Some(generation));
        core.want_room(self.at, generation);
        if self.is_leaving {
            return Some(self.end(core, Ok(())));
        }
        core.counts.borrow_mut().barred += 1;
        self.quiet(core);
        self.doing = Doing::Full(BARRED.0, generation);
        None
    }

    /// Waits until the lock has another generation; a ghost does so too: without the
    /// reset, what it has added would be waited for.
    pub(super) async fn full(&mut self, core: &Rc<Core<S>>, until: Nanos) -> Option<Turn> {
        let mut asked = core.lane.executor().now();
        loop {
            let Doing::Full(pause, generation) = self.doing else { unreachable!("it is full") };
            if self.is_abandoned(core) {
                return Some(self.abandon(core));
            }
            let now = core.lane.executor().now();
            if now >= until && !self.is_ghost {
                return Some(Turn::Stopped(NotHeld::TimedOut));
            }
            self.look_for_losses(core, now);
            let deadline = if self.is_ghost { Nanos::NEVER } else { until };
            self.wait(core, now.after(pause).min(deadline)).await;
            self.doing = Doing::Full((pause * 2).min(BARRED.1), generation);
            match core.read_head(self.at).await {
                Ok(head) => {
                    let is_shut = core.stays_shut(self.at, head);
                    let mut slots = core.slots.borrow_mut();
                    let slot = slots.get(self.slot);
                    if !is_shut && slot.told.is_none() {
                        if self.is_ghost {
                            drop(slots);
                            return Some(self.end(core, Err(NotHeld::Reset)));
                        }
                        slot.is_quiet = false;
                        drop(slots);
                        core.begins_anew(self.at);
                        return None;
                    }
                }
                Err(NotHeld::Expelled) => return Some(self.end(core, Err(NotHeld::Expelled))),
                Err(why) => return Some(Turn::Stopped(why)),
            }
            if core.lane.executor().now() >= asked.after(DOUBT) {
                asked = core.lane.executor().now();
                core.want_room(self.at, generation);
            }
        }
    }
}
