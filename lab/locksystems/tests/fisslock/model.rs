//! Random runs: tasks take and release locks over a network that loses, repeats, delays and
//! reorders packets. A seed repeats a run.

use lotus_locks::Mode;
use lotus_locksystems::fisslock::agent::Agent;
use lotus_locksystems::fisslock::cores::task_of;
use lotus_locksystems::fisslock::decider::Metadata;
use lotus_locksystems::fisslock::pool::TaskNotice;
use lotus_locksystems::fisslock::rules::Numbering;
use lotus_locksystems::fisslock::{AgentPool, Homes, Preference, Rules};

use super::table::{Flying, Table};

/// A sequence of random numbers (SplitMix64).
#[derive(Clone)]
pub struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A run.
#[derive(Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub rules: Rules,
    pub preference: Preference,
    pub homes: Homes,
    pub machines: u8,
    pub tasks: u32,
    /// Cores of the tasks on each machine; 0: they are on the agents' core.
    pub cores: u8,
    pub locks: u32,
    /// Acquisitions of each task.
    pub rounds: u32,
    /// Percent of packets that are lost, and that come twice.
    pub lost: u64,
    pub repeated: u64,
    pub readers: u64,
    /// Percent of waits that are given up after 5 to 100 µs.
    pub impatient: u64,
    /// Time at which machine 0 dies, in nanoseconds.
    pub dies: Option<u64>,
}

impl Plan {
    /// Four machines of three tasks and two locks, on a bad network.
    pub const BAD: Self = Self {
        seed: 0,
        rules: Rules::CLOSED,
        preference: Preference::Readers,
        homes: Homes::Nowhere,
        machines: 4,
        tasks: 3,
        cores: 0,
        locks: 2,
        rounds: 6,
        lost: 10,
        repeated: 10,
        readers: 60,
        impatient: 0,
        dies: None,
    };
}

impl Plan {
    /// A machine's task, by its number from 0: tasks take turns on the cores.
    fn task(&self, number: u32) -> u32 {
        let core = number.checked_rem(u32::from(self.cores)).map_or(0, |turn| turn + 1);
        task_of(core as u8, number)
    }
}

#[derive(Clone, Copy)]
enum Task {
    Idle { until: u64 },
    Waits { lock: u32, until: u64 },
    Holds { lock: u32, until: u64 },
    Done,
}

/// What a run came to.
#[derive(Debug, Default)]
pub struct Outcome {
    pub violations: Vec<String>,
    /// Tasks that were not served, and locks that were not free, at the end.
    pub stuck: Vec<String>,
    pub grants: u32,
}

struct Run {
    plan: Plan,
    dice: Dice,
    table: Table,
    /// Packets under way, and when they arrive.
    network: Vec<(u64, Flying)>,
    tasks: Vec<(u8, u32, u32, Task)>,
    dead: bool,
    outcome: Outcome,
}

/// Longest run, in nanoseconds.
const LIMIT_NS: u64 = 10_000_000;
const STEP_NS: u64 = 250;

/// Carries out a run.
pub fn run(plan: Plan) -> Outcome {
    let Plan { machines, locks, rules, preference, homes, .. } = plan;
    let table = Table::with_homes(machines, locks, rules, preference, homes);
    let all = (0..plan.machines)
        .flat_map(|machine| (0..plan.tasks).map(move |task| (machine, plan.task(task))));
    let idle = Task::Idle { until: 0 };
    let tasks = all.map(|(machine, task)| (machine, task, plan.rounds, idle)).collect();
    let (dice, network) = (Dice(plan.seed), Vec::new());
    let mut run =
        Run { plan, dice, table, network, tasks, dead: false, outcome: Outcome::default() };
    while run.table.now < LIMIT_NS && run.table.violations.is_empty() && !run.is_over() {
        run.step();
    }
    run.judge()
}

impl Run {
    fn is_over(&self) -> bool {
        let is_done = |(_, _, _, task): &(u8, u32, u32, Task)| matches!(task, Task::Done);
        let alive = self.table.pools.iter().skip(usize::from(self.dead));
        self.tasks.iter().all(is_done)
            && self.network.is_empty()
            && alive.into_iter().all(AgentPool::is_idle)
    }

