//! Decisions about shared locks of a node over plain values: which client is next.

use std::fmt;
use std::str::FromStr;

use lotus_locks::LockSystem;
use lotus_locks::word::{Mode, is_earlier};

use crate::systems::{Choice, Kind};

/// Rule for passing a lock on among a node's own clients, or giving the lock up for other nodes
/// (DecLock §5.3, §6.4).
///
/// A change of mode always gives the lock up and asks again, whatever the policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Policy {
    /// Gives the lock up whenever its last local holder leaves.
    RemotePrefer,
    /// Passes the lock on for as long as a local client waits. Other nodes may wait for ever.
    LocalPrefer,
    /// Passes the lock on to at most this many clients between two requests to the memory node
    /// (Sherman). Joining readers count as well.
    LocalBound(u32),
    /// Passes the lock on if the first local waiter is earlier than every known remote waiter.
    /// Adjacent readers of the local queue share the lock, so every request has its turn.
    TsTf,
    /// As [`Policy::TsTf`], but readers share the lock with all waiting local readers, and when a
    /// writer gives the lock up, the first reader asks for it: phases of readers and writers
    /// alternate.
    TsPf,
}

/// A local client's request in its node's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuedRequest {
    /// [`Mode::Shared`] or [`Mode::Exclusive`].
    pub mode: Mode,
    /// Time of the request, in microseconds; see [`is_earlier`].
    pub time: u16,
}

/// State of a lock that a node holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Situation {
    /// Mode in which the node holds the lock.
    pub held: Mode,
    /// Whether to give up the lock as soon as its holders have left: a remote writer was seen, the
    /// lock is being reset, or its memory is lost.
    pub is_closed: bool,
    /// Number of local clients that received the lock since the node's acquisition.
    pub given: u32,
    /// Time of the earliest known remote waiter.
    pub remote: Option<u16>,
}

/// How a waiter takes part in a lock that readers share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// The waiter becomes a holder.
    Takes,
    /// The waiter waits on; waiters behind it may share.
    Passed,
    /// The waiter and every waiter behind it wait on.
    Ends,
}

impl Policy {
    /// The policies, with the bound of the papers (DecLock §6.4: 4).
    pub const ALL: [Self; 5] =
        [Self::RemotePrefer, Self::LocalPrefer, Self::LocalBound(4), Self::TsTf, Self::TsPf];

    /// Whether the policy compares times of requests.
    pub const fn uses_times(self) -> bool {
        matches!(self, Self::TsTf | Self::TsPf)
    }

    /// Refuses lock systems whose locks cannot be shared by this policy.
    ///
    /// # Errors
    /// [`Unshared`].
    pub fn check(self, choice: Choice) -> Result<(), Unshared> {
        struct HasLeases;
        impl lotus_locks::systems::Visitor for HasLeases {
            type Output = bool;
            fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> bool {
                make().has_leases()
            }
        }
        if self.uses_times() && choice.kind != Kind::Declock {
            return Err(Unshared::Timeless(self, choice.kind));
        }
        match choice.visit(HasLeases) {
            true => Err(Unshared::Leased(choice.kind)),
            false => Ok(()),
        }
    }

    /// Whether an arriving reader may hold the lock at once, beside the node's other readers.
    pub const fn joins(self, now: Situation, time: u16) -> bool {
        let is_open = matches!(now.held, Mode::Shared) && !now.is_closed;
        is_open
            && match self {
                Self::RemotePrefer | Self::LocalPrefer => true,
                Self::LocalBound(most) => now.given < most,
                Self::TsTf | Self::TsPf => now.precedes(time),
            }
    }

    /// Whether the lock stays at the node when its last holder leaves, for `first`, the first
    /// waiter of the node's queue.
    pub fn keeps(self, now: Situation, first: QueuedRequest) -> bool {
        let is_open = now.held == first.mode && !now.is_closed;
        is_open
            && match self {
                Self::RemotePrefer => false,
                Self::LocalPrefer => true,
                Self::LocalBound(most) => now.given < most,
                Self::TsTf | Self::TsPf => now.precedes(first.time),
            }
    }

