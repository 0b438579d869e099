//! A lane's access to the locks of a switch.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::Handle;
use lotus_fabric::ids::Endpoint;
use lotus_fabric::rpc::Rpc;
use lotus_locks::word::Mode;
use lotus_locks::{Counts, NotHeld, Wait};

use super::machine::{Machine, RequestNotice};
use super::places::Places;
use super::port::Port;
use crate::fisslock::Packet;
use crate::fisslock::cores::AGENT_CORE;
use crate::locker::Locker;
use crate::servers::CpuCharge;

/// The locks of a switch, as used by one lane of a machine. An update lock is exclusive.
#[derive(Clone)]
pub struct SwitchedLocker {
    inner: Rc<Lane>,
}

struct Lane {
    machine: Arc<Machine>,
    /// The lane's core on the machine.
    core: u8,
    executor: Handle,
    switch: Endpoint,
    port: Port,
    counts: RefCell<Counts>,
}

impl SwitchedLocker {
    /// Opens the locks of a machine for tasks of a lane's executor. An additional task sends and
    /// receives the packets of these tasks. When the executor ends, the agent's core does the
    /// remaining work. `cpu_charge` is charged for every received packet, where time is virtual.
    ///
    /// # Panics
    /// If the lane is not of a client core of the machine.
    pub fn open(
        machine: Arc<Machine>,
        places: &Places,
        rpc: &Rpc,
        cpu_charge: Option<CpuCharge>,
    ) -> Self {
        let core = places.core_at(machine.number(), rpc.lane().at());
        let core = core.filter(|core| *core != AGENT_CORE).expect("a lane of a client's core");
        let executor = rpc.lane().executor().clone();
        let switch = places.switch_of(machine.number());
        let port = Port::of(rpc.clone(), cpu_charge, move |from| from == switch);
        let counts = RefCell::default();
        let inner = Rc::new(Lane { machine, core, executor, switch, port, counts });
        let pumped = Rc::clone(&inner);
        inner.executor.spawn(async move { pumped.pump().await });
        Self { inner }
    }

    fn count(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut self.inner.counts.borrow_mut());
    }
}

impl Lane {
    fn send(&self, packets: Vec<Packet>) {
        for packet in packets {
            self.port.send(self.switch, &packet);
        }
    }

    /// Sends and receives packets for ever.
    async fn pump(&self) {
        poll_fn(|task| {
            self.port.read_here();
            let (packets, now) = (self.port.take(), self.executor.now());
            self.send(self.machine.turn(self.core, packets, now, task.waker()));
            Poll::<()>::Pending
        })
        .await;
    }
}

/// A request in progress. Dropping the request gives it up.
struct Asking {
    inner: Rc<Lane>,
    /// Number of the request; `None` once the outcome is known.
    task: Option<u32>,
}

impl Asking {
    fn of(inner: &Rc<Lane>, lock: u32, mode: Mode) -> Self {
        let (task, sent) = inner.machine.ask(inner.core, lock, mode, inner.executor.now());
        inner.send(sent);
        Self { inner: Rc::clone(inner), task: Some(task) }
    }

    /// Awaits the outcome of the request, and whether the request was in a queue. The result is
    /// `None` if the request still waits at the deadline, or is known to wait although `wait` does
    /// not allow waiting.
    fn outcome(&mut self, wait: Wait) -> impl Future<Output = Option<(RequestNotice, bool)>> {
        let mut timer = None;
        poll_fn(move |context| {
            let Some(task) = self.task else { return Poll::Ready(None) };
            let machine = &self.inner.machine;
            while let Some((notice, was_queued)) = machine.notice(task, context.waker()) {
                if notice != RequestNotice::Queued {
                    self.task = None;
                    return Poll::Ready(Some((notice, was_queued)));
                }
                if wait == Wait::No {
                    return Poll::Ready(None);
                }
            }
            let executor = &self.inner.executor;
            match wait {
                Wait::Until(until) if until <= executor.now() => return Poll::Ready(None),
                Wait::Until(Nanos::NEVER) | Wait::No => {}
                Wait::Until(until) => {
                    let current = executor.current();
                    if timer != Some(current) {
                        timer = Some(current);
                        executor.wake_at(until, current);
                    }
                }
            }
            Poll::Pending
        })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            let inner = &self.inner;
            inner.send(inner.machine.give_up(task, inner.executor.now()));
        }
    }
}

/// A held lock of a switch. Dropping the hold releases the lock.
pub struct SwitchedHold {
    inner: Rc<Lane>,
    lock: u32,
    /// The request that holds the lock.
    task: u32,
}

impl Drop for SwitchedHold {
    fn drop(&mut self) {
        let inner = &self.inner;
        inner.send(inner.machine.release(self.lock, self.task, inner.executor.now()));
    }
}

impl Locker for SwitchedLocker {
    type Held = SwitchedHold;

    /// Acquires a lock. The deadline is kept, whatever is lost. A request that must not wait is
    /// refused as soon as the request is known to be in a queue, which never happens if the switch
    /// does not answer.
    ///
    /// # Panics
    /// If the switch has no lock with the number `lock`.
    async fn acquire(&self, lock: u64, mode: Mode, wait: Wait) -> Result<SwitchedHold, NotHeld> {
        let inner = &self.inner;
        let lock = u32::try_from(lock).ok().filter(|lock| *lock < inner.machine.locks());
        let lock = lock.expect("the switch has that lock");
        let mode = if mode == Mode::Shared { Mode::Shared } else { Mode::Exclusive };
        loop {
            let mut asking = Asking::of(inner, lock, mode);
            let Some(task) = asking.task else { unreachable!("it was asked just now") };
            match asking.outcome(wait).await {
                Some((RequestNotice::Granted, was_queued)) => {
                    self.count(|counts| {
                        counts.acquired += 1;
                        counts.waited += u64::from(was_queued);
                    });
                    return Ok(SwitchedHold { inner: Rc::clone(inner), lock, task });
                }
                None if wait == Wait::No => return Err(NotHeld::Conflict),
                Some(_) if wait == Wait::No => return Err(NotHeld::Conflict),
                None => {
                    self.count(|counts| counts.timed_out += 1);
                    return Err(NotHeld::TimedOut);
                }
                // The queue is full, or the agent was absent for long.
                Some(_) => self.count(|counts| counts.retries += 1),
            }
            inner.executor.sleep(inner.machine.repetition()).await;
        }
    }

    /// Releases a lock without waiting: the lock is free, or the next holder's, when the agent
    /// hears of the release.
    async fn release(&self, held: SwitchedHold) -> Result<(), NotHeld> {
        drop(held);
        Ok(())
    }

    fn counts(&self) -> Counts {
        *self.inner.counts.borrow()
    }

    /// Waits until no lane of the machine has a request waiting or a packet in flight.
    async fn quiet(&self) {
        while !self.inner.machine.is_quiet() {
            self.inner.executor.sleep(self.inner.machine.repetition()).await;
        }
    }
}
