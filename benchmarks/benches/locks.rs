//! Time of an uncontended acquire and release of a lock, on one lane of `local`.

#![allow(missing_docs, reason = "criterion's macros define undocumented items")]

use std::rc::Rc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use lotus_benchmarks::zipf::KeyChooser;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{NodeId, RegionId};
use lotus_fabric::machines::{Machines, MachinesExt, Program, Threads};
use lotus_fabric::region::Rights;
use lotus_fabric::rpc::Service;
use lotus_locks::systems::Visitor;
use lotus_locks::{Client, Identity, Limits, LockSpace, LockSystem, Mode, Roster};
use lotus_locksystems::systems::{Choice, Kind};
use rand::SeedableRng;
use rand::rngs::SmallRng;

const LOCKS: u64 = 1_000_000;

/// Acquires and releases this many locks, drawn with a skew; the time that this takes.
struct Rounds {
    count: u64,
    zipf: f64,
}

impl Visitor for Rounds {
    type Output = Duration;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Duration {
        let (memory, node) = (NodeId(0), NodeId(1));
        let machines = Threads::new(2, 1);
        let fabric = machines.fabric();
        let base = lotus_fabric::ids::RemoteAddr::new(memory, RegionId(0), 0);
        let space = LockSpace::new(base, 16, 16, LOCKS).expect("sound");
        let bytes = space.bytes().next_multiple_of(4096);
        fabric.register(memory, RegionId(0), bytes, Rights::ALL).expect("there is room");
        let roster = Roster::default();
        let member = roster.join(node, 1).expect("there is room");
        let (send, taken) = async_channel::bounded(1);
        let program: Program = Box::new(move |executor: &mut Executor| {
            let identity = Identity { member, peers: Rc::new(roster), service: Service(0) };
            let opened = Client::open(make(), executor, &*fabric, 0, identity);
            let clock = executor.handle().clone();
            let (client, _) = opened.expect("nobody has the lane");
            let (chooser, mut rng) =
                (KeyChooser::new(LOCKS, self.zipf), SmallRng::seed_from_u64(1));
            Box::pin(async move {
                let began = clock.now();
                for _ in 0..self.count {
                    let at = space.object(chooser.draw(&mut rng));
                    let hold = client.acquire(at, Mode::Exclusive, Limits::PATIENT).await;
                    let hold = hold.expect("nobody else wants it");
                    client.release(hold).await.expect("nothing fails");
                }
                send.send(clock.now().since(began)).await.expect("it is awaited");
            })
        });
        let core = machines.start(node, "locks", program).expect("it has cores");
        let taken = machines.wait(&taken).expect("it ends");
        machines.join(core);
        taken
    }
}

fn locks(criterion: &mut Criterion) {
    for kind in [Kind::Cas, Kind::Dslr] {
        for (name, zipf) in [("uniform", 0.0), ("zipf 0.99", 0.99)] {
            criterion.bench_function(&format!("{kind}, {name}"), |bencher| {
                bencher.iter_custom(|count| Choice::of(kind).visit(Rounds { count, zipf }));
            });
        }
    }
}

criterion_group!(benches, locks);
criterion_main!(benches);
