//! The conformance suite of the lock systems.

mod grounds;

use std::sync::Arc;

use grounds::{LOCAL, simulated};
use lotus_fabric::machines::{Machines, Threads};
use lotus_locks::systems::{Cas, CasRw, Dslr, Release};
use lotus_locks::trial::{Make, Settings, Trial, Verdict};
use lotus_locks::{LockSystem, Pacing, Recovery};

fn run<S: LockSystem, M: Machines>(machines: &M, settings: Settings, make: Make<S>) -> Verdict {
    let trial = Trial::start(machines, settings, make).expect("a valid trial");
    let verdict = trial.finish::<S>(machines).expect("an audit");
    println!("{verdict}");
    assert_eq!(verdict.violations, [String::new(); 0]);
    verdict
}

#[test]
fn smoke() {
    for recovery in [Recovery::Fenced, Recovery::Paper] {
        let cas = Arc::new(move || Cas { recovery, pacing: Pacing::NONE });
        run(&Threads::new(4, 1), grounds::small(), cas.clone());
        run(&simulated(1), grounds::small(), cas);
        let rw = Arc::new(move || CasRw { recovery, pacing: Pacing::NONE, release: Release::Add });
        run(&Threads::new(4, 1), grounds::small(), rw.clone());
        run(&simulated(1), grounds::small(), rw);
        let dslr = Arc::new(move || Dslr::published(recovery));
        run(&Threads::new(4, 1), grounds::small(), dslr.clone());
        run(&simulated(1), grounds::small(), dslr);
        let dslr = Arc::new(move || Dslr::plus(recovery));
        run(&Threads::new(4, 1), grounds::small(), dslr.clone());
        run(&simulated(1), grounds::small(), dslr);
    }
}
