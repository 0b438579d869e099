//! Strikes at fault points, carried out in one world and counted.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::SimFabric;
use lotus_points::{FaultInjector, Guard, Passage, PassageOutcome, strikes_on_this_thread};

use crate::scenario::format::Scenario;
use crate::scenario::strike::{Strike, StrikeFault, Victim};

/// Registration of a scenario's strikes on this thread; ends when dropped.
pub(crate) struct Armed {
    _guard: Guard,
    happened: Rc<Cell<u64>>,
}

impl Armed {
    /// Registers the strikes of a scenario for the world of `fabric`.
    pub(crate) fn new(scenario: &Scenario, fabric: SimFabric) -> Self {
        let happened = Rc::new(Cell::new(0));
        let due = scenario.strikes.iter().map(|strike| (strike.clone(), strike.passage));
        let injector = ArmedStrikes {
            due: due.collect(),
            met: None,
            until: scenario.storm(),
            first_compute_node: scenario.first_compute_node(),
            fabric,
            happened: Rc::clone(&happened),
        };
        Self { _guard: strikes_on_this_thread(injector), happened }
    }

    /// Number of strikes that have happened.
    pub(crate) fn happened(&self) -> u64 {
        self.happened.get()
    }
}

struct ArmedStrikes {
    /// Strikes not met yet, each with the number of passages to come.
    due: Vec<(Strike, u32)>,
    /// Strike that was met, to happen next.
    met: Option<Strike>,
    until: Duration,
    first_compute_node: NodeId,
    fabric: SimFabric,
    happened: Rc<Cell<u64>>,
}

impl FaultInjector for ArmedStrikes {
    fn meets(&mut self, passage: &Passage) -> bool {
        let now = self.fabric.now();
        if self.met.is_some() || now >= self.until {
            return false;
        }
        let meant = |strike: &Strike| {
            strike.point == passage.point
                && strike.place.is(passage.index, passage.count)
                && now >= Duration::from_micros(strike.after_us)
                && strike.by.is_none_or(|by| by.0 == passage.node)
        };
        let Some(place) = self.due.iter().position(|(strike, _)| meant(strike)) else {
            return false;
        };
        self.due[place].1 -= 1;
        if self.due[place].1 > 0 {
            return false;
        }
        self.met = Some(self.due.remove(place).0);
        true
    }

    fn strike(&mut self, passage: &Passage) -> PassageOutcome {
        let Some(strike) = self.met.take() else { return PassageOutcome::Go };
        self.happened.set(self.happened.get() + 1);
        let mut outcome = PassageOutcome::Go;
        for victim in &strike.victims {
            let node = match victim {
                Victim::Passer => passage.node,
                Victim::Peer => passage.peer.unwrap_or(passage.node),
                Victim::Node(node) => node.0,
            };
            let fault = strike.blow.fault(NodeId(node), self.first_compute_node);
            self.fabric.inject(fault).expect("the scenario names nodes that there are");
            if node == passage.node {
                let halts = strike.blow == StrikeFault::Crash;
                outcome = if halts { PassageOutcome::Halt } else { PassageOutcome::Pause };
            }
        }
        outcome
    }
}
