//! Position of a piece within a step of several pieces.

use crate::Pieces;

/// Place of a piece among several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// The first piece.
    First,
    /// A piece that is neither the first nor the last; absent with two pieces.
    Middle,
    /// The last piece.
    Last,
}

impl Place {
    /// All places, in order.
    pub const ALL: &[Self] = &[Self::First, Self::Middle, Self::Last];

    /// Distinct places of a step with this number of pieces.
    pub const fn of(pieces: Pieces) -> &'static [Self] {
        match pieces {
            Pieces::One => &[Self::First],
            Pieces::Several => Self::ALL,
        }
    }

    /// Whether piece `index` of `count`, counted from 0, is at this place.
    pub const fn is(self, index: usize, count: usize) -> bool {
        match self {
            Self::First => index == 0,
            Self::Middle => count > 2 && index == count / 2,
            Self::Last => index + 1 == count,
        }
    }

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Middle => "middle",
            Self::Last => "last",
        }
    }

    /// The place with this name, if any.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|place| place.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_differ_where_there_are_three_pieces() {
        let at = |place: Place, count| (0..count).filter(move |index| place.is(*index, count));
        for (count, first, middle, last) in [
            (1, Some(0), None, Some(0)),
            (2, Some(0), None, Some(1)),
            (3, Some(0), Some(1), Some(2)),
        ] {
            assert!(at(Place::First, count).eq(first), "{count}");
            assert!(at(Place::Middle, count).eq(middle), "{count}");
            assert!(at(Place::Last, count).eq(last), "{count}");
        }
        for place in Place::ALL {
            assert_eq!(Place::named(place.name()), Some(*place));
        }
    }
}
