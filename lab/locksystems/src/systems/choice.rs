//! A lock system chosen by its name.

use std::fmt;
use std::str::FromStr;

use lotus_fabric::verbs::Capabilities;
use lotus_locks::systems::{
    Cas, Declock, Dslr, DslrTimes, ObjectBytes, ShiftLock, ShiftLockWide, Visitor,
};
use lotus_locks::word::DeclockFields;
use lotus_locks::{Pacing, Recovery};

use super::{CasRw, Drtm, DslrU, Mcs, Ncosed, Release, RmaRw};

/// A lock system's name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// [`Cas`].
    Cas,
    /// [`CasRw`].
    CasRw,
    /// [`Dslr`].
    Dslr,
    /// [`Dslr`] with the polling of DSLR+.
    DslrPlus,
    /// [`DslrU`].
    DslrU,
    /// [`Mcs`].
    Mcs,
    /// [`RmaRw`].
    RmaRw,
    /// [`Drtm`].
    Drtm,
    /// [`Ncosed`].
    Ncosed,
    /// [`ShiftLock`].
    ShiftLock,
    /// [`ShiftLockWide`].
    ShiftLockWide,
    /// [`Declock`].
    Declock,
}

impl Kind {
    /// All systems.
    pub const ALL: [Self; 12] = [
        Self::Cas,
        Self::CasRw,
        Self::Dslr,
        Self::DslrPlus,
        Self::DslrU,
        Self::Mcs,
        Self::RmaRw,
        Self::Drtm,
        Self::Ncosed,
        Self::ShiftLock,
        Self::ShiftLockWide,
        Self::Declock,
    ];

    /// The name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cas => "cas",
            Self::CasRw => "cas-rw",
            Self::Dslr => "dslr",
            Self::DslrPlus => "dslr+",
            Self::DslrU => "dslr-u",
            Self::Mcs => "mcs",
            Self::RmaRw => "rma-rw",
            Self::Drtm => "drtm",
            Self::Ncosed => "ncosed",
            Self::ShiftLock => "shiftlock",
            Self::ShiftLockWide => "shiftlock-wide",
            Self::Declock => "declock",
        }
    }

    /// Whether the system uses masked atomics where the fabric has them, and works without masked
    /// atomics elsewhere.
    pub const fn likes_masks(self) -> bool {
        matches!(self, Self::Mcs | Self::RmaRw | Self::ShiftLock)
    }

    /// Whether the uses of a lock send notices to one another
    /// ([`TELLS`](lotus_locks::LockSystem::TELLS)).
    pub const fn tells(self) -> bool {
        matches!(
            self,
            Self::Mcs
                | Self::RmaRw
                | Self::Ncosed
                | Self::ShiftLock
                | Self::ShiftLockWide
                | Self::Declock
        )
    }

    /// Whether the system needs atomics on 16 bytes ([`WIDE`](lotus_locks::LockSystem::WIDE)).
    pub const fn needs_wide_atomics(self) -> bool {
        matches!(self, Self::ShiftLockWide)
    }

    /// Checks whether the system works on a fabric with these capabilities.
    ///
    /// # Errors
    /// [`UnsupportedOption::TooWide`].
    pub const fn fits(self, fabric: &Capabilities) -> Result<(), UnsupportedOption> {
        match self.needs_wide_atomics() && !fabric.wide_atomics {
            true => Err(UnsupportedOption::TooWide(self)),
            false => Ok(()),
        }
    }

    /// Checks whether the system is offered with this treatment of late or lost holders.
    ///
    /// # Errors
    /// [`UnsupportedOption`].
    pub const fn check(self, recovery: Recovery) -> Result<(), UnsupportedOption> {
        match (self, recovery) {
            (Self::DslrU, Recovery::Paper) => Err(UnsupportedOption::Unpublished(self)),
            (Self::RmaRw | Self::Drtm | Self::Ncosed, Recovery::Fenced) => {
                Err(UnsupportedOption::Unfenced(self))
            }
            (Self::ShiftLockWide, Recovery::Fenced) => Err(UnsupportedOption::Markless(self)),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error: a name that no lock system has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "there is no lock system \"{0}\"; there are cas, cas-rw, dslr, dslr+, dslr-u, mcs, rma-rw, \
     drtm, ncosed, shiftlock, shiftlock-wide, declock"
)]
pub struct UnknownKind(String);

/// Error: a system is not offered with a treatment of late or lost holders, or with a fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnsupportedOption {
    /// The paper does not say what becomes of late or lost holders.
    #[error("there is no {0} as published: its paper has no leases of update locks")]
    Unpublished(Kind),
    /// The system is a baseline, which tolerates no failure.
    #[error("there is {0} as published only: it tolerates no failure")]
    Unfenced(Kind),
    /// The locks have no room for the mark of a reset.
    #[error("there is {0} as published only: its lock has no room for the mark of a reset")]
    Markless(Kind),
    /// The fabric has no atomics on 16 bytes.
    #[error(
        "{0} needs atomics on 16 bytes, which only the simulated fabric has, where its profile has \
         extended.wide"
    )]
    TooWide(Kind),
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| UnknownKind(name.to_owned()))
    }
}

