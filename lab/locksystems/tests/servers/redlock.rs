//! RedLock, in simulation: what its time to live lets happen, and a majority of servers.

use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::MachinesExt;
use lotus_fabric::sim::{Fault, MemoryFate, Rates, SimMachines};
use lotus_locks::{Mode, NotHeld, Wait};
use lotus_locksystems::Locker;
use lotus_locksystems::redlock::rules::Times;

use super::platforms::{LOAD, LockBackend, Redises, Service, simulated};
use super::single::start;

const PATIENT: Wait = Wait::Until(Nanos::NEVER);
const LOCK: u64 = 0;
const FIRST: NodeId = NodeId(2);
const SECOND: NodeId = NodeId(3);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn isolate(machines: &SimMachines, node: NodeId) {
    machines.world().inject(Fault::Isolate { node }).expect("there is such a node");
}

/// The published hole, over a fabric: the first is slow, the second holds the lock, and only the
/// release tells the first, which leaves the second's key alone.
#[test]
fn a_slow_holder_is_beside_the_next_one_and_hears_of_it_at_its_release() {
    let machines = simulated(1, Rates::default());
    let service = Service::new(&machines, Redises::new(1, Times::BANK), LOAD);
    let (_stop, stopped) = async_channel::bounded(1);
    service.serve(&machines, &stopped);
    let slow = start(&machines, &service, FIRST, |context| async move {
        let held =
            context.client.acquire(LOCK, Mode::Exclusive, PATIENT).await.expect("it is free");
        context.lane.executor().sleep(millis(7)).await;
        let early = context.client.is_valid(&held);
        context.lane.executor().sleep(millis(9)).await;
        let late = context.client.is_valid(&held);
        (early, late, context.client.release(held).await)
    });
    machines.run_for(millis(1));
    let next = start(&machines, &service, SECOND, |context| async move {
        let held = context.client.acquire(LOCK, Mode::Shared, PATIENT).await.expect("it expires");
        let since = context.lane.executor().now();
        // The first releases its lock meanwhile.
        context.lane.executor().sleep(millis(7)).await;
        let until = context.lane.executor().now();
        (since, until, context.client.release(held).await)
    });
    assert_eq!(machines.wait(&slow).expect("it ends"), (true, false, Err(NotHeld::Reset)));
    assert_eq!(service.backend.used(), 1, "the key is the second's");
    let (since, until, released) = machines.wait(&next).expect("it ends");
    assert!(until.since(since) >= millis(7));
    assert_eq!(released, Ok(()), "it was not deleted by another");
    assert_eq!(service.backend.used(), 0);
}

#[test]
fn the_lock_of_a_node_that_is_lost_ends_with_its_time_to_live() {
    let machines = simulated(1, Rates::default());
    let service = Service::new(&machines, Redises::new(1, Times::BANK), LOAD);
    let (_stop, stopped) = async_channel::bounded(1);
    service.serve(&machines, &stopped);
    start(&machines, &service, FIRST, |context| async move {
        let _held =
            context.client.acquire(LOCK, Mode::Exclusive, PATIENT).await.expect("it is free");
        context.lane.executor().sleep(millis(1000)).await;
    });
    machines.run_for(millis(1));
    machines.world().crash(FIRST, MemoryFate::Lost).expect("it is up");
    let next = start(&machines, &service, SECOND, |context| async move {
        let began = context.lane.executor().now();
        let early = began.after(millis(5));
        let early = context.client.acquire(LOCK, Mode::Exclusive, Wait::Until(early)).await.err();
        let late = context.client.acquire(LOCK, Mode::Exclusive, PATIENT).await;
        let waited = context.lane.executor().now().since(began);
        (early, waited, context.client.release(late.expect("it expires")).await)
    });
    let (early, waited, released) = machines.wait(&next).expect("it ends");
    assert_eq!((early, released), (Some(NotHeld::TimedOut), Ok(())));
    assert!((millis(8)..millis(11)).contains(&waited), "{waited:?}");
}

