//! The conformance suite must detect a back end that breaks the contract.
//!
//! Each test wraps the `local` back end, breaks one promise on purpose, and expects the suite to
//! name a property of that promise.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lotus_fabric::conformance::{self, Harness};
use lotus_fabric::ids::{Endpoint, Epoch, NodeId, RegionId};
use lotus_fabric::local::LocalFabric;
use lotus_fabric::region::Rights;
use lotus_fabric::transport::{Fabric, FabricError, Sink, Token, Transport, Wake};
use lotus_fabric::verbs::{Capabilities, Work};

/// The broken promise.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sabotage {
    /// A fence does nothing.
    FenceNothing,
    /// Every region grants every right.
    GrantEverything,
    /// The second of two batches posted in a row is started first.
    SwapBatches,
    /// A reconnect does nothing.
    ReconnectNothing,
}

struct Sabotaged {
    fabric: LocalFabric,
    sabotage: Sabotage,
}

impl Harness for Sabotaged {
    fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(Self { fabric: self.fabric.clone(), sabotage: self.sabotage })
    }

    fn set_reachable(&self, node: NodeId, reachable: bool) {
        self.fabric.set_reachable(node, reachable).expect("the node exists");
    }
}

impl Fabric for Sabotaged {
    fn register(
        &self,
        node: NodeId,
        region: RegionId,
        bytes: u64,
        rights: Rights,
    ) -> Result<(), FabricError> {
        let lax = self.sabotage == Sabotage::GrantEverything;
        self.fabric.register(node, region, bytes, if lax { Rights::ALL } else { rights })
    }

    fn open_lane(
        &self,
        at: Endpoint,
        epoch: Epoch,
        wake: Arc<dyn Wake>,
    ) -> Result<Box<dyn Transport>, FabricError> {
        let transport = self.fabric.open_lane(at, epoch, wake)?;
        Ok(Box::new(Saboteur {
            transport,
            sabotage: self.sabotage,
            held: None,
            reconnects: Vec::new(),
        }))
    }

    fn fence(&self, target: NodeId, expelled: NodeId, epoch: Epoch) -> Result<(), FabricError> {
        let epoch = if self.sabotage == Sabotage::FenceNothing { Epoch(0) } else { epoch };
        self.fabric.fence(target, expelled, epoch)
    }
}

struct Saboteur {
    transport: Box<dyn Transport>,
    sabotage: Sabotage,
    held: Option<(Token, Box<Work>)>,
    reconnects: Vec<Token>,
}

impl Transport for Saboteur {
    fn capabilities(&self) -> Capabilities {
        self.transport.capabilities()
    }

    fn post(&mut self, token: Token, work: Box<Work>) {
        if self.sabotage == Sabotage::SwapBatches && self.held.is_none() {
            self.held = Some((token, work));
            return;
        }
        self.transport.post(token, work);
        if let Some((token, work)) = self.held.take() {
            self.transport.post(token, work);
        }
    }

    fn reconnect(&mut self, token: Token, node: NodeId) {
        if self.sabotage == Sabotage::ReconnectNothing {
            self.reconnects.push(token);
        } else {
            self.transport.reconnect(token, node);
        }
    }

    fn send(&mut self, to: Endpoint, bytes: &[u8]) {
        self.transport.send(to, bytes);
    }

    fn poll(&mut self, sink: &mut dyn Sink) {
        if let Some((token, work)) = self.held.take() {
            self.transport.post(token, work);
        }
        self.reconnects.drain(..).for_each(|token| sink.reconnected(token, Ok(())));
        self.transport.poll(sink);
    }

    fn has_input(&self) -> bool {
        self.held.is_some() || !self.reconnects.is_empty() || self.transport.has_input()
    }
}

/// Runs the suite against a sabotaged back end and expects it to name `property`.
fn expect_caught(sabotage: Sabotage, property: &str) {
    let nodes = conformance::NODES;
    let suite = || conformance::run(|| Sabotaged { fabric: LocalFabric::new(nodes), sabotage });
    let cause = catch_unwind(AssertUnwindSafe(suite)).expect_err("nothing was noticed");
    let report = cause.downcast_ref::<String>().expect("the report is formatted");
    assert!(report.contains(property), "{property} is missing:\n{report}");
}

#[test]
fn a_fence_that_does_nothing_is_caught() {
    expect_caught(Sabotage::FenceNothing, "fence::nothing_takes_effect_after_a_fence");
}

#[test]
fn rights_that_are_not_checked_are_caught() {
    expect_caught(Sabotage::GrantEverything, "refusal::verbs_without_the_right_are_not_applied");
}

#[test]
fn batches_out_of_order_are_caught() {
    expect_caught(Sabotage::SwapBatches, "order::batches_of_one_lane_take_effect_in_order");
}

#[test]
fn a_reconnect_that_does_nothing_is_caught() {
    expect_caught(
        Sabotage::ReconnectNothing,
        "refusal::a_connection_stays_broken_until_it_is_re_made",
    );
}
