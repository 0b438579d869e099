//! The only source of time, randomness and threads.
//!
//! Real back ends run on [`Env::real`]; a simulated cluster brings its own [`Clock`] and runs the
//! same code on virtual time. `clippy.toml` bans the standard library's clocks, sleeps and
//! thread spawns everywhere else, so nothing reaches behaviour past this module.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rand::SeedableRng;
pub use rand::rngs::SmallRng;

/// The stack of every thread. Builds without optimisation keep the future of a whole transaction on
/// it, several times over; what is not used takes no memory.
const STACK_BYTES: usize = 8 << 20;

/// Nanoseconds since the Unix epoch on this node's clock. Never runs backwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// A moment that no clock reaches.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `later` after this one.
    #[must_use]
    pub fn after(self, later: Duration) -> Self {
        let later = u64::try_from(later.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(later))
    }

    /// Time from `earlier` to this moment; zero if it is the other way round.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A clock that can be replaced by a virtual one.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Nanos;

    /// A number from which a life of a lane may count its calls: what it counts is what no earlier
    /// life of the lane has counted. A clock that runs on from life to life has it.
    fn begin_counting(&self) -> u64 {
        self.now().0 / 1000
    }

    /// The logic of a transaction begins. Virtual time may have to be charged for it; nothing
    /// otherwise.
    fn transaction_begins(&self) {}
}

/// A handle on the environment; cheap to clone.
#[derive(Clone)]
pub struct Env {
    clock: Arc<dyn Clock>,
    seed: u64,
}

impl Env {
    /// The machine's clock, and randomness that derives from `seed`.
    pub fn real(seed: u64) -> Self {
        Self::with_clock(Arc::new(MachineClock::start()), seed)
    }

    /// Another clock, and randomness that derives from `seed`.
    pub fn with_clock(clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self { clock, seed }
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// A number of 50 bits from which a life of a lane may count its calls, so that none of them
    /// has the number of a call of an earlier life.
    pub fn begin_counting(&self) -> u64 {
        self.clock.begin_counting() & (COUNTED - 1)
    }

    /// Says that the logic of a transaction begins on this node.
    #[inline]
    pub fn transaction_begins(&self) {
        self.clock.transaction_begins();
    }

    /// An independent stream of random numbers: the same `stream` of the same seed gives the same
    /// numbers.
    pub fn rng(&self, stream: u64) -> SmallRng {
        // SplitMix64's increment keeps neighbouring streams of neighbouring seeds apart.
        SmallRng::seed_from_u64(self.seed ^ stream.wrapping_add(1).wrapping_mul(SPLITMIX_INCREMENT))
    }

    /// Runs `body` on a new thread.
    ///
    /// # Errors
    /// What the operating system says when it has no thread to give.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> std::io::Result<JoinHandle<T>> {
        std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body)
    }
}

impl Env {
    /// Runs `work` once for each of `workers` workers, on threads of their own, and waits.
    ///
    /// # Panics
    /// If one of them does, or a thread cannot be started.
    pub fn in_parallel<T: Send>(&self, workers: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let work = &work;
        std::thread::scope(|scope| {
            let start = |worker| {
                let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                let started = thread.spawn_scoped(scope, move || work(worker));
                started.unwrap_or_else(|error| panic!("cannot start a thread: {error}"))
            };
            let threads: Vec<_> = (0..workers).map(start).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, T>| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(join).collect()
        })
    }

    /// How many workers make sense on this machine.
    pub fn parallelism(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }
}

/// Fills `bytes` with randomness that nobody can foresee and no seed repeats. For secrets and what
/// keeps them, and for nothing that a program does.
///
/// # Errors
/// The system has none to give.
#[cfg(feature = "tcp")]
pub(crate) fn unforeseeable(bytes: &mut [u8]) -> std::io::Result<()> {
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(())
}

/// How many numbers there are to count calls with.
const COUNTED: u64 = 1 << 50;
const SPLITMIX_INCREMENT: u64 = 0x9E37_79B9_7F4A_7C15;

/// The processor's cycle counter, anchored once to the wall clock.
struct MachineClock {
    counter: quanta::Clock,
    started: quanta::Instant,
    wall_at_start: u64,
}

impl MachineClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that asks the system")]
    fn start() -> Self {
        let counter = quanta::Clock::new();
        let wall = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        Self { started: counter.now(), counter, wall_at_start: wall.as_nanos() as u64 }
    }
}

impl Clock for MachineClock {
    #[inline]
    fn now(&self) -> Nanos {
        Nanos(self.wall_at_start).after(self.counter.now().duration_since(self.started))
    }

    /// Drawn, because the clock may be set back between two lives. A life that counts a thousand
    /// million of the 2^50 numbers meets those of the one before once in some hundred thousand
    /// lives, and then only if a reply of that one is still on its way.
    fn begin_counting(&self) -> u64 {
        // The standard library draws its keys from the system once for each thread.
        RandomState::new().build_hasher().finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;

    #[test]
    fn streams_repeat_and_differ() {
        let env = Env::real(7);
        assert_eq!(env.rng(1).random::<u64>(), Env::real(7).rng(1).random::<u64>());
        assert_ne!(env.rng(1).random::<u64>(), env.rng(2).random::<u64>());
    }

    /// Lives used to count on from the clock: one that was set back let a call have the number of
    /// one of the life before, whose late reply then answered it.
    #[test]
    fn lives_begin_to_count_far_apart_whatever_the_clock_says() {
        let [one, other] = [(); 2].map(|()| Env::real(0).begin_counting());
        // By chance they are nearer than this once in 2^29.
        assert!(one.abs_diff(other) > 1 << 20, "{one} and {other} begin together");
        assert!(one.max(other) < COUNTED);
    }

    #[test]
    fn time_does_not_run_backwards() {
        let env = Env::real(0);
        let earlier = env.now();
        assert!(env.now() >= earlier);
        assert_eq!(earlier.since(earlier.after(Duration::from_secs(1))), Duration::ZERO);
    }
}
