//! The switch as a program: the pipeline for packets, and the control plane for recoveries.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use lotus_fabric::exec::Executor;
use lotus_fabric::rpc::Rpc;
use lotus_fabric::transport::{Fabric, FabricError};

use super::SwitchOptions;
use super::agent::{SERVICE, open_lane};
use super::control::{ControlRequest, Progress};
use super::pages::{Added, Assembly, Page};
use super::places::{Places, control_lane};
use super::port::{Port, SwitchPacket};
use crate::fisslock::decider::Metadata;
use crate::fisslock::report::{decode_switch, switch_bytes};
use crate::fisslock::{Decider, Packet, Pipeline, Rules};

/// Initial state of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// No machine has asked for a lock before: every lock is free.
    First,
    /// The switch was in use before, and has lost its state: packets are dropped until a recovery
    /// has told the switch which locks are held.
    Again,
}

/// Decider of packets: the pipeline, which implements only the closed rules, or the table for other
/// rules.
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

    fn recover(&mut self, epoch: u8, dead: &[u8], locks: &BTreeMap<u32, Metadata>) {
        match self {
            Self::Pipeline(pipeline) => pipeline.recover(epoch, dead, locks),
            Self::Table(decider) => decider.recover(epoch, dead, locks),
        }
    }
}

/// State of the switch, rewritten by the control plane.
struct SwitchState {
    /// Decides on the switch's own locks, which have local numbers: the global number divided by
    /// the number of racks.
    deciding: Deciding,
    places: Places,
    rack: u8,
    /// Distinguishes one life of the switch from another.
    life: u64,
    /// Epoch of the last recovery; `None` before the first recovery of a switch that has lost its
    /// state.
    epoch: Option<u32>,
    /// Epoch and pages of a rewrite, which takes effect with the last page.
    rewrite: Option<(u32, Assembly)>,
}

impl SwitchState {
    /// Decides on a packet of a lock of this switch. Returns the outgoing packets with their target
    /// machines.
    fn process(&mut self, packet: Packet) -> Vec<(u8, Packet)> {
        if self.epoch.is_none() {
            return Vec::new();
        }
        let (lock, racks) = (packet.lock, u32::from(self.places.racks()));
        let mut routed = self.deciding.process(&Packet { lock: lock / racks, ..packet });
        routed.iter_mut().for_each(|(_, packet)| packet.lock = lock);
        routed
    }

    /// Accepts a page of a rewrite, and begins the epoch with the last page. A request for an
    /// earlier life is late: the machines have resumed since.
    fn rewrite(&mut self, epoch: u32, life: u64, page: Page) -> Progress {
        let begun = self.rewrite.as_ref().map(|(epoch, _)| *epoch);
        if life != self.life || Some(epoch) < self.epoch.max(begun) {
            return Progress::Refused;
        }
        if self.epoch == Some(epoch) {
            return Progress::Done;
        }
        if begun != Some(epoch) {
            let most = switch_bytes(self.places.locks_at(self.rack));
            self.rewrite = Some((epoch, Assembly::of_at_most(most)));
        }
        let added = self.rewrite.as_mut().map(|(_, pages)| pages.add(page));
        let whole = match added {
            Some(Added::Kept) => return Progress::Kept,
            Some(Added::Whole(bytes)) => decode_switch(&bytes),
            Some(Added::Refused) | None => None,
        };
        let (all, racks) = (self.places.locks(), u32::from(self.places.racks()));
        let is_own = |lock: &u32| *lock < all && self.places.home(*lock) == self.rack;
        let is_known = |locks: &BTreeMap<_, _>| locks.keys().all(is_own);
        let Some((dead, locks)) = whole.filter(|(_, locks)| is_known(locks)) else {
            return Progress::Refused;
        };
        (self.epoch, self.rewrite) = (Some(epoch), None);
        let own = locks.into_iter().map(|(lock, state)| (lock / racks, state)).collect();
        self.deciding.recover(epoch as u8, &dead, &own);
        Progress::Done
    }
}

/// The program of the switch's core.
pub struct SwitchProgram {
    state: Rc<RefCell<SwitchState>>,
    places: Places,
    rack: u8,
    /// Port for the machines of the rack.
    machines: Port,
    /// Port for the other switches.
    switches: Port<SwitchPacket>,
    control: Rpc,
}

