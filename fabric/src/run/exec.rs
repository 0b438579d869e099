//! The coordinator's executor: one thread, N coroutines, no waker on the data path.
//!
//! # What it is
//! A slab of tasks and a list of those that are ready. A completion names the task to poll (the
//! lane remembers which task waits for a batch), so the data path never touches a [`Waker`]. Wakers
//! serve everything else: channels, other threads, other runtimes. They mark the task in a shared
//! list and wake the thread.
//!
//! # What it is not
//! It does not steal work, it does not preempt, and its tasks never leave their thread. A future
//! of this crate must be polled by its own task: combinators that hand out wakers of their own
//! (`FuturesUnordered`) would wait for ever.
//!
//! # Running it
//! [`Executor::run`] on a real machine: poll, spin briefly, then park, so that more coordinators
//! than cores stay usable. A simulator calls [`Executor::turn`] itself, on virtual time.

mod bed;
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

pub(crate) use bed::Bed;
pub use sockets::Socket;
use sockets::Sockets;

/// Identifies a task of one executor. Reused after the task ends; waking a stale one causes a
/// spurious poll.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TaskId(u32);

impl TaskId {
    /// No task; must not be woken.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// Rounds in which tasks are polled before the drivers are. A task that has yielded then posts
/// together with the others, so that a back end over the operating system sends fewer, larger
/// pieces.
const ROUNDS_PER_TURN: u32 = 4;
/// Time for which an idle executor spins before it parks.
const SPIN: Duration = Duration::from_micros(20);
/// The same for an executor with sockets, where each turn asks the kernel, and the sender may be
/// waiting for this core.
const SPIN_ON_SOCKETS: Duration = Duration::from_micros(5);
/// Turns of a busy executor between reads of the clock for [`Handle::recent`].
const TURNS_PER_CLOCK_READ: u32 = 64;
/// Turns of a busy executor between reads of the clock for a timer further off than [`SOON`].
const TURNS_PER_TIMER_LOOK: u32 = 8;
const SOON: Duration = Duration::from_micros(100);
/// Polls in a turn after which no further round begins: they have enough to post together.
const POLLS_PER_TURN: usize = 128;
/// Polls within a turn between two looks at the timers. Hundreds of requests that come at once must
/// not delay what has a time, as a node's beats have.
const POLLS_PER_TIMER_LOOK: usize = 32;
/// Turns of a busy executor between looks at its sockets.
const TURNS_PER_SOCKETS_LOOK: u32 = 16;
/// The longest sleep, so that a wake lost by a foreign waker costs a delay and not a hang.
const MAX_PARK: Duration = Duration::from_millis(100);

type BoxFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Slot {
    /// `None` while the task is being polled, and once it has ended.
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

/// A handle on an executor, for the futures that run on it.
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
    /// Whether this turn polls more than one task.
    company: Cell<bool>,
    /// Created when the first socket is adopted.
    sockets: OnceCell<Rc<Sockets>>,
    foreign: Arc<Foreign>,
}

impl Handle {
    /// The environment that the executor runs in.
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

    /// The clock's last reading: an idle executor reads the clock before it sleeps, a busy one
    /// every few dozen turns. Costs nothing.
    #[inline]
    pub fn recent(&self) -> Nanos {
        self.core.recent.get()
    }

    /// Adds a task; it is first polled in the next turn.
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

    /// The task that is being polled now.
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

    /// Wakes a task once the clock shows `due`, unless it has ended. The task may also be woken
    /// earlier, and must call this again for a later time.
    pub fn wake_at(&self, due: Nanos, task: TaskId) {
        self.core.timers.borrow_mut().push(Reverse((due, task)));
    }

    /// Whether other tasks are polled in this turn or the next: a task that waits for memory can
    /// then yield to them without losing time.
    #[inline]
    pub fn has_company(&self) -> bool {
        self.core.company.get() || !self.core.tasks.borrow().ready.is_empty()
    }

    /// Lets every other ready task run once before this one goes on.
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

    /// Waits for the next [`Handle::wake`] of this task. May return early.
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

