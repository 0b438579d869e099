//! Delays and losses on the way to the authority, carried out in a run.

use crate::scenario::authority::AuthorityDelays;
use crate::scenario::format::Scenario;
use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::{DeliveryModel, RequestDelivery};
use lotus_fabric::sim::SimFabric;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Delivery between the nodes of a world and the authority.
pub(crate) struct Post {
    delays: AuthorityDelays,
    until: Duration,
    fabric: SimFabric,
    rng: Mutex<SmallRng>,
}

impl Post {
    /// The delivery model of a scenario; `None` if the scenario's questions are answered at once.
    pub(crate) fn of(scenario: &Scenario, seed: u64, fabric: SimFabric) -> Option<Self> {
        let delays = scenario.authority.clone();
        let until = scenario.storm();
        // A separate random stream; the world's streams of the seed are unchanged.
        let rng = Mutex::new(SmallRng::seed_from_u64(seed ^ 0xA07_404));
        (!delays.is_near()).then_some(Self { delays, until, fabric, rng })
    }

    fn is_silent(&self, now: Duration) -> bool {
        let micros = Duration::from_micros;
        self.delays.silences.iter().any(|silence| {
            let begins = micros(silence.at_us);
            (begins..begins + micros(silence.lasting_us)).contains(&now)
        })
    }
}

impl DeliveryModel for Post {
    fn carry(&self, _node: NodeId) -> RequestDelivery {
        let (now, zero) = (self.fabric.now(), Duration::ZERO);
        if now >= self.until {
            return RequestDelivery { there: zero, arrives: true, back: zero, answered: true };
        }
        let rng = &mut *self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let mut way =
            || Duration::from_nanos(rng.random_range(0..=self.delays.delay_max_us * 1_000));
        let (there, back) = (way(), way());
        let mut arrives = || !rng.random_bool(self.delays.loss);
        let arrives = [arrives(), arrives()].map(|arrives| arrives && !self.is_silent(now + there));
        let patience = Duration::from_micros(self.delays.patience_us).saturating_sub(there);
        let answered = arrives == [true, true];
        let back = if answered { back } else { back.max(patience) };
        RequestDelivery { there, arrives: arrives[0], back, answered }
    }
}
