//! Places of lock objects.

use lotus_fabric::ids::RemoteAddr;

/// An array of lock objects on one memory node. Two names that share an object are one lock; an
/// attempt takes the lock once, in the stronger mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockSpace {
    base: RemoteAddr,
    stride: u64,
    count: u64,
}

/// Error: an impossible space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// The space has no lock.
    #[error("a space holds at least one lock")]
    Empty,
    /// The objects would overlap, or not be aligned to words.
    #[error(
        "objects of {object} bytes do not fit a stride of {stride}: a multiple of 8, and not less"
    )]
    Stride {
        /// Bytes of an object.
        object: u64,
        /// The stride.
        stride: u64,
    },
    /// The last object would lie beyond the largest offset of a region.
    #[error("{count} locks with a stride of {stride} bytes do not fit in a region")]
    TooLarge {
        /// Number of locks.
        count: u64,
        /// The stride.
        stride: u64,
    },
}

impl LockSpace {
    /// Creates a space of `count` objects of `object` bytes, `stride` bytes apart, from `base` on.
    ///
    /// # Errors
    /// [`SpaceError`].
    pub fn new(base: RemoteAddr, object: u64, stride: u64, count: u64) -> Result<Self, SpaceError> {
        if count == 0 {
            return Err(SpaceError::Empty);
        }
        if stride < object || !stride.is_multiple_of(8) || !base.offset().is_multiple_of(8) {
            return Err(SpaceError::Stride { object, stride });
        }
        let end = count.checked_mul(stride).and_then(|bytes| bytes.checked_add(base.offset()));
        if end.is_none_or(|end| end > RemoteAddr::MAX_OFFSET) {
            return Err(SpaceError::TooLarge { count, stride });
        }
        Ok(Self { base, stride, count })
    }

    /// Number of objects.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Bytes from the first object to the end of the last object.
    pub const fn bytes(&self) -> u64 {
        self.count * self.stride
    }

    /// Returns the object of a name with this hash.
    pub fn of_hash(&self, hash: u64) -> RemoteAddr {
        self.object(hash % self.count)
    }

    /// Returns the object numbered `index`.
    ///
    /// # Panics
    /// If `index` is not below the number of objects.
    pub fn object(&self, index: u64) -> RemoteAddr {
        assert!(index < self.count, "there are {} locks", self.count);
        self.base.plus(index * self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::ids::{NodeId, RegionId};

    #[test]
    fn objects_are_apart_and_bad_spaces_are_refused() {
        let base = RemoteAddr::new(NodeId(1), RegionId(2), 64);
        let space = LockSpace::new(base, 16, 64, 3).expect("it is one");
        assert_eq!(space.object(2), base.plus(128));
        assert_eq!(space.of_hash(7), space.object(1));
        assert_eq!(space.bytes(), 192);
        assert_eq!(LockSpace::new(base, 16, 16, 0), Err(SpaceError::Empty));
        for stride in [8, 20] {
            let stride_error = SpaceError::Stride { object: 16, stride };
            assert_eq!(LockSpace::new(base, 16, stride, 3), Err(stride_error));
        }
        for count in [1 << 40, u64::MAX] {
            let error = SpaceError::TooLarge { count, stride: 16 };
            assert_eq!(LockSpace::new(base, 16, 16, count), Err(error));
        }
    }
}
