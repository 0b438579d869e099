//! The coordinator's executor: one thread, N coroutines, no waker on the data path.
//!
//! # What it is
//! A slab of tasks and a list of ready tasks. A completion names the task to poll (the lane
//! remembers the waiting task of every batch), so the data path never touches a [`Waker`]. Wakers
//! are for channels, foreign threads and foreign runtimes; they mark the task in a shared list and
//! wake the thread.
//!
//! # What it is not
//! The executor does not steal work or preempt, and tasks never leave their thread. A future of
//! this crate must be polled by its own task: combinators with wakers of their own
//! (`FuturesUnordered`) would wait for ever.
//!
//! # Running it
//! [`Executor::run`] on a real machine: poll, spin briefly, then park, so more coordinators than
//! cores stay usable. A simulator calls [`Executor::turn`] itself, on virtual time.

mod epoll_sleeper;
mod sockets;

use std::cell::{Cell, OnceCell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::contract::{prefetch, transport};
use crate::run::env::{Env, Nanos};

pub(crate) use epoll_sleeper::EpollSleeper;
pub use sockets::Socket;
use sockets::Sockets;

/// Identifies a task of one executor. Ids are reused after the task ends; waking a stale id causes
/// a spurious poll.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TaskId(u32);

impl TaskId {
    /// No task; must not be woken.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// Rounds of polling tasks before the drivers are polled. With several rounds, a task that has
/// yielded posts together with the other tasks, so a back end over the operating system sends
/// fewer, larger pieces.
const ROUNDS_PER_TURN: u32 = 4;
/// Spinning time of an idle executor before parking.
const SPIN: Duration = Duration::from_micros(20);
/// Spinning time of an executor with sockets: shorter, because every turn makes a system call, and
/// the sender may be waiting for the same core.
const SPIN_ON_SOCKETS: Duration = Duration::from_micros(5);
/// Turns of a busy executor between reads of the clock for [`Handle::recent`].
const TURNS_PER_CLOCK_READ: u32 = 64;
/// Turns of a busy executor between reads of the clock for a timer further off than [`SOON`].
const TURNS_PER_TIMER_LOOK: u32 = 8;
const SOON: Duration = Duration::from_micros(100);
/// Polls in a turn after which no further round begins: the polled tasks have enough verbs to post
/// together.
const POLLS_PER_TURN: usize = 128;
/// Polls within a turn between checks of the timers. Hundreds of requests at once must not delay
/// timed work such as a node's beats.
const POLLS_PER_TIMER_LOOK: usize = 32;
/// Turns of a busy executor between checks of its sockets.
const TURNS_PER_SOCKETS_LOOK: u32 = 16;
/// The longest sleep, so a wake lost by a foreign waker costs a delay, not a hang.
const MAX_PARK: Duration = Duration::from_millis(100);

type BoxFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Slot {
    /// `None` while the task is being polled, and after its end.
    future: Option<BoxFuture>,
    queued: bool,
    live: bool,
}

#[derive(Default)]
struct Tasks {
    slots: Vec<Slot>,
    free: Vec<TaskId>,
    /// Tasks to poll in the next turn.
    ready: Vec<TaskId>,
    live: usize,
}

/// A handle on an executor, for the futures running on it.
#[derive(Clone)]
pub struct Handle {
    core: Rc<Core>,
}

struct Core {
    env: Env,
    tasks: RefCell<Tasks>,
    timers: RefCell<BinaryHeap<Reverse<(Nanos, TaskId)>>>,
    current: Cell<TaskId>,
    /// The clock's last reading.
    recent: Cell<Nanos>,
    /// Whether the current turn polls more than one task.
    company: Cell<bool>,
    /// Created with the first adopted socket.
    sockets: OnceCell<Rc<Sockets>>,
    foreign: Arc<CrossThreadState>,
}

impl Handle {
    /// The executor's environment.
    pub fn env(&self) -> &Env {
        &self.core.env
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Nanos {
        let now = self.core.env.now();
        self.core.recent.set(now);
        now
    }

    /// The clock's last reading: an idle executor reads the clock before sleeping, a busy executor
    /// every few dozen turns. Costs nothing.
    #[inline]
    pub fn recent(&self) -> Nanos {
        self.core.recent.get()
    }

    /// Adds a task, which is first polled in the next turn.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) -> TaskId {
        let future = Box::pin(future);
        let mut tasks = self.core.tasks.borrow_mut();
        let reused = tasks.free.pop();
        let id = reused.unwrap_or(TaskId(tasks.slots.len() as u32));
        let slot = Slot { future: Some(future), queued: true, live: true };
        if reused.is_some() {
            tasks.slots[id.0 as usize] = slot;
        } else {
            tasks.slots.push(slot);
        }
        tasks.ready.push(id);
        tasks.live += 1;
        id
    }

    /// The task currently being polled.
    #[inline]
    pub fn current(&self) -> TaskId {
        self.core.current.get()
    }

    /// Marks a task as ready to be polled. Must be called on the executor's own thread.
    #[inline]
    pub fn wake(&self, task: TaskId) {
        let tasks = &mut *self.core.tasks.borrow_mut();
        let slot = &mut tasks.slots[task.0 as usize];
        if slot.live && !slot.queued {
            slot.queued = true;
            tasks.ready.push(task);
        }
    }

    /// Wakes a task once the clock shows `due`, unless the task has ended. The task may also be
    /// woken earlier, and must call `wake_at` again for a later time.
    pub fn wake_at(&self, due: Nanos, task: TaskId) {
        self.core.timers.borrow_mut().push(Reverse((due, task)));
    }

    /// Returns whether further tasks are polled in the current or the next turn: if so, a task
    /// waiting for memory can yield without losing time.
    #[inline]
    pub fn has_company(&self) -> bool {
        self.core.company.get() || !self.core.tasks.borrow().ready.is_empty()
    }

    /// Lets every other ready task run once before the calling task continues.
    #[inline]
    pub fn yield_now(&self) -> impl Future<Output = ()> {
        let mut yielded = false;
        std::future::poll_fn(move |_| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            self.wake(self.current());
            Poll::Pending
        })
    }

    /// Waits for the next [`Handle::wake`] of the calling task. May return early.
    pub fn suspend(&self) -> impl Future<Output = ()> + use<> {
        let mut suspended = false;
        std::future::poll_fn(move |_| {
            if std::mem::replace(&mut suspended, true) { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    /// Waits until the clock shows `deadline`.
    pub fn sleep_until(&self, deadline: Nanos) -> impl Future<Output = ()> + use<> {
        let handle = self.clone();
        let mut armed_for = None;
        std::future::poll_fn(move |_| {
            if handle.now() >= deadline {
                return Poll::Ready(());
            }
            let task = handle.current();
            if armed_for != Some(task) {
                armed_for = Some(task);
                handle.wake_at(deadline, task);
            }
            Poll::Pending
        })
    }

    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + use<> {
        self.sleep_until(self.now().after(duration))
    }

    /// Registers a connection (any kind of stream) for a task. From now on the executor polls the
    /// connection and sleeps on it.
    ///
    /// # Errors
    /// The process has too many files open.
    pub fn adopt(&self, stream: impl Into<OwnedFd>) -> io::Result<Socket> {
        let sockets = match self.core.sockets.get() {
            Some(sockets) => sockets,
            None => {
                let sockets = Rc::new(Sockets::new()?);
                let lanes = self.core.foreign.sleeper.get();
                // If `lanes` is `Some`, `sleeper` returns the same sleeper.
                let sleeper = sockets::sleeper(lanes, &sockets)?;
                self.core.foreign.sleeper.get_or_init(|| sleeper);
                self.core.sockets.get_or_init(|| sockets)
            }
        };
        Socket::new(stream.into(), sockets, self)
    }

    /// Begins to connect to an address over TCP, without blocking. Until the connection is made,
    /// the socket can be neither read nor written; after a failed connection attempt, reads and
    /// writes fail.
    ///
    /// # Errors
    /// The process has too many files open, or the address has no route.
    pub fn connect(&self, address: SocketAddr) -> io::Result<Socket> {
        self.adopt(sockets::connecting(address)?)
    }

    /// Returns a handle that wakes the executor's thread from any thread.
    pub fn waker(&self) -> Arc<dyn transport::Wake> {
        Arc::clone(&self.core.foreign) as Arc<dyn transport::Wake>
    }
}

/// A source of input polled by an executor between tasks: a lane, or a stub in tests.
pub trait Driver {
    /// Takes in completions and messages, and wakes tasks. Returns whether any were found.
    fn drive(&mut self) -> bool;
    /// Returns whether `drive` would find input now.
    fn has_input(&self) -> bool;
    /// Sleeper that waits for input, for a driver whose input does not wake the executor.
    fn sleeper(&self) -> Option<Arc<dyn transport::Sleep>> {
        None
    }
}

/// Runs the coroutines and drivers of one thread.
pub struct Executor {
    handle: Handle,
    drivers: Vec<Box<dyn Driver>>,
    /// Wakers by task id.
    wakers: Vec<Waker>,
    /// Tasks to poll in the current round; empty between rounds.
    turn: Vec<TaskId>,
    turns: u32,
}

impl Executor {
    /// An executor without tasks or drivers.
    pub fn new(env: Env) -> Self {
        let core = Core {
            recent: Cell::new(env.now()),
            env,
            tasks: RefCell::default(),
            timers: RefCell::default(),
            current: Cell::new(TaskId(0)),
            company: Cell::new(false),
            sockets: OnceCell::new(),
            foreign: Arc::new(CrossThreadState::default()),
        };
        let handle = Handle { core: Rc::new(core) };
        let (drivers, wakers, turn) = (Vec::new(), Vec::new(), Vec::new());
        Self { handle, drivers, wakers, turn, turns: 0 }
    }

    /// Handle for the futures running on the executor.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Polls `driver` in every turn from now on. The first driver with a sleeper decides how the
    /// executor sleeps; input of the remaining drivers is seen only after the sleep.
    pub fn add_driver(&mut self, driver: impl Driver + 'static) {
        if let Some(sleeper) = driver.sleeper() {
            let _the_first_stays = self.handle.core.foreign.sleeper.set(sleeper);
        }
        self.drivers.push(Box::new(driver));
    }

    /// Number of tasks not yet ended.
    pub fn live_tasks(&self) -> usize {
        self.handle.core.tasks.borrow().live
    }

    /// Polls every ready task, then the drivers and timers. Returns whether there was progress.
    pub fn turn(&mut self) -> bool {
        self.turn_of_rounds(1)
    }

    /// Polls the ready tasks for at most `rounds` rounds, including tasks that become ready
    /// meanwhile; then the drivers and timers. Returns whether there was progress.
    fn turn_of_rounds(&mut self, rounds: u32) -> bool {
        self.count_turn();
        let mut polls = 0;
        for _ in 0..rounds {
            let polled = self.poll_ready();
            polls += polled;
            if polled == 0 || polls >= POLLS_PER_TURN {
                break;
            }
        }
        let mut progress = polls > 0;
        for driver in &mut self.drivers {
            progress |= driver.drive();
        }
        progress |= self.take_foreign_wakes();
        progress |= self.look_at_sockets(progress);
        progress |= self.fire_timers(progress);
        progress
    }

    #[inline]
    fn look_at_sockets(&self, busy: bool) -> bool {
        let Some(sockets) = self.handle.core.sockets.get() else { return false };
        let due = !busy || self.turns.is_multiple_of(TURNS_PER_SOCKETS_LOOK);
        due && sockets.look(&self.handle)
    }

    /// Polls the ready tasks, but no drivers or timers. For a simulator, where drivers and timers
    /// have nothing new within one moment of virtual time.
    pub(crate) fn turn_of_tasks(&mut self) {
        self.count_turn();
        self.handle.core.prefetch_ready();
        self.poll_ready();
        self.take_foreign_wakes();
    }

    #[inline]
    fn count_turn(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_CLOCK_READ) {
            self.handle.now();
        }
    }

    /// Polls every ready task once, and, every few dozen polls, the tasks with due timers. Returns
    /// the number of ready tasks.
    #[inline]
    fn poll_ready(&mut self) -> usize {
        let core = &*self.handle.core;
        std::mem::swap(&mut self.turn, &mut core.tasks.borrow_mut().ready);
        let ready = self.turn.len();
        core.company.set(ready > 1);
        let mut until_look = POLLS_PER_TIMER_LOOK;
        for id in self.turn.drain(..) {
            if until_look == 0 {
                until_look = POLLS_PER_TIMER_LOOK;
                core.poll_due(&mut self.wakers);
            }
            until_look -= 1;
            core.poll(id, &mut self.wakers);
        }
        ready
    }

    /// Returns whether a turn would find no work except timers.
    pub fn is_idle(&self) -> bool {
        self.tasks_are_idle() && !self.drivers.iter().any(|driver| driver.has_input())
    }

    /// Returns whether no task is ready; does not consider the drivers.
    pub(crate) fn tasks_are_idle(&self) -> bool {
        let core = &*self.handle.core;
        core.tasks.borrow().ready.is_empty() && !core.foreign.pending.load(Ordering::Acquire)
    }

    /// Calls `listener` at every foreign wake from now on, for a caller of [`Executor::turn`],
    /// which has no executor thread to unpark. Only the first listener counts.
    pub fn on_foreign_wake(&self, listener: Arc<dyn transport::Wake>) {
        let _the_first_stays = self.handle.core.foreign.listener.set(listener);
    }

    /// Time of the earliest timer; `None` without timers.
    pub fn next_timer(&self) -> Option<Nanos> {
        self.handle.core.timers.borrow().peek().map(|Reverse((due, _))| *due)
    }

    /// Runs the tasks until `future` is done.
    pub fn run<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut value = None;
        self.run_until(&mut |context| match future.as_mut().poll(context) {
            Poll::Ready(done) => {
                value = Some(done);
                Poll::Ready(())
            }
            Poll::Pending => Poll::Pending,
        });
        value.expect("the future is done")
    }

    /// Runs the tasks until `poll` is ready. Without type parameters: the loop is compiled once.
    fn run_until(&mut self, poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>) {
        // The caller's future may borrow, so it stays on the stack, represented by a stand-in task.
        let root = Rc::new(Root::default());
        let task = self.handle.spawn(Root::stand_in(Rc::clone(&root)));
        let mut idle_since = None;
        loop {
            if self.turn_of_rounds(ROUNDS_PER_TURN) {
                idle_since = None;
                let Some(waker) = root.due.take() else { continue };
                self.handle.core.current.set(task);
                if poll(&mut Context::from_waker(&waker)).is_ready() {
                    root.done.set(true);
                    self.handle.wake(task);
                    return;
                }
                continue;
            }
            let now = self.handle.now();
            let since = *idle_since.get_or_insert(now);
            if now.since(since) >= self.spin() {
                self.park(now);
                idle_since = None;
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn spin(&self) -> Duration {
        let core = &*self.handle.core;
        let spin = core.foreign.sleeper.get().map_or(SPIN, |sleeper| sleeper.spin());
        if core.sockets.get().is_some() { spin.min(SPIN_ON_SOCKETS) } else { spin }
    }

    fn take_foreign_wakes(&self) -> bool {
        let foreign = &self.handle.core.foreign;
        if !foreign.pending.load(Ordering::Acquire) {
            return false;
        }
        // Cleared before the list is read: a wake in between is seen in the next turn.
        foreign.pending.store(false, Ordering::SeqCst);
        let mut woken = foreign.woken.lock().unwrap_or_else(PoisonError::into_inner);
        woken.drain(..).for_each(|task| self.handle.wake(task));
        true
    }

    fn fire_timers(&self, busy: bool) -> bool {
        let core = &*self.handle.core;
        let Some(due) = self.next_timer() else { return false };
        let recent = self.handle.recent();
        let far = due.since(recent) > SOON && !self.turns.is_multiple_of(TURNS_PER_TIMER_LOOK);
        let now = if busy && far { recent } else { self.handle.now() };
        let mut fired = false;
        while let Some(task) = core.take_due(now) {
            self.handle.wake(task);
            fired = true;
        }
        fired
    }

    /// Sleeps until a foreign wake, input, or the next timer.
    fn park(&self, now: Nanos) {
        let foreign = &self.handle.core.foreign;
        let wait = self.next_timer().map_or(MAX_PARK, |due| due.since(now).min(MAX_PARK));
        foreign.go_to_sleep();
        // A wake after `go_to_sleep` unparks the thread; an earlier wake is seen by the check
        // below.
        let input = foreign.pending.load(Ordering::SeqCst)
            || self.drivers.iter().any(|driver| driver.has_input());
        match foreign.sleeper.get() {
            _ if input => {}
            Some(sleeper) => sleeper.sleep(wait),
            None => std::thread::park_timeout(wait),
        }
        foreign.asleep.store(false, Ordering::Relaxed);
    }
}

impl Core {
    /// Prefetches the futures of the ready tasks.
    #[inline]
    fn prefetch_ready(&self) {
        let tasks = self.tasks.borrow();
        for id in &tasks.ready {
            if let Some(future) = &tasks.slots[id.0 as usize].future {
                prefetch::whole(&**future);
            }
        }
    }

    /// Creates wakers for the tasks that have none.
    #[cold]
    fn add_wakers(&self, wakers: &mut Vec<Waker>) {
        let waker = |id| TaskWaker { foreign: Arc::clone(&self.foreign), id: TaskId(id) };
        let missing = wakers.len() as u32..self.tasks.borrow().slots.len() as u32;
        wakers.extend(missing.map(|id| Waker::from(Arc::new(waker(id)))));
    }

    /// Polls the tasks with due timers. Timers set during the polls are left for later.
    #[cold]
    fn poll_due(&self, wakers: &mut Vec<Waker>) {
        let now = self.env.now();
        self.recent.set(now);
        let due: Vec<TaskId> = std::iter::from_fn(|| self.take_due(now)).collect();
        due.into_iter().for_each(|task| self.poll(task, wakers));
    }

    /// Removes the earliest timer if due; returns its task.
    #[inline]
    fn take_due(&self, now: Nanos) -> Option<TaskId> {
        let mut timers = self.timers.borrow_mut();
        let Reverse((due, task)) = *timers.peek()?;
        if due > now {
            return None;
        }
        timers.pop();
        Some(task)
    }

    #[inline]
    fn poll(&self, id: TaskId, wakers: &mut Vec<Waker>) {
        if wakers.len() <= id.0 as usize {
            self.add_wakers(wakers);
        }
        let Some(mut future) = self.tasks.borrow_mut().take(id) else { return };
        self.current.set(id);
        let waker = &wakers[id.0 as usize];
        let polled = future.as_mut().poll(&mut Context::from_waker(waker));
        // Borrowed only after the poll, and not while an ended future is dropped: dropping may wake
        // or spawn tasks.
        let mut tasks = self.tasks.borrow_mut();
        if polled.is_pending() {
            tasks.slots[id.0 as usize].future = Some(future);
        } else {
            tasks.end(id);
        }
    }
}

impl Tasks {
    #[inline]
    fn take(&mut self, id: TaskId) -> Option<BoxFuture> {
        let slot = &mut self.slots[id.0 as usize];
        slot.queued = false;
        slot.future.take()
    }

    fn end(&mut self, id: TaskId) {
        self.slots[id.0 as usize].live = false;
        self.free.push(id);
        self.live -= 1;
    }
}

impl Drop for Executor {
    /// Drops the futures. They hold handles on the executor, so the core and the lanes used by the
    /// futures would otherwise stay alive.
    fn drop(&mut self) {
        let core = &*self.handle.core;
        // With no free slots, tasks spawned during the drops get slots at the end, and are dropped
        // as well (I169).
        core.tasks.borrow_mut().free.clear();
        let mut next = 0;
        while next < core.tasks.borrow().slots.len() {
            // A statement of its own: dropping the future may wake or spawn tasks.
            let task = core.tasks.borrow_mut().take(TaskId(next as u32));
            drop(task);
            next += 1;
        }
    }
}

/// State shared between the future polled by [`Executor::run`] and its stand-in task.
#[derive(Default)]
struct Root {
    /// Waker for polling the future; set when the stand-in task is polled.
    due: Cell<Option<Waker>>,
    done: Cell<bool>,
}

impl Root {
    async fn stand_in(root: Rc<Self>) {
        std::future::poll_fn(|cx| {
            root.due.set(Some(cx.waker().clone()));
            if root.done.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// The part of an executor that other threads may touch.
#[derive(Default)]
struct CrossThreadState {
    /// Tasks to poll.
    woken: Mutex<Vec<TaskId>>,
    /// Whether `woken` may hold tasks.
    pending: AtomicBool,
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
    /// Called at every wake, if a simulator turns the executor.
    listener: OnceLock<Arc<dyn transport::Wake>>,
    /// The thread's sleeper; without a sleeper the thread parks.
    sleeper: OnceLock<Arc<dyn transport::Sleep>>,
}

impl CrossThreadState {
    fn go_to_sleep(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.as_ref().is_none_or(|known| known.id() != std::thread::current().id()) {
            *thread = Some(std::thread::current());
        }
        drop(thread);
        // SeqCst on both sides: this thread stores `asleep`, then reads the inputs; the waking
        // thread writes the input, then reads `asleep`. So at least one thread sees the store of
        // the other.
        self.asleep.store(true, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

impl transport::Wake for CrossThreadState {
    fn wake(&self) {
        if let Some(listener) = self.listener.get() {
            listener.wake();
        }
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            if let Some(sleeper) = self.sleeper.get() {
                return sleeper.wake();
            }
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(thread) = thread.as_ref() {
                thread.unpark();
            }
        }
    }
}

struct TaskWaker {
    foreign: Arc<CrossThreadState>,
    id: TaskId,
}

impl std::task::Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.foreign.woken.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
        self.foreign.pending.store(true, Ordering::SeqCst);
        transport::Wake::wake(&*self.foreign);
    }
}

#[cfg(test)]
mod tests;