/// With three servers, one that is silent changes nothing but the deletions of what it may have;
/// without two, nothing is held.
#[test]
fn a_majority_of_three_servers_is_enough_and_less_is_not() {
    for silent in 0..=2_usize {
        let machines = simulated(1, Rates::default());
        let times = Times { patience: millis(200), ..Times::LOCKS };
        let service = Service::new(&machines, Redises::new(3, times), LOAD);
        let (_stop, stopped) = async_channel::bounded(1);
        service.serve(&machines, &stopped);
        let places: Vec<_> = service.backend.cores().into_iter().map(|(at, _)| at.node).collect();
        machines.run_for(millis(1));
        places.iter().take(silent).for_each(|node| isolate(&machines, *node));
        let told = start(&machines, &service, FIRST, |context| async move {
            let held = match context.client.acquire(LOCK, Mode::Exclusive, Wait::No).await {
                Ok(held) => held,
                Err(why) => return (Err(why), None, Err(why)),
            };
            let other = context.client.acquire(LOCK, Mode::Exclusive, Wait::No).await.err();
            let released = context.client.release(held).await;
            let again = context.client.acquire(LOCK, Mode::Exclusive, PATIENT).await.map(drop);
            context.client.quiet().await;
            (released, other, again)
        });
        let expected = match silent {
            0 | 1 => (Ok(()), Some(NotHeld::Conflict), Ok(())),
            _ => (Err(NotHeld::Unavailable), None, Err(NotHeld::Unavailable)),
        };
        assert_eq!(machines.wait(&told).expect("it ends"), expected, "{silent} are silent");
    }
}

/// Two that ask at once may have a server each of a split vote; both let go, and one has it later.
#[test]
fn many_who_ask_three_servers_at_once_have_the_lock_one_after_another() {
    let machines = simulated(3, Rates::default());
    let service = Service::new(&machines, Redises::new(3, Times::LOCKS), LOAD);
    let (_stop, stopped) = async_channel::bounded(1);
    service.serve(&machines, &stopped);
    let lanes = [FIRST, SECOND].map(|node| {
        start(&machines, &service, node, |context| async move {
            for _ in 0..200 {
                let held = context.client.acquire(LOCK, Mode::Exclusive, PATIENT).await;
                let held = held.expect("its turn comes");
                context.use_lock(LOCK, Mode::Exclusive, Duration::from_micros(3)).await;
                context.client.release(held).await.expect("it was held");
            }
            context.client.quiet().await;
            context.client.counts().acquired
        })
    });
    for lane in lanes {
        assert_eq!(machines.wait(&lane), Some(200));
    }
    assert_eq!(service.referee.violations(), [""; 0]);
    assert_eq!(service.backend.used(), 0);
}

/// A server that answers nothing is given up, and no request of it hangs.
#[test]
fn a_server_that_is_lost_is_told_to_those_who_wait() {
    let machines = simulated(1, Rates::default());
    let service = Service::new(&machines, Redises::new(1, Times::LOCKS), LOAD);
    let (_stop, stopped) = async_channel::bounded(1);
    service.serve(&machines, &stopped);
    let result = start(&machines, &service, FIRST, |context| async move {
        let held =
            context.client.acquire(LOCK, Mode::Exclusive, PATIENT).await.expect("it is free");
        context.lane.executor().sleep(millis(1)).await;
        let released = context.client.release(held).await;
        (released, context.client.acquire(LOCK + 1, Mode::Shared, PATIENT).await.err())
    });
    machines.run_for(Duration::from_micros(500));
    isolate(&machines, service.backend.cores()[0].0.node);
    let told = machines.wait(&result).expect("it ends");
    assert_eq!(told, (Err(NotHeld::Unavailable), Some(NotHeld::Unavailable)));
}
