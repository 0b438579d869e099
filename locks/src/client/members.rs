//! A lane's part in resets by other nodes: the lane ends its waits for the lock, and answers when
//! it is done with the lock.

use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::exec::TaskId;
use lotus_fabric::ids::{NodeId, RemoteAddr};
use lotus_fabric::rpc::Responder;
use lotus_points::point;

use super::{Core, wire};
use crate::contract::{LockSystem, NotHeld};
use crate::reset::{Use, answers};

/// Bounds of the time between two looks at the head.
const LOOK: (Duration, Duration) = (Duration::from_micros(10), Duration::from_millis(1));
/// Largest number of unanswered requests for one lock; a new request replaces the oldest.
const MAX_REQUESTS: usize = 8;

/// A reset that this lane was told of.
pub(super) struct PendingReset {
    requests: Vec<Responder>,
    task: Option<TaskId>,
    /// Number of uses that have since seen an unmarked head, and have begun anew.
    begun: u32,
}

/// Takes in a request to be done with a lock.
pub(super) fn tell<S: LockSystem>(core: &Rc<Core<S>>, at: RemoteAddr, request: Responder) {
    // The reset is abandoned as well.
    if core.has_abandoned(at.node()) {
        return;
    }
    let mut told = core.told.borrow_mut();
    if let Some(known) = told.get_mut(&at) {
        if known.requests.len() == MAX_REQUESTS {
            known.requests.remove(0);
        }
        known.requests.push(request);
        known.task.into_iter().for_each(|task| core.lane.executor().wake(task));
        return;
    }
    told.insert(at, PendingReset { requests: vec![request], task: None, begun: 0 });
    core.interrupted();
    core.lane.executor().spawn(answer(Rc::clone(core), at));
}

async fn answer<S: LockSystem>(core: Rc<Core<S>>, at: RemoteAddr) {
    let executor = core.lane.executor().clone();
    let mut pause = LOOK.0;
    point!(core.lane.at().node.0, ResetHeard);
    let begun = || core.told.borrow().get(&at).map(|told| told.begun);
    loop {
        if core.has_abandoned(at.node()) {
            return core.told_no_more(at);
        }
        let before = begun();
        let found = match core.read_head(at).await {
            // The answer may be older than the head that a newly begun use has seen meanwhile: an
            // old head would end a wait of the next generation.
            Ok(_) if begun() != before => continue,
            Ok(head) => Some(head),
            Err(NotHeld::Expelled) => return core.told_no_more(at),
            Err(_) => None,
        };
        if let Some(found) = found {
            if !core.is_resetting(found) {
                over(&core, at);
                if S::QUEUES {
                    core.stays_shut(at, found);
                }
                return core.told_no_more(at);
            }
            let is_done = go_on(&core, at, found);
            point!(core.lane.at().node.0, ResetAnswered, if is_done);
        }
        if let Some(told) = core.told.borrow_mut().get_mut(&at) {
            told.task = Some(executor.current());
        }
        executor.wake_at(executor.now().after(pause), executor.current());
        executor.suspend().await;
        pause = (pause * 2).min(LOOK.1);
    }
}

/// Tells the uses of the lock that it is being reset, and answers the requests if the uses are done
/// with the lock. Returns whether an answer was sent.
fn go_on<S: LockSystem>(core: &Core<S>, at: RemoteAddr, found: u64) -> bool {
    let Some(head) = core.system.head() else { return false };
    if S::TELLS {
        core.notices.borrow_mut().forget(at);
    }
    let generation = head.generation(found);
    let mut is_used = false;
    let mut slots = core.slots.borrow_mut();
    for slot in slots.of(at) {
        if slot.told != Some(generation) {
            slot.resets += u32::from(slot.told.is_some());
            slot.told = Some(generation);
            slot.task.into_iter().for_each(|task| core.lane.executor().wake(task));
        }
        // A lock held from an earlier memory is not this lock.
        is_used |= !slot.is_quiet && !slot.is_abandoned;
    }
    let used = Use { holds: is_used, posts: is_used };
    if answers(head, found, used) == Some(true)
        && let Some(told) = core.told.borrow_mut().get_mut(&at)
    {
        let answer = wire::encode_answer(generation);
        let is_asked = !told.requests.is_empty();
        told.requests.drain(..).for_each(|request| request.respond(&answer));
        return is_asked;
    }
    false
}

/// Tells the uses of the lock that the reset is over.
fn over<S: LockSystem>(core: &Core<S>, at: RemoteAddr) {
    for slot in core.slots.borrow_mut().of(at) {
        if slot.told.take().is_some() {
            slot.resets += 1;
            slot.task.into_iter().for_each(|task| core.lane.executor().wake(task));
        }
    }
}

impl<S: LockSystem> Core<S> {
    /// Whether this lane was told that the lock is being reset.
    #[inline]
    pub(super) fn is_told(&self, at: RemoteAddr) -> bool {
        self.is_interrupted.get() && self.told.borrow().contains_key(&at)
    }

    /// Forgets a reset that the lane was told of.
    fn told_no_more(&self, at: RemoteAddr) {
        self.told.borrow_mut().remove(&at);
        self.note_interruptions();
    }

    /// Shuts a lock: the lane adds nothing until a reset (I302). With `generation`, the lock is
    /// shut in that generation; otherwise, while its head is marked.
    pub(super) fn shut(&self, at: RemoteAddr, generation: Option<u64>) {
        let shut = &mut *self.shut.borrow_mut();
        let known = shut.entry(at).or_default();
        *known = generation.or(*known);
    }

    /// Whether the lane adds nothing to a lock until a reset.
    #[inline]
    pub(super) fn is_shut(&self, at: RemoteAddr) -> bool {
        let shut = self.shut.borrow();
        !shut.is_empty() && shut.contains_key(&at)
    }

    /// Whether the lock is still shut, by the head `found`.
    pub(super) fn stays_shut(&self, at: RemoteAddr, found: u64) -> bool {
        let Some(head) = self.system.head() else { return false };
        let shut = &mut *self.shut.borrow_mut();
        let stays = shut.get(&at).is_some_and(|generation| match generation {
            Some(generation) => *generation == head.generation(found),
            None => head.is_resetting(found),
        });
        if !stays {
            shut.remove(&at);
        }
        stays
    }

    /// Notes that a use has seen the head without a mark, and begins anew.
    pub(super) fn begins_anew(&self, at: RemoteAddr) {
        if let Some(told) = self.told.borrow_mut().get_mut(&at) {
            told.begun += 1;
        }
    }

    /// Wakes the task that answers a reset of the lock, if any, to consider its answer again.
    #[inline]
    pub(super) fn wake_answer(&self, at: RemoteAddr) {
        if self.is_interrupted.get() {
            let told = self.told.borrow();
            let task = told.get(&at).and_then(|told| told.task);
            task.into_iter().for_each(|task| self.lane.executor().wake(task));
        }
    }

    /// As [`Self::wake_answer`], for all locks on a memory node.
    pub(super) fn wake_answers(&self, memory: NodeId) {
        let told = self.told.borrow();
        let there = told.iter().filter(|(at, _)| at.node() == memory);
        there.filter_map(|(_, told)| told.task).for_each(|task| self.lane.executor().wake(task));
    }
}