    /// Whether a waiter becomes a holder together with other readers. Called for the waiters in
    /// order, from the front of the queue; `has_begun` says whether the lock has a reader yet.
    pub fn shares(self, now: Situation, has_begun: bool, wish: QueuedRequest) -> Share {
        let is_reader = wish.mode == Mode::Shared;
        match self {
            Self::LocalBound(most) if has_begun && now.given >= most => Share::Ends,
            Self::TsTf if has_begun && !(is_reader && now.precedes(wish.time)) => Share::Ends,
            _ if is_reader => Share::Takes,
            _ => Share::Passed,
        }
    }

    /// Index of the waiter that asks the memory node on behalf of its node, after the node has
    /// given the lock up in mode `left`, if the node had the lock.
    pub fn elects(self, left: Option<Mode>, wishes: &[QueuedRequest]) -> Option<usize> {
        let is_other = |wish: &QueuedRequest| left.is_some_and(|left| wish.mode != left);
        let other = wishes.iter().position(is_other).filter(|_| self != Self::TsTf);
        other.or((!wishes.is_empty()).then_some(0))
    }
}

impl Situation {
    /// Whether a time is earlier than that of every known remote waiter.
    const fn precedes(self, time: u16) -> bool {
        match self.remote {
            Some(remote) => is_earlier(time, remote),
            None => true,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemotePrefer => f.write_str("remote-prefer"),
            Self::LocalPrefer => f.write_str("local-prefer"),
            Self::LocalBound(most) => write!(f, "local-bound:{most}"),
            Self::TsTf => f.write_str("ts-tf"),
            Self::TsPf => f.write_str("ts-pf"),
        }
    }
}

/// A name that belongs to no policy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "there is no policy \"{0}\"; there are remote-prefer, local-prefer, local-bound:K with K from \
     1 on, ts-tf, ts-pf"
)]
pub struct UnknownPolicy(String);

