//! The test suite of the contract, which every back end passes.
//!
//! # What it is
//! The contract of docs/verbs.md as executable properties, one file per family. A back end
//! implements [`Harness`] and calls [`run`] in a test of its own.
//!
//! # What it is not
//! A measure of speed, or a test of one back end's internals. The suite only requires promises of
//! the contract: if a failed verb's outcome is unknown, either outcome passes.
//!
//! # Running properties
//! A property describes [`Coordinator`]s, with one lane and one coroutine per coordinator. On real
//! time, the harness runs every coordinator on a thread of its own. A simulator overrides
//! [`Harness::run`], starts the coordinators on one thread and turns their executors as virtual
//! time advances. Properties therefore wait only through the executor, and communicate through
//! flags and the fabric.

mod atomicity;
mod calls;
mod control;
mod fence;
mod flow;
mod messages;
mod order;
mod refusal;
mod verbs;

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::contract::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
use crate::contract::region::{Rights, WORD_BYTES};
use crate::contract::transport::Fabric;
use crate::contract::verbs::VerbError;
use crate::lane::{Batch, Lane};
use crate::run::env::Env;
use crate::run::exec::Executor;

/// Required number of nodes of the fabric under test, numbered from zero. Every node can hold
/// regions and open lanes.
pub const NODES: u16 = 4;

/// The suite's access to a back end.
pub trait Harness: Send + Sync + 'static {
    /// The fabric under test, initially without regions or open lanes.
    fn fabric(&self) -> Arc<dyn Fabric>;

    /// Number of nodes of the fabric, at least [`NODES`].
    fn node_count(&self) -> u16 {
        NODES
    }

    /// Makes `node` unreachable or reachable again. Verbs to an unreachable node fail, and its
    /// messages are lost. Takes effect for verbs and messages posted after the call.
    fn set_reachable(&self, node: NodeId, reachable: bool);

    /// Number of rounds for a property that hunts for a race, normally `rounds`. Fewer if a verb
    /// takes a millisecond, as on an emulated machine.
    fn rounds(&self, rounds: u64) -> u64 {
        rounds
    }

    /// Returns whether a verb posted after a fence always fails as `Revoked`. False if the target
    /// just stops answering: the verb's outcome is unknown, and only a reconnect reports the fence.
    fn tells_of_fences(&self) -> bool {
        true
    }

    /// The environment of the coordinators.
    fn env(&self) -> Env {
        Env::real(0)
    }

    /// Runs every coordinator to the end of its body.
    ///
    /// # Panics
    /// With a body's panic, after the end of every coordinator.
    fn run(&self, coordinators: Vec<Coordinator>) {
        let spawn = |coordinator: Coordinator| {
            let (fabric, env) = (self.fabric(), self.env());
            let body = move || {
                let (mut executor, body) = coordinator.start(&*fabric, env);
                executor.run(body);
            };
            self.env().spawn("coordinator", body).expect("the system has a thread left")
        };
        let threads: Vec<_> = coordinators.into_iter().map(spawn).collect();
        let ends: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
        ends.into_iter().for_each(|end| end.unwrap_or_else(|cause| resume_unwind(cause)));
    }
}

/// Runs every property on a fresh fabric from `make`.
///
/// # Panics
/// If a property does not hold or does not end; the message names the failed properties and their
/// errors.
pub fn run<H: Harness>(make: impl Fn() -> H) {
    let families = [
        control::PROPERTIES,
        verbs::PROPERTIES,
        order::PROPERTIES,
        atomicity::PROPERTIES,
        refusal::PROPERTIES,
        flow::PROPERTIES,
        fence::PROPERTIES,
        messages::PROPERTIES,
        calls::PROPERTIES,
    ];
    let mut failures = Vec::new();
    for (name, property) in families.into_iter().flatten() {
        if let Some(failure) = failure_of(*property, Arc::new(make())) {
            failures.push(format!("{name}: {failure}"));
        }
    }
    assert!(failures.is_empty(), "properties that do not hold:\n{}", failures.join("\n"));
}

/// Runs a property on a fabric, which is dropped afterwards; returns the failure. The property runs
/// on a separate thread, which is abandoned if the property does not end in time.
fn failure_of(property: fn(&Cluster), harness: Arc<dyn Harness>) -> Option<String> {
    let (report, outcome) = crossbeam_channel::bounded(1);
    let body = move || {
        let cluster = Cluster { harness };
        let result = catch_unwind(AssertUnwindSafe(move || property(&cluster)));
        // Fails if the time limit has passed.
        let _ = report.send(result.err().map(|cause| message_of(&*cause).to_owned()));
    };
    Env::real(0).spawn("property", body).expect("the system has a thread left");
    let stands_still = |_| Some(format!("stands still: no end within {STANDSTILL:?}"));
    outcome.recv_timeout(STANDSTILL).unwrap_or_else(stands_still)
}

