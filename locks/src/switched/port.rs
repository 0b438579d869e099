//! Ports of cores and switches: packets, as notices of a lane.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lotus_fabric::exec::TaskId;
use lotus_fabric::ids::Endpoint;
use lotus_fabric::rpc::{Rpc, Service};

use crate::fisslock::Packet;
use crate::servers::Toll;

/// Service of packets: notices on the lanes of clients, agents and switches.
pub const PACKETS: Service = Service(7);

/// Sends packets, and keeps those that have come and were not taken. Bytes that are no packet are
/// dropped, and what comes from strangers.
pub(super) struct Port {
    rpc: Rpc,
    packets: Rc<RefCell<Vec<Packet>>>,
    /// The task that takes them.
    reader: Rc<Cell<Option<TaskId>>>,
}

impl Port {
    /// The port of a lane. There is one. `toll` is charged for each packet that comes, where time
    /// is virtual.
    pub(super) fn of(
        rpc: Rpc,
        toll: Option<Toll>,
        is_known: impl Fn(Endpoint) -> bool + 'static,
    ) -> Self {
        let (packets, reader) = (Rc::<RefCell<Vec<Packet>>>::default(), Rc::default());
        let port = Self { packets: Rc::clone(&packets), reader: Rc::clone(&reader), rpc };
        let executor = port.rpc.lane().executor().clone();
        port.rpc.hear(
            PACKETS,
            Box::new(move |from, bytes| {
                if let Ok(packet) = Packet::decode(bytes)
                    && is_known(from)
                {
                    if let Some(toll) = &toll {
                        toll();
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

    /// Has further packets wake the current task.
    pub(super) fn read_here(&self) {
        self.reader.set(Some(self.rpc.lane().executor().current()));
    }

    /// Takes the packets that have come.
    pub(super) fn take(&self) -> Vec<Packet> {
        self.packets.take()
    }

    /// Sends a packet, once.
    pub(super) fn send(&self, to: Endpoint, packet: &Packet) {
        let told = self.rpc.tell(to, PACKETS, &packet.encode());
        told.expect("a packet is far shorter than a notice may be");
    }
}
