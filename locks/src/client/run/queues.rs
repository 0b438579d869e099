//! Locks with a queue of entries: the parts of a run that only systems with queues need.

use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::lane::{Batch, Completed};
use lotus_fabric::verbs::Buffer;

use super::listening::Listened;
use super::{BARRED, Core, DOUBT, DriveEnd, Run, RunState, VerbAnswer};
use crate::client::ENTRIES;
use crate::contract::{Event, LockSystem, NotHeld, Step, Verb};
use crate::word::QueuePart;

impl<S: LockSystem> Run<S> {
    /// Adds a verb on the entries to a batch. Returns the place of the head in the answer, if the
    /// verb reads the head. A use that writes an entry can be told of its turn from now on.
    pub(super) fn add_on_entries(
        &mut self,
        core: &Core<S>,
        batch: &mut Batch,
        verb: Verb,
    ) -> Buffer {
        let entries = self.at.plus(ENTRIES);
        let read = |batch: &mut Batch, part: QueuePart| {
            batch.read(entries.plus(8 * u64::from(part.first)), 8 * part.count as usize)
        };
        let (head, answer) = match verb {
            Verb::Write { entry, word } => {
                core.open_for(self.slot, self.at, core.system.turn(&self.state));
                batch.write_word(entries.plus(8 * u64::from(entry)), word);
                (Buffer::EMPTY, VerbAnswer::Written)
            }
            Verb::AddAndRead(summand, part) => {
                let head = batch.fetch_and_add(self.at, summand);
                (head, VerbAnswer::Entries(part.first, read(batch, part)))
            }
            Verb::ReadQueue(part) => {
                core.counts.borrow_mut().refetches += u64::from(self.is_leaving);
                let head = batch.read(self.at, 8);
                (head, VerbAnswer::Entries(part.first, read(batch, part)))
            }
            _ => unreachable!("{verb:?} is on a word"),
        };
        self.answer = answer;
        head
    }

    /// Returns the event of the completed verb, and keeps the entries that it has read.
    pub(super) fn read(&mut self, core: &Core<S>, done: &Completed, head: Buffer) -> Event {
        match self.answer {
            VerbAnswer::Written => return Event::Written,
            VerbAnswer::Entries(first, read) => {
                let (read, all) = (done.words(read), core.system.entries() as usize);
                self.entries.clear();
                self.entries.resize(first as usize, 0);
                self.entries.extend_from_slice(read);
                self.entries.resize(all, 0);
            }
            VerbAnswer::Head => {}
        }
        Event::Found(done.words(head)[0])
    }

    /// Waits at most `time` for a notice, unless the acquisition is given up.
    pub(super) fn wait_for_turn(
        &mut self,
        core: &Rc<Core<S>>,
        time: Duration,
        until: Nanos,
    ) -> Option<DriveEnd> {
        let now = core.lane.executor().now();
        if self.may_stop(core, now, until) {
            self.doing = RunState::Next(Step::Await(time));
            return Some(DriveEnd::Stopped(NotHeld::TimedOut));
        }
        self.has_waited |= !self.is_leaving;
        self.look_for_losses(core, now);
        self.doing = RunState::Awaiting(now.after(time));
        None
    }

    /// Ready when there is a notice, when the use was told of a reset, or when it is time to look
    /// at the words.
    pub(super) fn poll_turn(
        &mut self,
        core: &Rc<Core<S>>,
        due: Nanos,
        until: Nanos,
    ) -> Poll<Listened> {
        if self.is_told(core) {
            self.doing = RunState::Next(Step::Barred);
            return Poll::Ready(Listened::Next);
        }
        if let Some(step) = self.hear(core) {
            self.doing = RunState::Next(step);
            return Poll::Ready(Listened::Next);
        }
        let executor = core.lane.executor();
        let now = executor.now();
        if self.may_stop(core, now, until) {
            return Poll::Ready(Listened::Turn(DriveEnd::Stopped(NotHeld::TimedOut)));
        }
        if now >= due {
            return Poll::Ready(Listened::Look);
        }
        let stops = !self.is_leaving && !self.is_ghost;
        core.slots.borrow_mut().get(self.slot).task = Some(executor.current());
        executor.wake_at(if stops { due.min(until) } else { due }, executor.current());
        Poll::Pending
    }

    /// Requests the reset of a lock whose queue has no room in this generation.
    pub(super) fn has_no_room(&mut self, core: &Rc<Core<S>>, generation: u64) -> Option<DriveEnd> {
        core.shut(self.at, Some(generation));
        core.want_room(self.at, generation);
        if self.is_leaving {
            return Some(self.end(core, Ok(())));
        }
        core.counts.borrow_mut().barred += 1;
        self.quiet(core);
        self.doing = RunState::Full(BARRED.0, generation);
        None
    }

    /// Waits until the lock has another generation. A ghost waits too: without the reset, its
    /// additions to the head would be waited for.
    pub(super) async fn full(&mut self, core: &Rc<Core<S>>, until: Nanos) -> Option<DriveEnd> {
        let mut asked = core.lane.executor().now();
        loop {
            let RunState::Full(pause, generation) = self.doing else { unreachable!("it is full") };
            if self.is_abandoned(core) {
                return Some(self.abandon(core));
            }
            let now = core.lane.executor().now();
            if now >= until && !self.is_ghost {
                return Some(DriveEnd::Stopped(NotHeld::TimedOut));
            }
            self.look_for_losses(core, now);
            let deadline = if self.is_ghost { Nanos::NEVER } else { until };
            self.wait(core, now.after(pause).min(deadline)).await;
            self.doing = RunState::Full((pause * 2).min(BARRED.1), generation);
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
                Err(why) => return Some(DriveEnd::Stopped(why)),
            }
            if core.lane.executor().now() >= asked.after(DOUBT) {
                asked = core.lane.executor().now();
                core.want_room(self.at, generation);
            }
        }
    }
}