fn message_of(cause: &(dyn Any + Send)) -> &str {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

/// Name of a property, and a function that panics if it does not hold.
type Property = (&'static str, fn(&Cluster));

/// Lists the functions of a family with their names.
macro_rules! properties {
    ($($name:ident),+ $(,)?) => {
        pub(super) const PROPERTIES: &[super::Property] =
            &[$((concat!(module_path!(), "::", stringify!($name)), $name)),+];
    };
}
use properties;

/// A coroutine bound to one thread.
pub type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// One lane, and the body of a property to run on the lane.
pub struct Coordinator {
    at: Endpoint,
    epoch: Epoch,
    body: Box<dyn FnOnce(Lane) -> LocalFuture + Send>,
}

impl Coordinator {
    fn new<F: Future<Output = ()> + 'static>(
        at: Endpoint,
        body: impl FnOnce(Lane) -> F + Send + 'static,
    ) -> Self {
        Self { at, epoch: Epoch(1), body: Box::new(move |lane| Box::pin(body(lane))) }
    }

    fn with_epoch(self, epoch: Epoch) -> Self {
        Self { epoch, ..self }
    }

    /// Opens the lane on a new executor. The caller must run the returned body to its end on the
    /// executor. Both stay on the calling thread.
    ///
    /// # Panics
    /// If the fabric refuses the lane.
    pub fn start(self, fabric: &dyn Fabric, env: Env) -> (Executor, LocalFuture) {
        let mut executor = Executor::new(env);
        let transport = fabric
            .open_lane(self.at, self.epoch, executor.handle().waker())
            .unwrap_or_else(|error| panic!("no lane at {:?}: {error}", self.at));
        let lane = Lane::new(self.at, executor.handle().clone(), transport);
        executor.add_driver(lane.driver());
        (executor, (self.body)(lane))
    }
}

/// Nodes with regions.
const MEMORY: [NodeId; 2] = [NodeId(0), NodeId(1)];
/// Lane of a property's only coordinator, or of the checking coordinator.
const CLIENT: Endpoint = Endpoint { node: NodeId(2), lane: LaneId(0) };
/// Lane of the counterpart, on a separate node.
const PEER: Endpoint = Endpoint { node: NodeId(3), lane: LaneId(0) };
const REGION: RegionId = RegionId(0);
const REGION_BYTES: u64 = 1 << 16;
/// Time limit for an event promised by the contract.
const LIMIT: Duration = Duration::from_secs(30);

/// Time limit of a whole property, on the slowest machine.
const STANDSTILL: Duration = Duration::from_secs(240);

/// The fabric of one property.
struct Cluster {
    harness: Arc<dyn Harness>,
}

impl Cluster {
    /// Registers a region with all rights on every node of [`MEMORY`].
    fn with_regions(&self) -> &Self {
        MEMORY.into_iter().for_each(|node| self.register(node, REGION, Rights::ALL));
        self
    }

    fn register(&self, node: NodeId, region: RegionId, rights: Rights) {
        let registered = self.harness.fabric().register(node, region, REGION_BYTES, rights);
        registered.unwrap_or_else(|error| panic!("no region: {error}"));
    }

    fn rounds(&self, rounds: u64) -> u64 {
        self.harness.rounds(rounds)
    }

    /// Runs a single coordinator at [`CLIENT`].
    fn solo<F: Future<Output = ()> + 'static>(
        &self,
        body: impl FnOnce(Lane) -> F + Send + 'static,
    ) {
        self.run([Coordinator::new(CLIENT, body)]);
    }

    fn run(&self, coordinators: impl IntoIterator<Item = Coordinator>) {
        self.harness.run(coordinators.into_iter().collect());
    }
}

/// A one-time signal from one coordinator to the rest.
#[derive(Clone, Default)]
struct Flag(Arc<AtomicBool>);

impl Flag {
    fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Returns a guard that sets the flag when dropped, also after a panic of the holder: otherwise
    /// the rest would wait for ever.
    fn set_on_drop(&self) -> SetOnDrop {
        SetOnDrop(self.clone())
    }
}

struct SetOnDrop(Flag);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Waits until `condition` holds.
async fn wait_until(lane: &Lane, what: &str, condition: impl Fn() -> bool) {
    let executor = lane.executor();
    let deadline = executor.now().after(LIMIT);
    while !condition() {
        assert!(executor.now() < deadline, "{what}: not within {LIMIT:?}");
        executor.sleep(Duration::from_micros(50)).await;
    }
}

/// Word `index` of the common region on `node`.
fn word(node: NodeId, index: u64) -> RemoteAddr {
    RemoteAddr::new(node, REGION, index * WORD_BYTES as u64)
}

async fn read(lane: &Lane, addr: RemoteAddr) -> u64 {
    read_words(lane, addr, 1).await[0]
}

async fn read_words(lane: &Lane, addr: RemoteAddr, words: usize) -> Vec<u64> {
    let mut batch = lane.batch();
    let buffer = batch.read(addr, words * WORD_BYTES);
    let done = batch.post().await.unwrap_or_else(|error| panic!("READ at {addr:?}: {error}"));
    done.words(buffer).to_vec()
}

async fn write(lane: &Lane, addr: RemoteAddr, value: u64) {
    let mut batch = lane.batch();
    batch.write_word(addr, value);
    batch.post().await.unwrap_or_else(|error| panic!("WRITE at {addr:?}: {error}"));
}

/// Returns the error of a batch to one node, in which one verb must fail.
async fn error_of(lane: &Lane, build: impl FnOnce(&mut Batch)) -> VerbError {
    let mut batch = lane.batch();
    build(&mut batch);
    batch.post().await.expect_err("the fabric must refuse this").first().error
}
