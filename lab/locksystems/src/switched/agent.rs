//! The program of a machine's agent core: packets, timers, and recoveries.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch};
use lotus_fabric::lane::Lane;
use lotus_fabric::rpc::{Rpc, Service};
use lotus_fabric::transport::{Fabric, FabricError};

use super::control::ControlRequest;
use super::machine::Machine;
use super::places::{Places, control_lane};
use super::port::Port;
use crate::fisslock::cores::AGENT_CORE;
use crate::servers::CpuCharge;

/// Service of the control lanes.
pub(super) const SERVICE: Service = Service(0);

/// Opens a lane on an executor.
pub(super) fn open_lane(
    at: Endpoint,
    executor: &mut Executor,
    fabric: &dyn Fabric,
) -> Result<Lane, FabricError> {
    let transport = fabric.open_lane(at, Epoch(1), executor.handle().waker())?;
    let lane = Lane::new(at, executor.handle().clone(), transport);
    executor.add_driver(lane.driver());
    Ok(lane)
}

/// The agent's core of a machine.
pub struct AgentProgram {
    machine: Arc<Machine>,
    switch: Endpoint,
    port: Port,
    control: Rpc,
}

impl AgentProgram {
    /// Opens the machine's two lanes: the agent's lane named by the places, and the next lane.
    /// `cpu_charge` is charged for every received packet, where time is virtual.
    ///
    /// # Errors
    /// The fabric refuses.
    pub fn open(
        machine: Arc<Machine>,
        places: &Places,
        executor: &mut Executor,
        fabric: &dyn Fabric,
        cpu_charge: Option<CpuCharge>,
    ) -> Result<Self, FabricError> {
        let at = places.agent(machine.number());
        let switch = places.switch_of(machine.number());
        let lane = Rpc::new(open_lane(at, executor, fabric)?);
        let port = Port::of(lane, cpu_charge, move |from| from == switch);
        let control = Rpc::new(open_lane(control_lane(at), executor, fabric)?);
        let (asked, clock) = (Arc::clone(&machine), executor.handle().env().clone());
        let known = places.clone();
        control.serve(
            SERVICE,
            Box::new(move |responder, bytes| match known.request(&responder, bytes) {
                Some(ControlRequest::Stop { epoch, page }) => {
                    if let Some(page) = asked.stop(epoch, page) {
                        responder.respond(&page.encode());
                    }
                }
                Some(ControlRequest::Resume { epoch, page }) => {
                    responder.respond(&asked.resume(epoch, page, clock.now()).encode());
                }
                Some(ControlRequest::Life | ControlRequest::Rewrite { .. }) | None => {}
            }),
        );
        Ok(Self { machine, switch, port, control })
    }

    /// Returns the lane for recoveries; a coordinator on this core may use the lane.
    pub const fn control(&self) -> &Rpc {
        &self.control
    }

    /// Sends and receives packets for ever, and repeats lost packets of every core.
    pub async fn run(self) {
        let executor = self.port.rpc().lane().executor().clone();
        let (mut due, mut armed) = (Nanos::NEVER, Nanos::NEVER);
        let step = self.machine.repetition() / 2;
        poll_fn(|task| {
            self.port.read_here();
            let now = executor.now();
            let is_due = due <= now;
            if is_due {
                self.machine.repeat_lost(now);
            }
            let sent = self.machine.turn(AGENT_CORE, self.port.take(), now, task.waker());
            for packet in sent {
                self.port.send(self.switch, &packet);
            }
            let is_busy = self.machine.is_watched();
            if !is_busy {
                due = Nanos::NEVER;
            } else if is_due || due == Nanos::NEVER {
                due = now.after(step);
            }
            // A timer armed before still wakes this task.
            if due != Nanos::NEVER && (armed <= now || armed == Nanos::NEVER || due < armed) {
                armed = due;
                executor.wake_at(due, executor.current());
            }
            Poll::<()>::Pending
        })
        .await;
    }
}
