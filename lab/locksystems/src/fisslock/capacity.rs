//! Capacity of a switch, in locks and machines.

use thiserror::Error;

use super::cores::MAX_CLIENT_CORES;

/// Match-action units of the switch's ingress pipeline (FissLock §7.2).
pub const UNITS: u64 = 12;
/// Bits of a unit's registers: 560 KB.
pub const UNIT_BITS: u64 = 560_000 * 8;
/// Maximum number of machines. A register of the switch names a machine in 8 bits. A machine has at
/// most one shared grant of a lock in flight, so an 8-bit incarnation does not wrap with fewer than
/// 256 machines.
pub const MAX_MACHINES: usize = u8::MAX as usize;
/// Maximum number of locks of one switch.
pub const MAX_LOCKS: u64 = UNIT_BITS * 3 / 8;

const _: () = assert!(units(MAX_LOCKS) == UNITS && units(MAX_LOCKS + 1) > UNITS);

/// Returns the match-action units used by the decider of `locks` locks: two arrays of a bit per
/// lock, two arrays of a byte per lock, and four units of control (FissLock §7.2).
pub const fn units(locks: u64) -> u64 {
    2 * locks.div_ceil(UNIT_BITS) + 2 * (8 * locks).div_ceil(UNIT_BITS) + 4
}

/// Treatment of locks beyond the switch's capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallback {
    /// No locks beyond the capacity are allowed.
    None,
    /// The machines manage the locks beyond the capacity, each machine a part (ParLock, FissLock
    /// §6).
    ParLock,
}

/// Locks placed on switches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    locks: u64,
    room: u64,
}

/// Reason why switches cannot serve a placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CapacityError {
    /// Too many machines to number, or no machine.
    #[error("a FissLock switch serves 1 to {MAX_MACHINES} machines, not {0}")]
    Machines(usize),
    /// No rack, or more racks than machines.
    #[error("{machines} machines of FissLock are in 1 to {machines} racks, not {racks}")]
    Racks {
        /// Number of racks.
        racks: usize,
        /// Number of machines.
        machines: usize,
    },
    /// Too many client cores to number.
    #[error("a FissLock machine has at most {MAX_CLIENT_CORES} client cores, not {0}")]
    Cores(usize),
    /// The switches have no room for the locks, and no fallback is allowed.
    #[error("FissLock switches have room for {room} locks, not {locks}, without the fallback")]
    Locks {
        /// Number of locks.
        locks: u64,
        /// Room of all switches.
        room: u64,
    },
}

impl Placement {
    /// Places `locks` locks on the switches of `racks` racks, for `machines` machines.
    ///
    /// # Errors
    /// [`CapacityError`] if a number is beyond the capacity.
    pub const fn new(
        machines: usize,
        racks: usize,
        locks: u64,
        fallback: Fallback,
    ) -> Result<Self, CapacityError> {
        if machines == 0 || machines > MAX_MACHINES {
            return Err(CapacityError::Machines(machines));
        }
        if racks == 0 || racks > machines {
            return Err(CapacityError::Racks { racks, machines });
        }
        let room = MAX_LOCKS * racks as u64;
        if locks > room && matches!(fallback, Fallback::None) {
            return Err(CapacityError::Locks { locks, room });
        }
        Ok(Self { locks, room })
    }

    /// Number of locks whose state is in registers of switches: the locks with the lowest numbers.
    pub fn on_switch(self) -> u32 {
        // The room of 255 switches is below 2^32.
        self.locks.min(self.room) as u32
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;

    #[test]
    fn twelve_units_hold_1_68_million_locks() {
        assert_eq!(MAX_LOCKS, 1_680_000);
        let table = [(1, 8), (560_000, 8), (560_001, 10), (1_000_000, 10), (1_680_000, 12)];
        for (locks, expected) in table {
            assert_eq!(units(locks), expected, "{locks} locks");
        }
        assert_eq!(units(1_680_001), 14);
    }

    #[test]
    fn what_a_switch_cannot_serve_is_refused_in_a_sentence() {
        let sentence = |machines, racks, locks| {
            let placement = Placement::new(machines, racks, locks, Fallback::None);
            placement.expect_err("too many").to_string()
        };
        assert_eq!(sentence(256, 1, 1), "a FissLock switch serves 1 to 255 machines, not 256");
        assert_eq!(sentence(0, 1, 1), "a FissLock switch serves 1 to 255 machines, not 0");
        assert_eq!(
            sentence(255, 1, 1_680_001),
            "FissLock switches have room for 1680000 locks, not 1680001, without the fallback"
        );
        assert!(sentence(255, 2, 3_360_001).contains("room for 3360000 locks"));
        assert_eq!(sentence(3, 4, 1), "3 machines of FissLock are in 1 to 3 racks, not 4");
    }

    #[test]
    fn locks_beyond_the_capacity_are_on_machines() {
        let placement = Placement::new(8, 1, 10_000_000, Fallback::ParLock).expect("a fallback");
        assert_eq!(placement.on_switch(), 1_680_000);
        let most = Placement::new(255, 255, u64::MAX, Fallback::ParLock).expect("a fallback");
        assert_eq!(most.on_switch(), 428_400_000);
    }
}
