//! The switch as a program: the pipeline for packets, and its control plane for recoveries.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use lotus_fabric::exec::Executor;
use lotus_fabric::rpc::Rpc;
use lotus_fabric::transport::{Fabric, FabricError};

use super::SwitchOptions;
use super::agent::{SERVICE, open_lane};
use super::control::{ControlRequest, encode_done};
use super::places::{Places, control_lane};
use super::port::Port;
use crate::fisslock::report::Locks;
use crate::fisslock::{Decider, Packet, Pipeline, Rules};

/// Beginning of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// No machine has asked for a lock before: all are free.
    First,
    /// It was there before, and has lost its state: it drops all packets until a recovery has told
    /// it what is held.
    Again,
}

/// What decides on packets: the pipeline, which has the closed rules only, or for others the table.
enum Deciding {
    Pipeline(Box<Pipeline>),
    Table(Decider),
}

impl Deciding {
    fn new(locks: u32, channels: u16, options: SwitchOptions) -> Self {
        let SwitchOptions { preference, rules, .. } = options;
        match rules == Rules::CLOSED {
            true => Self::Pipeline(Box::new(Pipeline::new(locks, channels, preference))),
            false => Self::Table(Decider::new(locks, rules, preference)),
        }
    }

    fn process(&mut self, packet: &Packet) -> Vec<(u8, Packet)> {
        match self {
            Self::Pipeline(pipeline) => pipeline.process(packet),
            Self::Table(decider) => decider.process(packet),
        }
    }

    fn recover(&mut self, epoch: u8, dead: &[u8], locks: &Locks) {
        match self {
            Self::Pipeline(pipeline) => pipeline.recover(epoch, dead, locks),
            Self::Table(decider) => decider.recover(epoch, dead, locks),
        }
    }
}

/// State of the switch, which its control plane rewrites.
struct SwitchState {
    deciding: Deciding,
    locks: u32,
    /// Tells one life of the switch from another.
    life: u64,
    /// Epoch of the last recovery; none before the first one of a switch that has lost its state.
    epoch: Option<u32>,
}

impl SwitchState {
    fn process(&mut self, packet: &Packet) -> Vec<(u8, Packet)> {
        if self.epoch.is_none() { Vec::new() } else { self.deciding.process(packet) }
    }

    /// Begins an epoch: whether it has, now or before. A request for an earlier life is late: the
    /// machines have gone on since.
    fn rewrite(&mut self, epoch: u32, life: u64, dead: &[u8], locks: &Locks) -> bool {
        let is_known = locks.keys().all(|lock| *lock < self.locks);
        if life != self.life || !is_known || self.epoch.is_some_and(|later| epoch < later) {
            return false;
        }
        if self.epoch != Some(epoch) {
            self.epoch = Some(epoch);
            self.deciding.recover(epoch as u8, dead, locks);
        }
        true
    }
}

/// The program of the switch's core.
pub struct SwitchProgram {
    state: Rc<RefCell<SwitchState>>,
    places: Places,
    port: Port,
    control: Rpc,
}

impl SwitchProgram {
    /// Opens the switch's lanes, the one of its place and the next.
    ///
    /// # Errors
    /// The fabric refuses.
    pub fn open(
        start: Start,
        places: &Places,
        options: SwitchOptions,
        executor: &mut Executor,
        fabric: &dyn Fabric,
    ) -> Result<Self, FabricError> {
        let (at, cores) = (places.switch(), places.all_cores());
        let lane = Rpc::new(open_lane(at, executor, fabric)?);
        let port = Port::of(lane, None, move |from| cores.contains(&from));
        let control = Rpc::new(open_lane(control_lane(at), executor, fabric)?);
        let state = Rc::new(RefCell::new(SwitchState {
            deciding: Deciding::new(places.locks(), places.channels(), options),
            locks: places.locks(),
            life: executor.handle().env().begin_counting(),
            epoch: (start == Start::First).then_some(0),
        }));
        let asked = Rc::clone(&state);
        control.serve(
            SERVICE,
            Box::new(move |responder, bytes| {
                let mut state = asked.borrow_mut();
                match ControlRequest::decode(bytes) {
                    Some(ControlRequest::Life) => responder.respond(&state.life.to_le_bytes()),
                    Some(ControlRequest::Rewrite { epoch, life, dead, locks }) => {
                        let is_done = state.rewrite(epoch, life, &dead, &locks);
                        responder.respond(&encode_done(is_done));
                    }
                    Some(ControlRequest::Stop { .. } | ControlRequest::Resume { .. }) | None => {}
                }
            }),
        );
        Ok(Self { state, places: places.clone(), port, control })
    }

    /// The control plane's lane.
    pub const fn control(&self) -> &Rpc {
        &self.control
    }

    /// Processes packets for ever.
    pub async fn run(self) {
        poll_fn(|_| {
            self.port.read_here();
            for packet in self.port.take() {
                let routed = self.state.borrow_mut().process(&packet);
                for (machine, packet) in routed {
                    if let Some(to) = self.places.core(machine, packet.destination()) {
                        self.port.send(to, &packet);
                    }
                }
            }
            Poll::<()>::Pending
        })
        .await;
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fisslock::packet::{Kind, Origin, Participant};
    use crate::word::Mode;

    fn state(epoch: Option<u32>) -> SwitchState {
        SwitchState {
            deciding: Deciding::new(2, 4, SwitchOptions::repeating_after(Duration::ZERO)),
            locks: 2,
            life: 7,
            epoch,
        }
    }

    fn held(switch: &SwitchState) -> Option<bool> {
        match &switch.deciding {
            Deciding::Pipeline(pipeline) => Some(pipeline.lock(0).held),
            Deciding::Table(_) => None,
        }
    }

    fn request(epoch: u8, sequence: u32) -> Packet {
        let who = Participant { machine: 1, task: 1, nonce: 1 };
        let origin = Origin { machine: 1, channel: 0 };
        Packet { epoch, sequence, origin, ..Packet::new(Kind::Acquire, 0, who, Mode::Exclusive) }
    }

    #[test]
    fn a_switch_that_has_lost_its_state_grants_nothing_before_a_recovery() {
        let mut switch = state(None);
        assert_eq!(switch.process(&request(0, 1)), []);
        assert!(switch.rewrite(5, 7, &[], &Locks::new()));
        assert_eq!(switch.process(&request(0, 1)), [], "of an earlier epoch");
        assert_eq!(switch.process(&request(5, 1)).len(), 1);
    }

    #[test]
    fn a_rewrite_that_comes_late_or_again_changes_nothing() {
        let mut switch = state(Some(0));
        assert!(switch.rewrite(2, 7, &[], &Locks::new()));
        assert_eq!(switch.process(&request(2, 1)).len(), 1);
        assert_eq!(held(&switch), Some(true));
        assert!(switch.rewrite(2, 7, &[], &Locks::new()), "it is so");
        assert!(!switch.rewrite(1, 7, &[], &Locks::new()), "an earlier recovery");
        assert!(!switch.rewrite(3, 6, &[], &Locks::new()), "an earlier life");
        assert_eq!(held(&switch), Some(true), "it was not rewritten");
    }
}
