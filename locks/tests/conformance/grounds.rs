//! The fabrics on which the suite runs.

use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{Config, Profile, SimMachines, World};
use lotus_locks::trial::Settings;

pub const MEMORY: NodeId = NodeId(0);
/// Two compute nodes, and one that audits.
pub const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];
pub const LOCAL: u16 = 4;

pub fn small() -> Settings {
    Settings::small(MEMORY, NODES.to_vec())
}

pub fn simulated(seed: u64) -> SimMachines {
    let profile = Profile::named("cx3-56g").expect("built in");
    SimMachines::new(World::new(Config::new(seed, LOCAL, profile)).expect("a valid world"))
}