    fn judge(mut self) -> Outcome {
        for (machine, task, left, state) in &self.tasks {
            if !matches!(state, Task::Done) {
                self.outcome.stuck.push(format!("{machine}.{task} has {left} rounds left"));
            }
        }
        for lock in 0..self.plan.locks {
            let state = self.table.decider.lock(lock);
            // An agent that rests at home keeps the lock.
            let agent = self.table.pools[usize::from(state.machine)].agent(lock);
            let rests = self.plan.homes != Homes::Nowhere && agent.is_some_and(Agent::is_resting);
            if state != Metadata::default() && !rests {
                self.outcome.stuck.push(format!("lock {lock} is {state:?}"));
            }
        }
        self.outcome.violations = self.table.violations;
        self.outcome
    }

    fn step(&mut self) {
        self.table.now += STEP_NS;
        if !self.dead && self.plan.dies.is_some_and(|dies| dies <= self.table.now) {
            self.die();
        }
        if self.table.now.is_multiple_of(5_000) {
            self.tick();
        }
        for at in 0..self.tasks.len() {
            self.act(at);
        }
        self.post();
        let now = self.table.now;
        let (due, later) =
            std::mem::take(&mut self.network).into_iter().partition(|(at, _)| *at <= now);
        self.network = later;
        let mut due: Vec<(u64, Flying)> = due;
        while !due.is_empty() {
            let (_, flying) = due.swap_remove(self.dice.below(due.len() as u64) as usize);
            if !(self.dead && flying.to == Some(0)) {
                self.table.deliver(flying);
            }
        }
        self.hear();
        self.post();
    }

    fn tick(&mut self) {
        for machine in u8::from(self.dead)..self.plan.machines {
            self.table.with(machine, |pool, now, out| pool.tick(now, out));
        }
    }

    /// Gives what was sent to the network.
    fn post(&mut self) {
        for flying in std::mem::take(&mut self.table.wire) {
            let copies = u64::from(!self.dice.percent(self.plan.lost))
                + u64::from(self.dice.percent(self.plan.repeated));
            for _ in 0..copies {
                let mut delay = 500 + self.dice.below(2_000);
                if self.dice.percent(3) {
                    delay += self.dice.below(60_000);
                }
                self.network.push((self.table.now + delay, flying.clone()));
            }
        }
    }

    fn act(&mut self, at: usize) {
        let now = self.table.now;
        let (machine, task, left, state) = self.tasks[at];
        let next = match state {
            Task::Idle { until } if until <= now && left == 0 => Task::Done,
            Task::Idle { until } if until <= now => {
                let lock = self.dice.below(u64::from(self.plan.locks)) as u32;
                let is_reader = self.dice.percent(self.plan.readers);
                let mode = if is_reader { Mode::Shared } else { Mode::Exclusive };
                let impatient = self.dice.percent(self.plan.impatient);
                let patience = if impatient { 5_000 + self.dice.below(95_000) } else { LIMIT_NS };
                // A grant may come at once.
                self.tasks[at].3 = Task::Waits { lock, until: now + patience };
                self.table.ask(machine, task, lock, mode);
                return self.hear();
            }
            Task::Waits { lock, until } if until <= now => {
                self.table.give_up(machine, task, lock);
                Task::Idle { until: now + self.dice.below(5_000) }
            }
            Task::Holds { lock, until } if until <= now => {
                self.table.release(machine, task, lock);
                self.tasks[at].2 -= 1;
                Task::Idle { until: now + self.dice.below(10_000) }
            }
            _ => return,
        };
        self.tasks[at].3 = next;
        self.hear();
    }

    /// Tasks take their news.
    fn hear(&mut self) {
        for (machine, told) in std::mem::take(&mut self.table.told) {
            let (lock, task) = match told {
                TaskNotice::Granted(lock, task, _) | TaskNotice::Refused(lock, task) => {
                    (lock, task)
                }
                TaskNotice::Queued(..) => unreachable!("the table keeps it"),
            };
            let now = self.table.now;
            let of = |entry: &&mut (u8, u32, u32, Task)| (entry.0, entry.1) == (machine, task);
            let entry = self.tasks.iter_mut().find(of).expect("a task");
            entry.3 = if matches!(told, TaskNotice::Granted(..)) {
                self.outcome.grants += 1;
                Task::Holds { lock, until: now + self.dice.below(8_000) }
            } else {
                Task::Idle { until: now + self.dice.below(20_000) }
            };
        }
    }