/// A lock system whose locks the clients of a node cannot share by a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unshared {
    /// The lock words have no times of waiters.
    #[error(
        "{0} compares times of requests, which only the queues of declock have, not the locks of \
         {1}"
    )]
    Timeless(Policy, Kind),
    /// A lease belongs to one holder.
    #[error(
        "the leases of {0}, as published, are of one holder, and not for clients that share it"
    )]
    Leased(Kind),
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let unknown = || UnknownPolicy(name.to_owned());
        if let Some(most) = name.strip_prefix("local-bound:") {
            let most = most.parse().ok().filter(|most| *most > 0);
            return most.map(Self::LocalBound).ok_or_else(unknown);
        }
        let known = Self::ALL.into_iter().find(|policy| policy.to_string() == name);
        known.ok_or_else(unknown)
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;
    use lotus_locks::Recovery;

    const READER: QueuedRequest = QueuedRequest { mode: Mode::Shared, time: 100 };
    const WRITER: QueuedRequest = QueuedRequest { mode: Mode::Exclusive, time: 100 };
    const READ: Situation =
        Situation { held: Mode::Shared, is_closed: false, given: 0, remote: None };
    const WRITTEN: Situation = Situation { held: Mode::Exclusive, ..READ };

    fn at(time: u16, wish: QueuedRequest) -> QueuedRequest {
        QueuedRequest { time, ..wish }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for policy in Policy::ALL.into_iter().chain([Policy::LocalBound(1)]) {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for name in ["", "ts", "local-bound", "local-bound:", "local-bound:0", "local-bound:-1"] {
            let error = name.parse::<Policy>().expect_err(name).to_string();
            assert!(error.contains("ts-pf") && error.contains("local-bound:K"), "{error}");
        }
    }

    #[test]
    fn a_lock_is_kept_for_the_next_local_client() {
        let (earlier, later) = (at(90, WRITER), at(110, WRITER));
        let remote = Situation { remote: Some(100), ..WRITTEN };
        let given = |given| Situation { given, ..WRITTEN };
        let bound = Policy::LocalBound(2);
        let table = [
            (Policy::RemotePrefer, WRITTEN, WRITER, false),
            (Policy::LocalPrefer, remote, later, true),
            (Policy::LocalPrefer, given(1000), WRITER, true),
            (bound, given(1), WRITER, true),
            (bound, given(2), WRITER, false),
            (Policy::TsTf, WRITTEN, WRITER, true),
            (Policy::TsTf, remote, earlier, true),
            (Policy::TsTf, remote, later, false),
            (Policy::TsPf, remote, earlier, true),
            (Policy::TsPf, remote, later, false),
        ];
        for (policy, now, first, expected) in table {
            assert_eq!(policy.keeps(now, first), expected, "{policy} {now:?} {first:?}");
        }
        for policy in Policy::ALL {
            assert!(!policy.keeps(WRITTEN, READER) && !policy.keeps(READ, WRITER), "{policy}");
            assert!(!policy.keeps(Situation { is_closed: true, ..WRITTEN }, WRITER), "{policy}");
        }
    }

    #[test]
    fn readers_join_unless_somebody_was_there_before_them() {
        let remote = Situation { remote: Some(100), ..READ };
        for policy in Policy::ALL {
            assert!(policy.joins(READ, 7), "{policy}");
            assert!(!policy.joins(Situation { is_closed: true, ..READ }, 7), "{policy}");
            assert!(!policy.joins(WRITTEN, 7), "{policy}");
            assert_eq!(policy.joins(remote, 110), !policy.uses_times(), "{policy}");
        }
        assert!(!Policy::LocalBound(3).joins(Situation { given: 3, ..READ }, 7));
    }

    #[test]
    fn readers_share_with_their_neighbours_or_with_all() {
        use Share::{Ends, Passed, Takes};
        let remote = Situation { remote: Some(100), ..READ };
        let later = at(110, READER);
        let table = [
            (Policy::TsPf, READ, false, WRITER, Passed),
            (Policy::TsPf, READ, true, WRITER, Passed),
            (Policy::TsPf, remote, true, later, Takes),
            (Policy::TsTf, READ, false, WRITER, Passed),
            (Policy::TsTf, READ, false, READER, Takes),
            (Policy::TsTf, READ, true, READER, Takes),
            (Policy::TsTf, READ, true, WRITER, Ends),
            (Policy::TsTf, remote, true, later, Ends),
            // The lock is at the node for somebody.
            (Policy::TsTf, remote, false, later, Takes),
            (Policy::LocalPrefer, remote, true, later, Takes),
            (Policy::RemotePrefer, remote, true, later, Takes),
            (Policy::LocalBound(2), Situation { given: 1, ..READ }, true, READER, Takes),
            (Policy::LocalBound(2), Situation { given: 2, ..READ }, true, READER, Ends),
            (Policy::LocalBound(2), Situation { given: 2, ..READ }, false, READER, Takes),
        ];
        for (policy, now, has_begun, wish, expected) in table {
            let shares = policy.shares(now, has_begun, wish);
            assert_eq!(shares, expected, "{policy} {now:?} {has_begun} {wish:?}");
        }
    }

    #[test]
    fn phases_take_turns_except_where_each_has_its_turn() {
        let queue = [WRITER, READER, WRITER];
        for policy in Policy::ALL {
            let readers_first = usize::from(policy != Policy::TsTf);
            assert_eq!(policy.elects(Some(Mode::Exclusive), &queue), Some(readers_first));
            assert_eq!(policy.elects(Some(Mode::Shared), &queue), Some(0), "{policy}");
            assert_eq!(policy.elects(Some(Mode::Exclusive), &queue[..1]), Some(0), "{policy}");
            assert_eq!(policy.elects(Some(Mode::Shared), &queue[1..]), Some(readers_first));
            assert_eq!(policy.elects(None, &queue), Some(0), "{policy}");
            assert_eq!(policy.elects(Some(Mode::Shared), &[]), None, "{policy}");
        }
    }

    #[test]
    fn times_are_in_the_queues_of_declock_and_leases_are_of_one_holder() {
        for kind in Kind::ALL {
            let choice = Choice::of(kind);
            let allowed = |policy: Policy| policy.check(choice).is_ok();
            assert_eq!(allowed(Policy::TsPf), kind == Kind::Declock, "{kind}");
            assert_eq!(allowed(Policy::LocalBound(4)), kind != Kind::Drtm, "{kind}");
        }
        let published = Choice { recovery: Recovery::Paper, ..Choice::of(Kind::Dslr) };
        assert_eq!(Policy::LocalPrefer.check(published), Err(Unshared::Leased(Kind::Dslr)));
    }
}