impl SwitchProgram {
    /// Opens the two lanes of a rack's switch: the lane named by the places, and the next lane.
    ///
    /// # Errors
    /// The fabric refuses.
    ///
    /// # Panics
    /// If the rack does not exist.
    pub fn open(
        rack: u8,
        start: Start,
        places: &Places,
        options: SwitchOptions,
        executor: &mut Executor,
        fabric: &dyn Fabric,
    ) -> Result<Self, FabricError> {
        let (at, cores) = (places.switch(rack), places.cores_in(rack));
        let others = (0..places.racks()).filter(|other| *other != rack);
        let others: Vec<_> = others.map(|other| places.switch(other)).collect();
        let lane = Rpc::new(open_lane(at, executor, fabric)?);
        let machines = Port::of(lane.clone(), None, move |from| cores.contains(&from));
        let switches = Port::of(lane, None, move |from| others.contains(&from));
        let control = Rpc::new(open_lane(control_lane(at), executor, fabric)?);
        let state = Rc::new(RefCell::new(SwitchState {
            deciding: Deciding::new(places.locks_at(rack), places.channels(), options),
            places: places.clone(),
            rack,
            life: executor.handle().env().begin_counting(),
            epoch: (start == Start::First).then_some(0),
            rewrite: None,
        }));
        let (asked, known) = (Rc::clone(&state), places.clone());
        control.serve(
            SERVICE,
            Box::new(move |responder, bytes| {
                let mut state = asked.borrow_mut();
                match known.request(&responder, bytes) {
                    Some(ControlRequest::Life) => responder.respond(&state.life.to_le_bytes()),
                    Some(ControlRequest::Rewrite { epoch, life, page }) => {
                        responder.respond(&state.rewrite(epoch, life, page).encode());
                    }
                    Some(ControlRequest::Stop { .. } | ControlRequest::Resume { .. }) | None => {}
                }
            }),
        );
        Ok(Self { state, places: places.clone(), rack, machines, switches, control })
    }

    /// Returns the control plane's lane.
    pub const fn control(&self) -> &Rpc {
        &self.control
    }

    /// Processes packets for ever.
    pub async fn run(self) {
        poll_fn(|_| {
            self.machines.read_here();
            self.switches.read_here();
            for packet in self.machines.take() {
                match self.places.home(packet.lock) {
                    home if home == self.rack => self.decide(packet),
                    home => self.switches.send(self.places.switch(home), &SwitchPacket::Up(packet)),
                }
            }
            for relay in self.switches.take() {
                match relay {
                    // Packets about locks of other racks are not for this switch.
                    SwitchPacket::Up(packet) if self.places.home(packet.lock) == self.rack => {
                        self.decide(packet);
                    }
                    SwitchPacket::Up(_) => {}
                    SwitchPacket::Down(machine, packet) => self.deliver(machine, &packet),
                }
            }
            Poll::<()>::Pending
        })
        .await;
    }

    /// Decides on a packet of one of the switch's locks.
    fn decide(&self, packet: Packet) {
        let routed = self.state.borrow_mut().process(packet);
        // A packet may name any machine number as its task's machine.
        let is_there = |(machine, _): &(u8, _)| usize::from(*machine) < self.places.machines();
        for (machine, packet) in routed.into_iter().filter(is_there) {
            let rack = self.places.rack_of(machine);
            if rack == self.rack {
                self.deliver(machine, &packet);
            } else {
                self.switches.send(self.places.switch(rack), &SwitchPacket::Down(machine, packet));
            }
        }
    }

