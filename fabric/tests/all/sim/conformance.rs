//! The contract holds in simulation: on every profile, in both interleavings, and when READs and
//! WRITEs are torn and messages lost, duplicated and delayed.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::conformance::{self, Coordinator, Harness, NODES};
use lotus_fabric::env::Env;
use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{Config, Fault, Interleaving, Profile, Rates, SimFabric, World};
use lotus_fabric::transport::Fabric;

/// The fabric; every run of coordinators uses a new world over it.
struct Simulated(SimFabric);

impl Simulated {
    fn new(config: Config) -> Self {
        Self(World::new(config).expect("a valid configuration").fabric().clone())
    }
}

impl Harness for Simulated {
    fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(self.0.clone())
    }

    fn node_count(&self) -> u16 {
        self.0.node_count()
    }

    fn set_reachable(&self, node: NodeId, reachable: bool) {
        let fault = if reachable { Fault::Rejoin { node } } else { Fault::Isolate { node } };
        self.0.inject(fault).expect("the node exists");
    }

    fn env(&self) -> Env {
        self.0.env(NodeId(0))
    }

    /// Turns all executors on this thread. The node that a coordinator is charged to does not
    /// matter here, so all are cores of one node.
    fn run(&self, coordinators: Vec<Coordinator>) {
        let mut world = World::over(self.0.clone());
        let running = Rc::new(Cell::new(coordinators.len()));
        for coordinator in coordinators {
            let (executor, body) = coordinator.start(&self.0, self.env());
            let running = Rc::clone(&running);
            executor.handle().spawn(async move {
                body.await;
                running.set(running.get() - 1);
            });
            world.add_core(NodeId(0), executor);
        }
        let run = AssertUnwindSafe(|| world.run_while(|| running.get() > 0));
        match catch_unwind(run) {
            Ok(ended) => _ = ended.expect("every body ends"),
            Err(cause) => resume_unwind(cause),
        }
    }
}

fn check(config: Config) {
    conformance::run(|| Simulated::new(config.clone()));
}

#[test]
fn the_ideal_profile_keeps_the_contract() {
    check(Config::new(1, NODES + 1, Profile::ideal()));
}

#[test]
fn the_connect_x_3_profile_keeps_the_contract() {
    check(Config::new(2, NODES, Profile::named("cx3-56g").expect("built in")));
}

/// Every READ and atomic waits for the one before it.
#[test]
fn one_outstanding_read_a_connection_keeps_the_contract() {
    for interleaving in [Interleaving::PerVerb, Interleaving::PerBatch] {
        let depth = "[connection]\ninitiator_depth = { value = 1, source = \"a test\" }\n";
        let text = include_str!("../../../profiles/cx3-56g.toml").to_owned() + depth;
        let profile = Profile::parse("cx3", text.as_bytes()).expect("well-formed");
        check(Config { interleaving, ..Config::new(5, NODES, profile) });
    }
}

/// Atomics of every kind, those on 16 bytes slower than others and all slow on one word.
#[test]
fn extended_atomics_that_wait_for_one_another_keep_the_contract() {
    let slow = "[atomic_unit]\n\
                same_address_mops = { value = 1, source = \"a test\" }\n\
                wide_mops = { value = 2, source = \"a test\" }\n";
    let extended = "[extended]\n\
                    masked = { value = true, source = \"a test\" }\n\
                    wide = { value = true, source = \"a test\" }\n";
    let text = include_str!("../../../profiles/cx3-56g.toml").replace("[atomic_unit]\n", slow);
    let profile = Profile::parse("cx3", (text + extended).as_bytes()).expect("well-formed");
    let interleaving = Interleaving::PerBatch;
    check(Config { interleaving, ..Config::new(6, NODES, profile) });
}

#[test]
fn verbs_that_take_effect_batch_by_batch_keep_the_contract() {
    let profile = Profile::named("cx3-56g").expect("built in");
    check(Config { interleaving: Interleaving::PerBatch, ..Config::new(3, NODES, profile) });
}

#[test]
fn torn_and_delayed_verbs_and_unreliable_messages_keep_the_contract() {
    let rates = Rates {
        message_loss: 0.05,
        message_duplication: 0.05,
        message_delay: 0.1,
        message_delay_max: Duration::from_micros(50),
        verb_delay: 0.01,
        verb_delay_max: Duration::from_micros(20),
        torn_writes: 0.5,
        torn_reads: 0.5,
        tear_span: Duration::from_micros(2),
    };
    check(Config { rates, ..Config::new(4, NODES, Profile::ideal()) });
}
