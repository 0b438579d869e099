//! Packets that come to a lane.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lotus_fabric::exec::TaskId;
use lotus_fabric::ids::Endpoint;
use lotus_fabric::lane::Lane;

use crate::fisslock::Packet;

/// Packets that have come and were not taken. Bytes that are no packet are dropped, and what comes
/// from strangers.
pub(super) struct Inbox {
    lane: Lane,
    packets: Rc<RefCell<Vec<Packet>>>,
    /// The task that takes them.
    reader: Rc<Cell<Option<TaskId>>>,
}

impl Inbox {
    /// Takes over the messages of a lane.
    pub(super) fn of(lane: Lane, is_known: impl Fn(Endpoint) -> bool + 'static) -> Self {
        let (packets, reader) = (Rc::<RefCell<Vec<Packet>>>::default(), Rc::default());
        let inbox = Self { packets: Rc::clone(&packets), reader: Rc::clone(&reader), lane };
        let executor = inbox.lane.executor().clone();
        inbox.lane.on_message(Box::new(move |from, bytes| {
            if let Ok(packet) = Packet::decode(bytes)
                && is_known(from)
            {
                packets.borrow_mut().push(packet);
                if let Some(reader) = reader.get() {
                    executor.wake(reader);
                }
            }
        }));
        inbox
    }

    pub(super) const fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Has further packets wake the current task.
    pub(super) fn read_here(&self) {
        self.reader.set(Some(self.lane.executor().current()));
    }

    /// Takes the packets that have come.
    pub(super) fn take(&self) -> Vec<Packet> {
        self.packets.take()
    }
}