    /// Machine 0 dies, and the others recover.
    fn die(&mut self) {
        self.dead = true;
        for (_, _, _, state) in self.tasks.iter_mut().filter(|(machine, ..)| *machine == 0) {
            *state = Task::Done;
        }
        self.table.recover(0);
    }
}

/// Runs of all seeds: none violates exclusion, and all tasks are served.
fn all_are_served(seeds: u64, plan: Plan) {
    for seed in 0..seeds {
        let outcome = run(Plan { seed, ..plan });
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
        assert!(outcome.stuck.is_empty(), "seed {seed}: {:?}", outcome.stuck);
        assert!(outcome.grants > 0, "seed {seed} did nothing");
    }
}

#[test]
fn a_good_network() {
    all_are_served(50, Plan { lost: 0, repeated: 0, ..Plan::BAD });
}

#[test]
fn a_bad_network() {
    all_are_served(150, Plan::BAD);
}

#[test]
fn a_bad_network_with_writers_preferred() {
    all_are_served(100, Plan { preference: Preference::Writers, ..Plan::BAD });
}

#[test]
fn tasks_of_several_cores() {
    for preference in [Preference::Readers, Preference::Writers] {
        let plan = Plan { cores: 3, tasks: 6, preference, ..Plan::BAD };
        all_are_served(100, plan);
        all_are_served(100, Plan { impatient: 50, ..plan });
        all_are_served(50, Plan { locks: 1, lost: 30, repeated: 30, ..plan });
        for at in [20_000, 60_000, 150_000] {
            all_are_served(40, Plan { dies: Some(at), impatient: 20, ..plan });
        }
    }
}

#[test]
fn a_very_bad_network_and_one_lock() {
    all_are_served(50, Plan { locks: 1, lost: 30, repeated: 30, ..Plan::BAD });
}

#[test]
fn agents_that_rest_at_home() {
    let homes = Homes::Blocks { locks: 2, machines: 2 };
    for preference in [Preference::Readers, Preference::Writers] {
        let plan = Plan { homes, preference, cores: 2, ..Plan::BAD };
        all_are_served(100, plan);
        all_are_served(100, Plan { impatient: 50, ..plan });
        all_are_served(50, Plan { lost: 30, repeated: 30, readers: 20, ..plan });
        for at in [20_000, 60_000, 150_000] {
            all_are_served(40, Plan { dies: Some(at), impatient: 20, ..plan });
        }
    }
}

#[test]
fn impatient_tasks() {
    all_are_served(100, Plan { impatient: 50, ..Plan::BAD });
}

#[test]
fn a_machine_dies() {
    for at in [20_000, 60_000, 150_000] {
        all_are_served(40, Plan { dies: Some(at), impatient: 20, ..Plan::BAD });
    }
}

/// Runs of a few seeds: how many violate exclusion, and how many leave tasks or locks stuck.
fn failures(rules: Rules) -> (usize, usize) {
    let plan = Plan { rules, impatient: 30, ..Plan::BAD };
    let outcomes: Vec<_> = (0..SEEDS_OF_A_HOLE).map(|seed| run(Plan { seed, ..plan })).collect();
    let violated = outcomes.iter().filter(|outcome| !outcome.violations.is_empty());
    let stuck = outcomes.iter().filter(|outcome| !outcome.stuck.is_empty());
    (violated.count(), stuck.count())
}

const SEEDS_OF_A_HOLE: u64 = 150;

#[test]
fn every_published_rule_is_noticed_in_random_runs() {
    // That a machine has one request at the switch matters with 256 shared grants under way only.
    let closed = Rules::CLOSED;
    let largest = Rules { numbering: Numbering::Largest, replays: false, ..closed };
    let table = [
        ("as published", Rules::PUBLISHED, true),
        ("nonces", Rules { nonces: false, ..closed }, true),
        ("no numbers", Rules { numbering: Numbering::Ignored, ..closed }, true),
        ("largest number", largest, true),
        ("withdraws", Rules { withdraws: false, ..closed }, true),
        ("first_counts", Rules { first_counts: false, ..closed }, false),
        ("keeps_freed", Rules { keeps_freed: false, ..closed }, false),
        ("replays", Rules { replays: false, ..closed }, false),
    ];
    for (name, rules, violates) in table {
        let (violated, stuck) = failures(rules);
        assert_eq!(violated > 0, violates, "{name}: {violated} runs have two holders");
        assert!(violates || stuck > 0, "{name}: tasks are stuck in no run");
    }
    assert_eq!(failures(closed), (0, 0));
}
