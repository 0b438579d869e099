//! Distance of the authority, carried out in a run.

use crate::scenario::authority::Distance;
use crate::scenario::format::Scenario;
use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::{Courier, Errand};
use lotus_fabric::sim::SimFabric;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Courier between the nodes of a world and the authority.
pub(crate) struct Post {
    distance: Distance,
    until: Duration,
    fabric: SimFabric,
    rng: Mutex<SmallRng>,
}

impl Post {
    /// The courier of a scenario; `None` if the scenario's questions are answered at once.
    pub(crate) fn of(scenario: &Scenario, seed: u64, fabric: SimFabric) -> Option<Self> {
        let distance = scenario.authority.clone();
        let until = scenario.storm();
        // A separate random stream; the world's streams of the seed are unchanged.
        let rng = Mutex::new(SmallRng::seed_from_u64(seed ^ 0xA07_404));
        (!distance.is_near()).then_some(Self { distance, until, fabric, rng })
    }

    fn is_silent(&self, now: Duration) -> bool {
        let micros = Duration::from_micros;
        self.distance.silences.iter().any(|silence| {
            let begins = micros(silence.at_us);
            (begins..begins + micros(silence.lasting_us)).contains(&now)
        })
    }
}

impl Courier for Post {
    fn carry(&self, _node: NodeId) -> Errand {
        let (now, zero) = (self.fabric.now(), Duration::ZERO);
        if now >= self.until {
            return Errand { there: zero, arrives: true, back: zero, answered: true };
        }
        let rng = &mut *self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let mut way =
            || Duration::from_nanos(rng.random_range(0..=self.distance.delay_max_us * 1_000));
        let (there, back) = (way(), way());
        let mut arrives = || !rng.random_bool(self.distance.loss);
        let arrives = [arrives(), arrives()].map(|arrives| arrives && !self.is_silent(now + there));
        let patience = Duration::from_micros(self.distance.patience_us).saturating_sub(there);
        let answered = arrives == [true, true];
        let back = if answered { back } else { back.max(patience) };
        Errand { there, arrives: arrives[0], back, answered }
    }
}
