//! Request times in the queues of locks.

/// Returns whether `one` is earlier than `other`, or equal. Times are in microseconds and wrap
/// after 65.5 ms. For times further apart than half of the range, the answer is wrong, which costs
/// fairness (DecLock §5.3).
pub const fn is_earlier(one: u16, other: u16) -> bool {
    other.wrapping_sub(one) < 1 << 15
}

/// Returns the earlier of two times.
pub const fn earlier(one: u16, other: u16) -> u16 {
    if is_earlier(one, other) { one } else { other }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;

    #[test]
    fn times_come_round() {
        let table = [
            (1, 2, true),
            (2, 1, false),
            (7, 7, true),
            (0xFFFF, 0, true),
            (0, 0xFFFF, false),
            (0, 0x7FFF, true),
            (0, 0x8000, false),
        ];
        for (one, other, expected) in table {
            assert_eq!(is_earlier(one, other), expected, "{one} {other}");
            assert_eq!(earlier(one, other), if expected { one } else { other });
        }
    }
}
