//! Utilisation of a world's resources since a span began, and the verbs served meanwhile.

use super::queue::{Picos, duration};
use super::state::State;
use crate::contract::ids::NodeId;
use crate::run::utilisation::{Report, Resource, Served, Utilisation};

/// Begins a span: resets the busy time and the served verbs of every resource.
pub(super) fn start(state: &mut State) {
    state.measured_since = state.now;
    for node in &mut state.nodes {
        node.nic.servers().into_iter().for_each(|server| server.forget_busy());
        node.nic.hot_words.forget_busy();
        node.nic.served = Served::default();
    }
    state.cores.iter_mut().for_each(|core| core.busy = 0);
}

/// Returns the utilisation of every resource since the span began.
pub(super) fn of(state: &mut State) -> Report {
    let elapsed = state.now - state.measured_since;
    // Servers are booked ahead, so slightly more than the whole time is possible at the end.
    let part = |busy: Picos| (busy as f64 / elapsed.max(1) as f64).min(1.0);
    let mut resources = Vec::new();
    for (number, node) in state.nodes.iter_mut().enumerate() {
        let node_id = NodeId(number as u16);
        let names = [
            Resource::Outbound(node_id),
            Resource::Inbound(node_id),
            Resource::AtomicUnit(node_id),
            Resource::Sending(node_id),
            Resource::Receiving(node_id),
        ];
        let servers = node.nic.servers().map(|server| part(server.busy()));
        let entries = names.into_iter().zip(servers);
        resources.extend(entries.map(|(resource, busy)| Utilisation { resource, busy }));
        if state.costs.atomics.same_address.is_some() {
            let (resource, busy) = (Resource::HottestWord(node_id), node.nic.hot_words.busy());
            resources.push(Utilisation { resource, busy: part(busy) });
        }
    }
    let mut cores_of = vec![0; state.nodes.len()];
    for core in &state.cores {
        let index = &mut cores_of[usize::from(core.node.0)];
        let resource = Resource::Core { node: core.node, index: *index };
        *index += 1;
        resources.push(Utilisation { resource, busy: part(core.busy) });
    }
    let served = state.nodes.iter().map(|node| node.nic.served).collect();
    Report { elapsed: duration(elapsed), resources, served }
}
