//! A fabric that loses, doubles and reorders messages, over any other.

use std::sync::Arc;

use lotus_fabric::env::{Env, SmallRng};
use lotus_fabric::ids::{Endpoint, Epoch, NodeId, RegionId};
use lotus_fabric::region::Rights;
use lotus_fabric::transport::{Fabric, FabricError, Sink, Sleep, Token, Transport, Wake};
use lotus_fabric::verbs::{Capabilities, Work};
use rand::Rng;

/// Share of messages that are lost; half as many come twice, and half as many after a later one.
pub const LOST: f64 = 0.2;

/// A fabric on which messages are lost.
#[derive(Clone)]
pub struct Lossy<F> {
    pub fabric: F,
    pub env: Env,
}

struct LossyLane {
    lane: Box<dyn Transport>,
    rng: SmallRng,
    /// Sent after the next message.
    held_back: Option<(Endpoint, Vec<u8>)>,
}

impl<F: Fabric> Fabric for Lossy<F> {
    fn register(
        &self,
        node: NodeId,
        region: RegionId,
        bytes: u64,
        rights: Rights,
    ) -> Result<(), FabricError> {
        self.fabric.register(node, region, bytes, rights)
    }

    fn open_lane(
        &self,
        at: Endpoint,
        epoch: Epoch,
        wake: Arc<dyn Wake>,
    ) -> Result<Box<dyn Transport>, FabricError> {
        let lane = self.fabric.open_lane(at, epoch, wake)?;
        let rng = self.env.rng(u64::from(at.node.0) << 16 | u64::from(at.lane.0));
        Ok(Box::new(LossyLane { lane, rng, held_back: None }))
    }

    fn fence(&self, target: NodeId, expelled: NodeId, epoch: Epoch) -> Result<(), FabricError> {
        self.fabric.fence(target, expelled, epoch)
    }
}

impl Transport for LossyLane {
    fn capabilities(&self) -> Capabilities {
        self.lane.capabilities()
    }

    fn post(&mut self, token: Token, work: Box<Work>) {
        self.lane.post(token, work);
    }

    fn reconnect(&mut self, token: Token, node: NodeId) {
        self.lane.reconnect(token, node);
    }

    fn send(&mut self, to: Endpoint, bytes: &[u8]) {
        if self.rng.random_bool(LOST) {
            return;
        }
        if self.held_back.is_none() && self.rng.random_bool(LOST / 2.0) {
            self.held_back = Some((to, bytes.to_vec()));
            return;
        }
        self.lane.send(to, bytes);
        if self.rng.random_bool(LOST / 2.0) {
            self.lane.send(to, bytes);
        }
        if let Some((to, bytes)) = self.held_back.take() {
            self.lane.send(to, &bytes);
        }
    }

    fn poll(&mut self, sink: &mut dyn Sink) {
        self.lane.poll(sink);
    }

    fn has_input(&self) -> bool {
        self.lane.has_input()
    }

    fn sleeper(&self) -> Option<Arc<dyn Sleep>> {
        self.lane.sleeper()
    }
}
