//! The program of a machine's agent core: its packets, its clock, and recoveries.

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
use super::inbox::Inbox;
use super::machine::Machine;
use super::{Places, control_lane};

/// Service of the control lanes.
pub(super) const SERVICE: Service = Service(0);

/// Opens a lane of an executor.
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
    inbox: Inbox,
    control: Rpc,
}

impl AgentProgram {
    /// Opens the machine's lanes, the one of its place and the next.
    ///
    /// # Errors
    /// The fabric refuses.
    pub fn open(
        machine: Arc<Machine>,
        places: &Places,
        executor: &mut Executor,
        fabric: &dyn Fabric,
    ) -> Result<Self, FabricError> {
        let at = places.machines[usize::from(machine.number())];
        let switch = places.switch;
        let inbox = Inbox::of(open_lane(at, executor, fabric)?, move |from| from == switch);
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
        Ok(Self { machine, switch, inbox, control })
    }

    /// The lane for recoveries; a coordinator on this core may use it.
    pub const fn control(&self) -> &Rpc {
        &self.control
    }

    /// Sends and takes in packets for ever.
    pub async fn run(self) {
        let executor = self.inbox.lane().executor().clone();
        let (mut due, mut armed) = (Nanos::NEVER, Nanos::NEVER);
        let step = self.machine.repeat() / 2;
        poll_fn(|task| {
            self.inbox.read_here();
            let now = executor.now();
            let (packets, is_due) = (self.inbox.take(), due <= now);
            let (sent, is_busy) = self.machine.turn(packets, is_due, now, task.waker());
            for packet in sent {
                self.inbox.lane().send(self.switch, &packet.encode());
            }
            if !is_busy {
                due = Nanos::NEVER;
            } else if is_due || due == Nanos::NEVER {
                due = now.after(step);
            }
            // A timer that was armed before wakes this task all the same.
            if due != Nanos::NEVER && (armed <= now || armed == Nanos::NEVER || due < armed) {
                armed = due;
                executor.wake_at(due, executor.current());
            }
            Poll::<()>::Pending
        })
        .await;
    }
}
