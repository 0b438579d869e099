//! The simulated machine: its devices, and their faults.

use std::cell::Cell;

/// A device.
pub struct Model {
    pub name: &'static str,
    /// Vendor number of Soft-RoCE, or of a card's maker.
    pub vendor: u32,
    pub active: bool,
    pub atomics: bool,
    pub lockable_bytes: usize,
    pub refuses_posts: bool,
    /// Takes only two requests of a longer chain, as if its queue were full.
    pub takes_two: bool,
    /// Fails the first datagram of a pair.
    pub fails_a_datagram: bool,
    /// Announces events that are gone when they are read, as if their queue had been destroyed
    /// meanwhile.
    pub withdraws_events: bool,
}

const CARD: Model = Model {
    name: "card0",
    vendor: 0x2C9,
    active: true,
    atomics: true,
    lockable_bytes: usize::MAX,
    refuses_posts: false,
    takes_two: false,
    fails_a_datagram: false,
    withdraws_events: false,
};

pub const DEVICES: [Model; 10] = [
    CARD,
    Model { name: "card1", ..CARD },
    Model { name: "soft0", vendor: 0xFF_FFFF, ..CARD },
    Model { name: "down0", active: false, ..CARD },
    Model { name: "plain0", atomics: false, ..CARD },
    Model { name: "tight0", lockable_bytes: 8 << 20, ..CARD },
    Model { name: "full0", refuses_posts: true, ..CARD },
    Model { name: "short0", takes_two: true, ..CARD },
    Model { name: "bad0", fails_a_datagram: true, ..CARD },
    Model { name: "fickle0", withdraws_events: true, ..CARD },
];

thread_local! {
    static VISIBLE: Cell<fn(&Model) -> bool> = const { Cell::new(|_| true) };
}

/// Whether the calling thread sees the device.
pub fn visible(model: &Model) -> bool {
    VISIBLE.get()(model)
}

/// Runs `body` on a machine with only some of the devices.
pub fn on_a_machine_with<T>(some: fn(&Model) -> bool, body: impl FnOnce() -> T) -> T {
    VISIBLE.set(some);
    let result = body();
    VISIBLE.set(|_| true);
    result
}
