//! `cas`: a spin lock taken and released by compare-and-swap (ShiftLock's CAS, §2.3).
//!
//! ```text
//! zero (16 bits) | the holder's life (24) | the holder (24)
//! ```
//!
//! The word is 0 when the lock is free. Every mode is exclusive. The word names its
//! holder, so a lock is taken from a node that is lost without a reset, and after a verb without an
//! answer the word says whether it took effect.

use crate::contract::{
    Event, Guarantees, LockSystem, NotHeld, Pacing, Recovery, Request, Step, Verb, View, Waiter,
};
use crate::word::Claimant;

/// The system. See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Cas {
    /// Treatment of lost holders.
    pub recovery: Recovery,
    /// Time between tries.
    pub pacing: Pacing,
}

/// State of a use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CasUse {
    tag: u64,
    failures: u32,
    at: At,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// A swap from this word has to be posted, or is under way.
    Asking(u64),
    Pausing,
    /// The word is read, to learn the outcome of a swap.
    Learning,
    Held,
    Leaving,
}

/// Returns the word of a lock that `request` holds.
fn tag(request: &Request) -> u64 {
    u64::from(request.life.incarnation()) << Waiter::BITS | u64::from(request.who.raw())
}

/// Returns the node that a word names; `None` if the word names no node.
fn holder(word: u64) -> Option<Claimant> {
    let who = Waiter::of(word as u32 & ((1 << Waiter::BITS) - 1))?;
    let incarnation = (word >> Waiter::BITS) as u32 & Claimant::MAX_INCARNATION;
    Some(Claimant::new(who.node(), incarnation))
}

impl CasUse {
    fn ask(&mut self, expected: u64) -> Step {
        self.at = At::Asking(expected);
        Step::Post(Verb::Swap { expected, new: self.tag })
    }

    fn leave(&mut self) -> Step {
        self.at = At::Leaving;
        Step::Post(Verb::Swap { expected: self.tag, new: 0 })
    }
}

impl LockSystem for Cas {
    type Use = CasUse;

    fn name(&self) -> &'static str {
        "cas"
    }

    fn guarantees(&self) -> Guarantees {
        let survives_losses = self.recovery == Recovery::Fenced;
        Guarantees { shares: false, in_order: false, survives_losses, upgrades: false }
    }

    fn pacing(&self) -> Pacing {
        self.pacing
    }

    fn head(&self) -> Option<crate::word::Head> {
        None
    }

    fn is_free(&self, head: u64) -> bool {
        head == 0
    }

    #[inline]
    fn start(&self, request: Request) -> CasUse {
        CasUse { tag: tag(&request), failures: 0, at: At::Asking(0) }
    }

    #[inline]
    fn step(&self, of: &mut CasUse, event: Event, view: &mut View<'_>) -> Step {
        let fenced = self.recovery == Recovery::Fenced;
        match (of.at, event) {
            (_, Event::Begin) | (At::Pausing, Event::Paused) => of.ask(0),
            (At::Asking(expected), Event::Found(found)) => {
                if found == expected {
                    view.backoff.succeeded();
                    of.at = At::Held;
                    return Step::Held;
                }
                let is_lost = |life| fenced && (view.is_settled)(life);
                if found == 0 || holder(found).is_some_and(is_lost) {
                    return of.ask(found);
                }
                of.failures += 1;
                of.at = At::Pausing;
                Step::Pause(view.back_off(of.failures))
            }
            (At::Learning, Event::Found(found)) if found == of.tag => {
                of.at = At::Held;
                Step::Held
            }
            (At::Learning, Event::Found(_)) => of.ask(0),
            (At::Asking(_) | At::Learning, Event::Lost) if fenced => {
                of.at = At::Learning;
                Step::Post(Verb::Read)
            }
            (At::Held, Event::Leave) => of.leave(),
            (At::Leaving, Event::Lost) if fenced => of.leave(),
            (At::Leaving, Event::Found(_)) | (_, Event::Leave) => Step::Gone(Ok(())),
            (_, Event::Lost) => Step::Gone(Err(NotHeld::Unavailable)),
            (at, event) => unreachable!("{event:?} at {at:?}"),
        }
    }
}
