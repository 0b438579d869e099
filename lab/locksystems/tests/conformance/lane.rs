//! One lane in simulation, for what is to happen in a certain order.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::ids::{NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_fabric::machines::{Machines, MachinesExt};
use lotus_fabric::region::Rights;
use lotus_fabric::rpc::Service;
use lotus_fabric::sim::{Config, Profile, SimMachines, World};
use lotus_locks::{Client, Identity, LockSystem, Roster};

/// The lock.
pub fn lock() -> RemoteAddr {
    RemoteAddr::new(NodeId(0), RegionId(0), 64)
}

/// A lane that uses locks.
pub struct Place<S: LockSystem> {
    pub client: Client<S>,
    pub lane: Lane,
    pub timer: Handle,
}

impl<S: LockSystem> Place<S> {
    /// The time, in so many microseconds.
    pub fn after(&self, micros: u64) -> Nanos {
        self.timer.now().after(Duration::from_micros(micros))
    }

    pub async fn sleep(&self, micros: u64) {
        self.timer.sleep(Duration::from_micros(micros)).await;
    }

    pub async fn head(&self) -> u64 {
        let mut batch = self.lane.batch();
        let buffer = batch.read(lock(), 8);
        batch.post().await.expect("nothing fails").words(buffer)[0]
    }

    /// Zeroes the lock.
    pub async fn zero(&self) {
        let mut batch = self.lane.batch();
        batch.write_word(lock(), 0);
        batch.write_word(lock().plus(8), 0);
        batch.post().await.expect("nothing fails");
    }
}

/// Runs `life` on a lane, to its end. Only locks of 16 bytes have cards with masked atomics.
pub fn on_lane<S, F, T>(
    make: impl Fn() -> S + Send + 'static,
    life: impl FnOnce(Rc<Place<S>>) -> F + Send + 'static,
) -> T
where
    S: LockSystem,
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    on_lane_of(if S::WIDE { "ideal" } else { "cx3-56g" }, make, life)
}

/// The same with the simulated cards of this profile.
pub fn on_lane_of<S, F, T>(
    profile: &str,
    make: impl Fn() -> S + Send + 'static,
    life: impl FnOnce(Rc<Place<S>>) -> F + Send + 'static,
) -> T
where
    S: LockSystem,
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let node = NodeId(1);
    let world = World::new(Config::new(1, 2, Profile::named(profile).expect("built in")));
    let machines = SimMachines::new(world.expect("a valid world"));
    let fabric = machines.fabric();
    fabric.register(lock().node(), lock().region(), 4096, Rights::ALL).expect("there is room");
    let roster = Roster::default();
    let member = roster.join(node, 1).expect("there is room");
    let (send, ended) = async_channel::bounded(1);
    let program = move |executor: &mut Executor| {
        let timer = executor.handle().clone();
        let identity = Identity { member, peers: Rc::new(roster), service: Service(0) };
        let opened = Client::open(make(), executor, &*fabric, 0, identity);
        let (client, lane) = opened.expect("nobody has the lane");
        let place = Rc::new(Place { client, lane, timer });
        let life: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
            let result = life(place).await;
            send.send(result).await.expect("it is awaited");
        });
        life
    };
    let core = machines.start(node, "clients", Box::new(program)).expect("it has cores");
    let result = machines.wait(&ended).expect("it ends");
    machines.join(core);
    result
}
