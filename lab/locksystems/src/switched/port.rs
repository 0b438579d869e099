//! Ports of cores and switches: packets, sent as notices of a lane.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lotus_fabric::exec::TaskId;
use lotus_fabric::ids::Endpoint;
use lotus_fabric::rpc::{Rpc, Service};

use crate::fisslock::Packet;
use crate::servers::CpuCharge;

/// Service of packets: notices on the lanes of clients, agents and switches.
pub const PACKETS: Service = Service(7);
/// Service of packets from one switch to another.
pub(super) const RELAYS: Service = Service(8);

/// Message type carried by ports.
pub(super) trait PortMessage: Sized + 'static {
    const SERVICE: Service;

    fn encode(&self) -> Vec<u8>;

    /// Returns `None` for malformed bytes.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

impl PortMessage for Packet {
    const SERVICE: Service = PACKETS;

    fn encode(&self) -> Vec<u8> {
        self.encode()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Self::decode(bytes).ok()
    }
}

/// A packet between switches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum SwitchPacket {
    /// For the switch that decides on the packet's lock.
    Up(Packet),
    /// For a machine in the rack of the receiving switch.
    Down(u8, Packet),
}

impl PortMessage for SwitchPacket {
    const SERVICE: Service = RELAYS;

    fn encode(&self) -> Vec<u8> {
        let (head, packet) = match self {
            Self::Up(packet) => ([0, 0], packet),
            Self::Down(machine, packet) => ([1, *machine], packet),
        };
        [&head[..], &packet.encode()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, packet) = bytes.split_first_chunk()?;
        let packet = Packet::decode(packet).ok()?;
        match *head {
            [0, 0] => Some(Self::Up(packet)),
            [1, machine] => Some(Self::Down(machine, packet)),
            [_, _] => None,
        }
    }
}

/// Sends packets, and keeps received packets until taken. Malformed bytes and packets from unknown
/// senders are dropped.
pub(super) struct Port<T = Packet> {
    rpc: Rpc,
    packets: Rc<RefCell<Vec<T>>>,
    /// The task that takes the received packets.
    reader: Rc<Cell<Option<TaskId>>>,
}

impl<T: PortMessage> Port<T> {
    /// Opens the port of a lane. A lane has one port per message type. `cpu_charge` is charged for
    /// every received packet, where time is virtual.
    pub(super) fn of(
        rpc: Rpc,
        cpu_charge: Option<CpuCharge>,
        is_known: impl Fn(Endpoint) -> bool + 'static,
    ) -> Self {
        let (packets, reader) = (Rc::<RefCell<Vec<T>>>::default(), Rc::default());
        let port = Self { packets: Rc::clone(&packets), reader: Rc::clone(&reader), rpc };
        let executor = port.rpc.lane().executor().clone();
        port.rpc.hear(
            T::SERVICE,
            Box::new(move |from, bytes| {
                if let Some(packet) = T::decode(bytes)
                    && is_known(from)
                {
                    if let Some(cpu_charge) = &cpu_charge {
                        cpu_charge();
                    }
                    packets.borrow_mut().push(packet);
                    if let Some(reader) = reader.get() {
                        executor.wake(reader);
                    }
                }
            }),
        );
        port
    }

    pub(super) const fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    /// Makes further packets wake the current task.
    pub(super) fn read_here(&self) {
        self.reader.set(Some(self.rpc.lane().executor().current()));
    }

    /// Takes the received packets.
    pub(super) fn take(&self) -> Vec<T> {
        self.packets.take()
    }

    /// Sends a packet, once.
    pub(super) fn send(&self, to: Endpoint, packet: &T) {
        let told = self.rpc.tell(to, T::SERVICE, &packet.encode());
        told.expect("a packet is far shorter than a notice may be");
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;
    use crate::fisslock::packet::{Kind, Participant};
    use lotus_locks::word::Mode;

    #[test]
    fn relays_are_read_as_they_were_written_and_garbage_is_refused() {
        let who = Participant { machine: 1, task: 2, nonce: 3 };
        let packet = Packet::new(Kind::Free, 7, who, Mode::Shared);
        for relay in [SwitchPacket::Up(packet.clone()), SwitchPacket::Down(200, packet)] {
            let bytes = relay.encode();
            assert_eq!(SwitchPacket::decode(&bytes), Some(relay));
            (0..bytes.len()).for_each(|end| assert_eq!(SwitchPacket::decode(&bytes[..end]), None));
            assert_eq!(SwitchPacket::decode(&[&[2, 0], &bytes[2..]].concat()), None);
            assert_eq!(
                SwitchPacket::decode(&[&[0, 9], &bytes[2..]].concat()),
                None,
                "up to no machine"
            );
        }
    }
}
