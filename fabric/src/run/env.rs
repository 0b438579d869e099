//! The only source of time, randomness and threads.
//!
//! Real back ends run on [`Env::real`]; a simulated cluster brings its own [`Clock`] and runs the
//! same code on virtual time. `clippy.toml` bans the standard library's clocks, sleeps and thread
//! spawns outside of this module, so time and randomness cannot affect behaviour in any other way
//! (I34).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rand::SeedableRng;
pub use rand::rngs::SmallRng;

/// Stack size of every thread. Builds without optimisation keep several copies of a whole
/// transaction's future on the stack; untouched pages take no memory.
const STACK_BYTES: usize = 8 << 20;

/// Nanoseconds since the Unix epoch on this node's clock. Never runs backwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// A moment never reached by a clock.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `later` after `self`.
    #[must_use]
    pub fn after(self, later: Duration) -> Self {
        let later = u64::try_from(later.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(later))
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A real or virtual clock.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Nanos;

    /// First call number for a new life of a lane, chosen so that call numbers of earlier lives do
    /// not repeat. The default suits a clock that runs on from life to life.
    fn begin_counting(&self) -> u64 {
        self.now().0 / 1000
    }

    /// Marks the start of a transaction's own computation. A virtual clock may charge time for the
    /// computation; a real clock does nothing.
    fn transaction_begins(&self) {}
}

/// A handle on the environment; cheap to clone.
#[derive(Clone)]
pub struct Env {
    clock: Arc<dyn Clock>,
    seed: u64,
}

impl Env {
    /// An environment with the machine's clock, and randomness derived from `seed`.
    pub fn real(seed: u64) -> Self {
        Self::with_clock(Arc::new(MachineClock::start()), seed)
    }

    /// An environment with clock `clock`, and randomness derived from `seed`.
    pub fn with_clock(clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self { clock, seed }
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// First call number, of 50 bits, for a new life of a lane, chosen so that call numbers of
    /// earlier lives do not repeat.
    pub fn begin_counting(&self) -> u64 {
        self.clock.begin_counting() & (COUNTED - 1)
    }

    /// Marks the start of a transaction's own computation on the node.
    #[inline]
    pub fn transaction_begins(&self) {
        self.clock.transaction_begins();
    }

    /// An independent stream of random numbers, which depends only on `stream` and the seed.
    pub fn rng(&self, stream: u64) -> SmallRng {
        // SplitMix64's increment keeps neighbouring streams of neighbouring seeds apart.
        SmallRng::seed_from_u64(self.seed ^ stream.wrapping_add(1).wrapping_mul(SPLITMIX_INCREMENT))
    }

    /// Runs `body` on a new thread.
    ///
    /// # Errors
    /// The operating system's error when it has no thread to give.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> std::io::Result<JoinHandle<T>> {
        std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body)
    }
}

impl Env {
    /// Runs `work` on `workers` threads, once per worker number, and returns the results.
    ///
    /// # Panics
    /// If a worker panics, or a thread cannot be started.
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

    /// Number of processors available to the process.
    pub fn parallelism(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }
}

/// Number of different call numbers.
const COUNTED: u64 = 1 << 50;
const SPLITMIX_INCREMENT: u64 = 0x9E37_79B9_7F4A_7C15;

/// The processor's cycle counter, anchored once to the wall clock.
struct MachineClock {
    counter: quanta::Clock,
    /// Reading of the counter at the start.
    started: u64,
    wall_at_start: u64,
}

impl MachineClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that asks the system")]
    fn start() -> Self {
        let counter = quanta::Clock::new();
        let wall = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        Self { started: counter.raw(), counter, wall_at_start: wall.as_nanos() as u64 }
    }
}

impl Clock for MachineClock {
    #[inline]
    fn now(&self) -> Nanos {
        let passed = self.counter.delta_as_nanos(self.started, self.counter.raw());
        Nanos(self.wall_at_start + passed)
    }

    /// A random number, because the clock may be set back between two lives. A life with 10^9
    /// calls, out of 2^50 numbers, overlaps the previous life once in some hundred thousand lives;
    /// even an overlap matters only if a reply of the previous life is still in flight.
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

    /// Regression test: lives used to count on from the clock. After the clock was set back, a call
    /// could have the number of a call of the previous life, whose late reply then answered it.
    #[test]
    fn lives_begin_to_count_far_apart_whatever_the_clock_says() {
        let [one, other] = [(); 2].map(|()| Env::real(0).begin_counting());
        // They are nearer than this by chance once in 2^29.
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