    /// Sends a packet to a machine, if the machine is in this rack.
    fn deliver(&self, machine: u8, packet: &Packet) {
        let is_here = self.places.rack_of(machine) == self.rack;
        let core = self.places.core(machine, packet.destination());
        if let Some(to) = core.filter(|_| is_here) {
            self.machines.send(to, packet);
        }
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use std::time::Duration;

    use lotus_fabric::ids::{Endpoint, LaneId, NodeId};

    use super::*;
    use crate::fisslock::packet::{Kind, Origin, Participant};
    use crate::fisslock::report::encode_switch;
    use crate::switched::MachineLanes;
    use crate::switched::pages::pages_of;
    use lotus_locks::word::Mode;

    /// Locks of the switch: of two pages.
    const LOCKS: u32 = 1_000;
    const RACKS: u32 = 2;

    /// Two racks of a machine each.
    fn places() -> Places {
        let at = |node| Endpoint { node: NodeId(node), lane: LaneId(0) };
        let machine = |node| MachineLanes { agent: at(node), clients: LaneId(2), cores: 1 };
        let machines = vec![machine(0), machine(1)];
        Places::new(vec![at(8), at(9)], machines, (RACKS * LOCKS).into()).expect("few")
    }

    /// The lock of a number among those of the second rack.
    const fn own(number: u32) -> u32 {
        number * RACKS + 1
    }

    fn state(epoch: Option<u32>) -> SwitchState {
        let (places, options) = (places(), SwitchOptions::repeating_after(Duration::ZERO));
        SwitchState {
            deciding: Deciding::new(places.locks_at(1), places.channels(), options),
            places,
            rack: 1,
            life: 7,
            epoch,
            rewrite: None,
        }
    }

    fn held(switch: &SwitchState) -> Option<bool> {
        match &switch.deciding {
            Deciding::Pipeline(pipeline) => Some(pipeline.lock(0).held),
            Deciding::Table(_) => None,
        }
    }

    fn request(epoch: u8, sequence: u64) -> Packet {
        let who = Participant { machine: 1, task: 1, nonce: 1 };
        let origin = Origin { machine: 1, channel: 0 };
        Packet { epoch, sequence, origin, ..Packet::new(Kind::Acquire, 1, who, Mode::Exclusive) }
    }

    /// The pages of a state in which a machine is lost and some locks are held.
    fn pages(locks: std::ops::Range<u32>) -> Vec<Page> {
        let lock = Metadata { held: true, machine: 1, ..Metadata::default() };
        let bytes = encode_switch(&[9], &locks.map(|number| (own(number), lock)).collect());
        (0..pages_of(&bytes)).filter_map(|number| Page::of(&bytes, number)).collect()
    }

    fn nothing() -> Page {
        pages(0..0).swap_remove(0)
    }

    #[test]
    fn a_switch_that_has_lost_its_state_grants_nothing_before_a_recovery() {
        let mut switch = state(None);
        assert_eq!(switch.process(request(0, 1)), []);
        assert_eq!(switch.rewrite(5, 7, nothing()), Progress::Done);
        assert_eq!(switch.process(request(0, 1)), [], "of an earlier epoch");
        assert_eq!(switch.process(request(5, 1)).len(), 1);
    }

    #[test]
    fn a_rewrite_that_comes_late_or_again_changes_nothing() {
        let mut switch = state(Some(0));
        assert_eq!(switch.rewrite(2, 7, nothing()), Progress::Done);
        assert_eq!(switch.process(request(2, 1)).len(), 1);
        assert_eq!(held(&switch), Some(true));
        assert_eq!(switch.rewrite(2, 7, nothing()), Progress::Done, "it is so");
        assert_eq!(switch.rewrite(1, 7, nothing()), Progress::Refused, "an earlier recovery");
        assert_eq!(switch.rewrite(3, 6, nothing()), Progress::Refused, "an earlier life");
        assert_eq!(held(&switch), Some(true), "it was not rewritten");
    }

    #[test]
    fn a_rewrite_takes_effect_with_its_last_page() {
        let mut switch = state(Some(0));
        let all = pages(0..LOCKS);
        assert_eq!(all.len(), 2);
        assert_eq!(switch.rewrite(2, 7, all[1].clone()), Progress::Kept);
        assert_eq!(switch.rewrite(2, 7, all[1].clone()), Progress::Kept, "again");
        assert_eq!((held(&switch), switch.epoch), (Some(false), Some(0)));
        assert_eq!(switch.rewrite(2, 7, all[0].clone()), Progress::Done);
        assert_eq!((held(&switch), switch.epoch), (Some(true), Some(2)));
        assert_eq!(switch.rewrite(2, 7, all[1].clone()), Progress::Done, "late");
        assert!(switch.rewrite.is_none(), "nothing is kept any more");
    }

    #[test]
    fn pages_of_an_earlier_epoch_are_never_part_of_a_later_one() {
        let mut switch = state(Some(0));
        let (all, fewer) = (pages(0..LOCKS), pages(1..LOCKS));
        assert_eq!(fewer.len(), 2);
        assert_eq!(switch.rewrite(2, 7, all[0].clone()), Progress::Kept);
        assert_eq!(switch.rewrite(3, 7, fewer[1].clone()), Progress::Kept);
        assert_eq!(switch.rewrite(2, 7, all[1].clone()), Progress::Refused, "a later one");
        assert_eq!(switch.rewrite(3, 7, fewer[0].clone()), Progress::Done);
        assert_eq!(held(&switch), Some(false), "as the later one says");
    }

    #[test]
    fn locks_that_the_switch_does_not_have_are_refused() {
        let mut switch = state(Some(0));
        let unknown = pages(LOCKS..LOCKS + 1).swap_remove(0);
        assert_eq!(switch.rewrite(2, 7, unknown), Progress::Refused);
        let other = [(own(0) - 1, Metadata::default())].into();
        let other = Page::of(&encode_switch(&[], &other), 0).expect("it has one");
        assert_eq!(switch.rewrite(4, 7, other), Progress::Refused, "the first rack's");
        let long = pages(0..2 * LOCKS).swap_remove(0);
        assert_eq!(switch.rewrite(5, 7, long), Progress::Refused);
        assert_eq!(switch.epoch, Some(0));
    }
    #[test]
    fn a_packet_keeps_the_number_of_its_lock() {
        let mut switch = state(Some(0));
        assert_eq!(switch.rewrite(5, 7, pages(1..2).swap_remove(0)), Progress::Done);
        assert_eq!(held(&switch), Some(false), "its second is");
        let routed = switch.process(Packet { lock: own(1), ..request(5, 1) });
        let routed: Vec<_> = routed.iter().map(|(to, packet)| (*to, packet.lock)).collect();
        assert_eq!(routed, [(1, own(1))], "for the agent");
    }
}
