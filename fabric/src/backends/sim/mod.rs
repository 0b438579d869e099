//! The `sim` back end: a whole cluster in one thread, on virtual time, from one seed.
//!
//! # What it is
//! A [`World`] with the nodes' cores, and a [`SimFabric`] that carries verbs and messages between
//! nodes through modelled NICs and links ([`Profile`]), with faults of networks and machines
//! ([`Rates`], [`Fault`]). Equal configurations and programs give equal runs, event by event.
//!
//! # What it is not
//! The simulation runs no threads, asks no real clock and knows no transactions: scenarios and
//! checkers are built on top. docs/simulation.md describes the model.
//!
//! # Where to look
//! * `machines`: runs a whole cluster; `world`: cores and the passing of time; `state`: the
//!   remaining simulated state, and events.
//! * `verbs`, `connection`, `messages`: the path of verbs and messages; `memory`: the effect of
//!   verbs.
//! * `nic`, `depth`, `profile`: costs; `report`: utilisation.
//! * `faults`: faults as data; `inject`: the effect of faults.
//!
//! ```
//! use lotus_fabric::exec::Executor;
//! use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
//! use lotus_fabric::lane::Lane;
//! use lotus_fabric::region::Rights;
//! use lotus_fabric::sim::{Config, Profile, World};
//! use lotus_fabric::transport::Fabric;
//!
//! let (client, memory) = (NodeId(0), NodeId(1));
//! let mut world = World::new(Config::new(1, 2, Profile::named("cx3-56g")?))?;
//! world.fabric().register(memory, RegionId(0), 4096, Rights::ALL)?;
//!
//! let mut executor = Executor::new(world.env(client));
//! let at = Endpoint { node: client, lane: LaneId(0) };
//! let transport = world.fabric().open_lane(at, Epoch(1), executor.handle().waker())?;
//! let lane = Lane::new(at, executor.handle().clone(), transport);
//! executor.add_driver(lane.driver());
//! executor.handle().spawn(async move {
//!     let mut batch = lane.batch();
//!     let before = batch.fetch_and_add(RemoteAddr::new(memory, RegionId(0), 64), 5);
//!     let done = batch.post().await.expect("nothing fails");
//!     assert_eq!(done.words(before), [0]);
//! });
//! let core = world.add_core(client, executor);
//! world.run_until(std::time::Duration::from_micros(10))?;
//! assert_eq!(world.executor(core).expect("nobody crashed").live_tasks(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connection;
mod depth;
mod fabric;
mod faults;
mod hot_words;
mod inject;
mod machines;
mod memory;
mod messages;
mod nic;
mod profile;
mod queue;
mod report;
mod state;
mod trace;
mod verbs;
mod world;

pub use crate::run::utilisation::{NodeUse, Report, Resource, Served, Utilisation};
pub use fabric::SimFabric;
pub use faults::{Fault, FaultCounts, MAX_CLOCK_PPM, MemoryFate, Rates, Scheduled, When};
pub use machines::SimMachines;
pub use profile::{Profile, ProfileError};
pub use trace::{TraceEvent, TraceEventKind, Tracer};
pub use world::{Config, CoreId, Interleaving, Limits, SimError, Stop, World};