    /// Registers a connection (any kind of stream) for a task of this executor, which from now on
    /// polls it and sleeps on it.
    ///
    /// # Errors
    /// The process has too many files open.
    pub fn adopt(&self, stream: impl Into<OwnedFd>) -> io::Result<Socket> {
        let sockets = match self.core.sockets.get() {
            Some(sockets) => sockets,
            None => {
                let sockets = Rc::new(Sockets::new()?);
                let lanes = self.core.foreign.sleeper.get();
                // If there is a sleeper already, `sleeper` returns the same one.
                let sleeper = sockets::sleeper(lanes, &sockets)?;
                self.core.foreign.sleeper.get_or_init(|| sleeper);
                self.core.sockets.get_or_init(|| sockets)
            }
        };
        Socket::new(stream.into(), sockets, self)
    }

    /// Begins to connect to an address over TCP, without blocking. Until the connection is made the
    /// socket can be neither read nor written; if it cannot be made, reading and writing fail.
    ///
    /// # Errors
    /// The process has too many files open, or no way leads to the address.
    pub fn connect(&self, address: SocketAddr) -> io::Result<Socket> {
        self.adopt(sockets::connecting(address)?)
    }

    /// A handle that wakes the executor's thread from any thread.
    pub fn waker(&self) -> Arc<dyn transport::Wake> {
        Arc::clone(&self.core.foreign) as Arc<dyn transport::Wake>
    }
}

/// A source of input that an executor polls between its tasks: a lane, or a stub in tests.
pub trait Driver {
    /// Takes in completions and messages, and wakes tasks. Returns whether there were any.
    fn drive(&mut self) -> bool;
    /// Whether `drive` would find something now.
    fn has_input(&self) -> bool;
    /// Way to sleep until there is input, for a driver whose input does not wake the executor.
    fn sleeper(&self) -> Option<Arc<dyn transport::Sleep>> {
        None
    }
}

/// Runs the coroutines and drivers of one thread.
pub struct Executor {
    handle: Handle,
    drivers: Vec<Box<dyn Driver>>,
    /// By task.
    wakers: Vec<Waker>,
    /// Tasks polled in the current round; empty between rounds.
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
            foreign: Arc::new(Foreign::default()),
        };
        let handle = Handle { core: Rc::new(core) };
        let (drivers, wakers, turn) = (Vec::new(), Vec::new(), Vec::new());
        Self { handle, drivers, wakers, turn, turns: 0 }
    }

    /// Handle for the futures that run on this executor.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Polls `driver` in every turn from now on. The first driver with a sleeper of its own decides
    /// how the executor sleeps; input of the other drivers is then seen after that sleep.
    pub fn add_driver(&mut self, driver: impl Driver + 'static) {
        if let Some(sleeper) = driver.sleeper() {
            let _the_first_stays = self.handle.core.foreign.sleeper.set(sleeper);
        }
        self.drivers.push(Box::new(driver));
    }

    /// Number of tasks that have not ended.
    pub fn live_tasks(&self) -> usize {
        self.handle.core.tasks.borrow().live
    }

    /// Polls every task that is ready, then the drivers and timers. Returns whether anything
    /// happened.
    pub fn turn(&mut self) -> bool {
        self.turn_of_rounds(1)
    }

    /// Polls the ready tasks, and those that become ready, for at most `rounds` rounds; then the
    /// drivers and timers. Returns whether anything happened.
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

    /// Polls the ready tasks, but no drivers or timers. For a simulator, where those have nothing
    /// new within one moment.
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

    /// Polls every ready task once, and between many of them those whose time has come. Returns the
    /// number of ready tasks.
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

    /// Whether a turn would find nothing but timers to look at.
    pub fn is_idle(&self) -> bool {
        self.tasks_are_idle() && !self.drivers.iter().any(|driver| driver.has_input())
    }

    /// Whether no task is ready; does not consider the drivers.
    pub(crate) fn tasks_are_idle(&self) -> bool {
        let core = &*self.handle.core;
        core.tasks.borrow().ready.is_empty() && !core.foreign.pending.load(Ordering::Acquire)
    }

    /// Calls `listener` at every foreign wake from now on, for a caller that runs
    /// [`Executor::turn`] itself and so has no executor thread to unpark. Only the first listener
    /// counts.
    pub fn on_foreign_wake(&self, listener: Arc<dyn transport::Wake>) {
        let _the_first_stays = self.handle.core.foreign.listener.set(listener);
    }

    /// Time of the earliest timer, if there is one.
    pub fn next_timer(&self) -> Option<Nanos> {
        self.handle.core.timers.borrow().peek().map(|Reverse((due, _))| *due)
    }

    /// Runs until `future` is done; other tasks run meanwhile.
    pub fn run<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        // The future may borrow, so it stays on this stack, represented by a task of its own.
        let root = Rc::new(Root::default());
        let task = self.handle.spawn(Root::stand_in(Rc::clone(&root)));
        let mut idle_since = None;
        loop {
            if self.turn_of_rounds(ROUNDS_PER_TURN) {
                idle_since = None;
                let Some(waker) = root.due.take() else { continue };
                self.handle.core.current.set(task);
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(value) = polled {
                    root.done.set(true);
                    self.handle.wake(task);
                    return value;
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
        // Cleared before the list is read: a wake in between is seen next time.
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

    /// Sleeps until something foreign happens or the next timer is due.
    fn park(&self, now: Nanos) {
        let foreign = &self.handle.core.foreign;
        let wait = self.next_timer().map_or(MAX_PARK, |due| due.since(now).min(MAX_PARK));
        foreign.go_to_sleep();
        // A wake after `go_to_sleep` unparks this thread; an earlier one is seen here.
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

    /// Makes the wakers of all tasks that have none.
    #[cold]
    fn add_wakers(&self, wakers: &mut Vec<Waker>) {
        let waker = |id| TaskWaker { foreign: Arc::clone(&self.foreign), id: TaskId(id) };
        let missing = wakers.len() as u32..self.tasks.borrow().slots.len() as u32;
        wakers.extend(missing.map(|id| Waker::from(Arc::new(waker(id)))));
    }

    /// Polls the tasks whose time has come. Timers that they set meanwhile are left for later.
    #[cold]
    fn poll_due(&self, wakers: &mut Vec<Waker>) {
        let now = self.env.now();
        self.recent.set(now);
        let due: Vec<TaskId> = std::iter::from_fn(|| self.take_due(now)).collect();
        due.into_iter().for_each(|task| self.poll(task, wakers));
    }

    /// Takes the earliest timer that is due; returns its task.
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
        // Borrowed only after the poll, and not while an ended future is dropped: that may wake or
        // spawn tasks.
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
    /// Drops the futures. They hold handles on the executor, so the core and the lanes that they
    /// use would otherwise stay alive.
    fn drop(&mut self) {
        let core = &*self.handle.core;
        // Tasks spawned while futures are dropped then get slots at the end, and are dropped as
        // well.
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

/// State that a future polled by [`Executor::run`] itself shares with the task that represents it.
#[derive(Default)]
struct Root {
    /// Waker to poll the future with; set when the task is polled.
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
struct Foreign {
    /// Tasks to poll.
    woken: Mutex<Vec<TaskId>>,
    /// Whether `woken` may hold something.
    pending: AtomicBool,
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
    /// Called at every wake, where a simulator turns the executor.
    listener: OnceLock<Arc<dyn transport::Wake>>,
    /// The thread's way to sleep, if not by parking.
    sleeper: OnceLock<Arc<dyn transport::Sleep>>,
}

impl Foreign {
    fn go_to_sleep(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.as_ref().is_none_or(|known| known.id() != std::thread::current().id()) {
            *thread = Some(std::thread::current());
        }
        drop(thread);
        // SeqCst on both sides (here, then reading the inputs; there, writing the input, then
        // reading `asleep`): one of the two sees the other.
        self.asleep.store(true, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

impl transport::Wake for Foreign {
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
    foreign: Arc<Foreign>,
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