/// A lock system and its options.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Choice {
    /// The system.
    pub kind: Kind,
    /// Treatment of late or lost holders; ignored if [`Kind::check`] refuses the treatment.
    pub recovery: Recovery,
    /// Whether `cas`, `cas-rw` and `drtm` back off ([`Pacing::SMART`]).
    pub backs_off: bool,
    /// The way in which writers of `cas-rw` release.
    pub release: Release,
    /// Times of the systems of DSLR.
    pub times: DslrTimes,
    /// Number of consecutive writers of `shiftlock` and `shiftlock-wide` that hold a lock before
    /// readers have the lock.
    pub threshold: u16,
    /// Entries of the queues of `declock`; see [`DeclockFields::fits`].
    pub entries: u32,
}

impl Choice {
    /// Chooses a system with the options of its paper, fenced if possible.
    pub const fn of(kind: Kind) -> Self {
        let recovery = match kind.check(Recovery::Fenced) {
            Ok(()) => Recovery::Fenced,
            Err(_) => Recovery::Paper,
        };
        let times = DslrTimes::PUBLISHED;
        let (release, threshold) = (Release::Add, ShiftLock::THRESHOLD);
        let entries = Declock::PUBLISHED_ENTRIES;
        Self { kind, recovery, backs_off: false, release, times, threshold, entries }
    }

    /// Performs an operation with the chosen system.
    pub fn visit<V: Visitor>(self, visitor: V) -> V::Output {
        let Self { recovery, release, times, threshold, entries, .. } = self;
        let pacing = if self.backs_off { Pacing::SMART } else { Pacing::NONE };
        match self.kind {
            Kind::Cas => visitor.visit(move || Cas { recovery, pacing }),
            Kind::CasRw => visitor.visit(move || CasRw { recovery, pacing, release }),
            Kind::Dslr => visitor.visit(move || Dslr::new(recovery, times)),
            Kind::DslrPlus => visitor.visit(move || Dslr::plus(recovery, times)),
            Kind::DslrU => visitor.visit(move || DslrU::new(times)),
            Kind::Mcs => visitor.visit(move || Mcs::new(recovery)),
            Kind::RmaRw => visitor.visit(RmaRw::published),
            Kind::Drtm => visitor.visit(move || Drtm::published(pacing)),
            Kind::Ncosed => visitor.visit(Ncosed::default),
            Kind::ShiftLock => visitor.visit(move || ShiftLock::new(recovery, threshold)),
            Kind::ShiftLockWide => visitor.visit(move || ShiftLockWide::published(threshold)),
            Kind::Declock => visitor.visit(move || Declock::new(recovery, entries)),
        }
    }

    /// Bytes of a lock object.
    pub fn object_bytes(self) -> u64 {
        self.visit(ObjectBytes)
    }

    /// Largest number of outstanding requests for one lock, each counted by its lease terms; `None`
    /// if there is no bound below the bound of [`Waiter`](lotus_locks::Waiter).
    pub const fn capacity(self) -> Option<u32> {
        match self.kind {
            Kind::Cas | Kind::CasRw | Kind::Mcs | Kind::RmaRw | Kind::Drtm | Kind::Ncosed => None,
            Kind::Dslr | Kind::DslrPlus => Some(Dslr::published(self.recovery).capacity()),
            Kind::DslrU => Some(DslrU::CAPACITY),
            Kind::ShiftLock => Some(ShiftLock::CAPACITY),
            Kind::ShiftLockWide => Some(ShiftLockWide::CAPACITY),
            Kind::Declock => Some(DeclockFields::new(self.entries).most_requests()),
        }
    }
}

#[cfg(test)]
mod tests {
    use lotus_locks::LockSystem;

    use super::*;

    struct Name;

    impl Visitor for Name {
        type Output = &'static str;

        fn visit<S: LockSystem>(
            self,
            make: impl Fn() -> S + Send + Sync + 'static,
        ) -> &'static str {
            make().name()
        }
    }

    #[test]
    fn a_system_is_found_by_its_name() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(Choice::of(kind).visit(Name), kind.name());
        }
        let baselines = [Kind::RmaRw, Kind::Drtm, Kind::Ncosed, Kind::ShiftLockWide];
        for (recovery, expected) in
            [(Recovery::Fenced, &baselines[..]), (Recovery::Paper, &[Kind::DslrU])]
        {
            let unoffered = Kind::ALL.into_iter().filter(|kind| kind.check(recovery).is_err());
            let unoffered: Vec<_> = unoffered.collect();
            assert_eq!(unoffered, expected, "{recovery:?}");
            assert!(unoffered.iter().all(|kind| Choice::of(*kind).recovery != recovery));
        }
        for (wide_atomics, expected) in [(true, &[][..]), (false, &[Kind::ShiftLockWide])] {
            let fabric = Capabilities { wide_atomics, ..Capabilities::default() };
            let unfit = Kind::ALL.into_iter().filter(|kind| kind.fits(&fabric).is_err());
            assert_eq!(unfit.collect::<Vec<_>>(), expected);
        }
        let error = "spin".parse::<Kind>().unwrap_err().to_string();
        assert!(Kind::ALL.iter().all(|kind| error.contains(kind.name())), "{error}");
    }
}
