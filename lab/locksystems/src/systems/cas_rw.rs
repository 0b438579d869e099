//! `cas-rw`: readers and writers that retry, "retry on fail" in DSLR §6.1, CASLock in DecLock §6.1.
//! The word is [`CasRwWord`].
//!
//! A writer swaps the free word for its own name. A reader counts itself, and polls while a writer
//! is there. Without a queue, any number of requests may pass a waiting request.

use lotus_locks::word::{Acquired, CasRwWord, Head, Mode};
use lotus_locks::{
    Event, Guarantees, LockSystem, NotHeld, Pacing, Recovery, Request, Step, Verb, View,
};

/// The system. See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct CasRw {
    /// Treatment of lost holders.
    pub recovery: Recovery,
    /// Time between tries.
    pub pacing: Pacing,
    /// The way in which writers release.
    pub release: Release,
}

/// The way in which writers release the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Release {
    /// One fetch-and-add.
    #[default]
    Add,
    /// A compare-and-swap, repeated while readers count themselves, as in the published programs.
    Swap,
}

/// State of a use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CasRwUse {
    mode: Mode,
    owner: u32,
    /// Generation of the lock when last seen.
    generation: u8,
    failures: u32,
    at: At,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// The first verb has to be posted, or is under way.
    Asking,
    /// A writer pauses between two tries.
    Pausing,
    /// A reader that has counted itself reads the word.
    Polling,
    Held,
    /// The word that a release by swapping expects; `None` when adding.
    Leaving(Option<u64>),
}

impl CasRwUse {
    fn ask(&mut self) -> Step {
        self.at = At::Asking;
        Step::Post(match self.mode {
            Mode::Shared => Verb::Add(CasRwWord::READER),
            Mode::Update | Mode::Exclusive => Verb::Swap {
                expected: CasRwWord::free(self.generation).word(),
                new: CasRwWord::written(self.generation, self.owner).word(),
            },
        })
    }

    /// Tries again later.
    fn retry(&mut self, view: &mut View<'_>) -> Step {
        self.failures += 1;
        if self.at == At::Asking {
            self.at = At::Pausing;
        }
        Step::Pause(view.back_off(self.failures))
    }

    fn hold(&mut self, view: &mut View<'_>) -> Step {
        view.backoff.succeeded();
        self.at = At::Held;
        Step::Held
    }

    /// Handles the answer of an acquisition's verb.
    fn acquire(&mut self, found: CasRwWord, view: &mut View<'_>) -> Step {
        let acquired = match self.mode {
            Mode::Shared => found.to_reader(),
            Mode::Update | Mode::Exclusive => found.to_writer(CasRwWord::free(self.generation)),
        };
        match acquired {
            Acquired::Resetting => Step::Barred,
            // A reset that the reader slept through has erased its count.
            _ if self.at == At::Polling && found.generation() != self.generation => {
                self.generation = found.generation();
                self.ask()
            }
            Acquired::Held => {
                self.generation = found.generation();
                self.hold(view)
            }
            Acquired::Behind => {
                (self.generation, self.at) = (found.generation(), At::Polling);
                self.retry(view)
            }
            Acquired::Refused => {
                self.generation = found.generation();
                if found.is_free() { self.ask() } else { self.retry(view) }
            }
        }
    }

    fn leave(&mut self, release: Release) -> Step {
        let owned = CasRwWord::owned(self.owner);
        let minus = |summand: u64| Verb::Add(summand.wrapping_neg());
        let (expected, verb) = match (self.mode, release) {
            (Mode::Shared, _) => (None, minus(CasRwWord::READER)),
            (_, Release::Add) => (None, minus(owned)),
            (_, Release::Swap) => {
                let expected = CasRwWord::written(self.generation, self.owner).word();
                (Some(expected), Verb::Swap { expected, new: expected - owned })
            }
        };
        self.at = At::Leaving(expected);
        Step::Post(verb)
    }

    /// Handles the answer of a release's verb.
    fn left(&mut self, found: CasRwWord, expected: Option<u64>) -> Step {
        let Some(expected) = expected else { return Step::Gone(Ok(())) };
        // A reset frees the lock without the release.
        if found.word() == expected || found.is_resetting() {
            return Step::Gone(Ok(()));
        }
        let (expected, owned) = (found.word(), CasRwWord::owned(self.owner));
        self.at = At::Leaving(Some(expected));
        Step::Post(Verb::Swap { expected, new: expected - owned })
    }
}

impl LockSystem for CasRw {
    type Use = CasRwUse;

    fn name(&self) -> &'static str {
        "cas-rw"
    }

    fn guarantees(&self) -> Guarantees {
        let survives_losses = self.recovery == Recovery::Fenced;
        Guarantees { shares: true, in_order: false, survives_losses, upgrades: false }
    }

    fn pacing(&self) -> Pacing {
        self.pacing
    }

    fn head(&self) -> Option<Head> {
        (self.recovery == Recovery::Fenced).then_some(CasRwWord::HEAD)
    }

    fn is_free(&self, head: u64) -> bool {
        CasRwWord::of(head).is_free()
    }

    #[inline]
    fn start(&self, request: Request) -> CasRwUse {
        let (mode, owner) = (request.mode, request.who.raw());
        CasRwUse { mode, owner, generation: 0, failures: 0, at: At::Asking }
    }

    #[inline]
    fn step(&self, of: &mut CasRwUse, event: Event, view: &mut View<'_>) -> Step {
        match (of.at, event) {
            (_, Event::Begin) | (At::Pausing, Event::Paused) => of.ask(),
            (At::Polling, Event::Paused) => Step::Post(Verb::Read),
            (At::Asking | At::Polling, Event::Found(word)) => of.acquire(CasRwWord::of(word), view),
            (At::Held, Event::Leave) => of.leave(self.release),
            // A waiting reader takes back its count.
            (At::Polling, Event::Leave) => of.leave(Release::Add),
            (_, Event::Leave) => Step::Gone(Ok(())),
            (At::Leaving(expected), Event::Found(word)) => of.left(CasRwWord::of(word), expected),
            // A READ changes nothing, so there is nothing to doubt.
            (At::Polling, Event::Lost) => Step::Post(Verb::Read),
            (_, Event::Lost) if self.recovery == Recovery::Fenced => Step::Doubt,
            (_, Event::Lost) => Step::Gone(Err(NotHeld::Unavailable)),
            (at, event) => unreachable!("{event:?} at {at:?}"),
        }
    }
}
