//! Successive lives of a cluster, with tables that keep growing.
//!
//! # What it is
//! Part of a scenario ([`Lives`]). Each life is a cluster in a separate world, with a random shape
//! and the same seed in all lives. The cluster is restored from the snapshot of the previous life.
//! Its clients add rows to an ordered table and to a plain table while compute nodes crash and
//! return. Finally all rows are written to the next snapshot. No client reuses a key, so no
//! addition may be refused; all earlier rows and all added rows must exist at the end. Where all
//! compute nodes survive, clients seldom retry, although each attempt is independent, as for
//! interactive clients: an attempt does not know why the previous attempt was refused.
//!
//! # What it is not
//! A test of commits or recovery: the scenario's own world has more faults. Rows of a transaction
//! with an unknown outcome may exist or not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lotus::{
    Cluster, CoordinatorId, Isolation, LockWait, Nanos, PrimaryKey, Session, SnapshotLabel,
    Submitted, TableId, TableSpec, TxnError,
};
use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{
    Config, Fault, Interleaving, Limits, MemoryFate, Profile, SimMachines, World,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::scenario::lives::Lives;
use crate::verdict::Violation;

/// Property that no state of a previous life prevents the insertion of a new row.
pub const GROWS: &str = "what one life has stored the next one adds to";
/// Property that a life ends with its initial rows and the rows added.
pub const KEPT: &str = "a row that one life has committed is there in the next";

/// Property that clients which only add rows are not refused again and again.
pub const TURNS: &str = "of clients that add rows to a table one always has its turn";

const MEMORY_NODES: u16 = 2;
/// Maximum number of coordinators: two of each of three compute nodes.
const MOST_COORDINATORS: u32 = 6;
const KEY_BYTES: usize = 16;
const LEASE: Duration = Duration::from_millis(2);
/// Virtual time between two checks for the end of the clients.
const LOOK: Duration = Duration::from_micros(20);
/// Checks after which a life is over, ended or not: a few seconds.
const MOST_LOOKS: u32 = 200_000;
/// Time after which a client retries.
const WAY: Duration = Duration::from_micros(1);
/// Maximum attempts of a client for each added row: as many as fit into the commit of another
/// client's transaction.
const MOST_ATTEMPTS: u64 = 30;
/// Attempts at a snapshot of a settled cluster.
const SNAPSHOTS: u32 = 5;
/// More pieces than the rows form.
const PIECES: usize = 1 << 16;

type Key = [u8; KEY_BYTES];
/// Rows by key, and whether the client was told of the commit.
type ReportedRows = BTreeMap<Key, bool>;

/// Rows of the two tables, and counters of the clients of a life.
#[derive(Default)]
struct Ledger {
    sorted: ReportedRows,
    plain: ReportedRows,
    /// Attempts and added rows of this life.
    attempts: u64,
    added: u64,
    /// Maximum attempts for each row.
    most: Option<u64>,
    wrong: Option<Wrong>,
}

impl Ledger {
    /// Begins the next life.
    fn begin(&mut self, most: Option<u64>) {
        (self.attempts, self.added, self.most) = (0, 0, most);
    }

    /// Counts an attempt; returns whether the clients may go on: no violation so far.
    fn may_try(&mut self) -> bool {
        self.attempts += 1;
        let (attempts, added) = (self.attempts, self.added);
        if self.most.is_some_and(|most| attempts > most * (added + 1)) {
            self.violate(TURNS, format!("{attempts} attempts for {added} rows"));
        }
        self.wrong.is_none()
    }

    fn tables(&mut self) -> [&mut ReportedRows; 2] {
        [&mut self.sorted, &mut self.plain]
    }

    fn violate(&mut self, property: &'static str, detail: String) {
        self.wrong.get_or_insert((property, detail));
    }
}

type SharedLedger = Arc<Mutex<Ledger>>;

fn open(ledger: &Mutex<Ledger>) -> std::sync::MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the lives in sequence; returns violations, the first of each property.
pub fn live(plan: &Lives, seed: u64) -> Vec<Violation> {
    let mut found = Vec::new();
    // A separate random stream; the other streams of the seed are unchanged.
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x11FE_5A17);
    let (ledger, mut file) = (SharedLedger::default(), Vec::new());
    for life in 0..plan.lives {
        let violation = |(property, detail): (&str, String)| Violation {
            property: property.to_owned(),
            detail: format!("life {life}: {detail}"),
        };
        let lived =
            Stage { plan, seed, life, rng: &mut rng, ledger: &ledger, waits: true }.lead(&file);
        match lived {
            Ok(left) => file = left,
            Err(wrong) => {
                found.push(violation(wrong));
                break;
            }
        }
    }
    found
}

/// A violated property, and the finding.
type Wrong = (&'static str, String);

/// One life of the cluster.
struct Stage<'a> {
    plan: &'a Lives,
    seed: u64,
    life: u32,
    rng: &'a mut SmallRng,
    ledger: &'a SharedLedger,
    /// Whether lock requests wait.
    waits: bool,
}

impl Stage<'_> {
    /// Runs the life, beginning with the snapshot `file` unless it is empty; returns the next
    /// snapshot.
    fn lead(mut self, file: &[u8]) -> Result<Vec<u8>, Wrong> {
        let cluster = self.begin();
        let kept = |error: &dyn std::fmt::Display| (KEPT, error.to_string());
        if file.is_empty() {
            self.create(&cluster).map_err(|error| kept(&error))?;
        } else {
            cluster.restore_from(file, file).map_err(|error| kept(&error))?;
        }
        let tables = ["sorted", "plain"].map(|name| cluster.table(name));
        let [Some(sorted), Some(plain)] = tables else {
            return Err((KEPT, "a table is not there".to_owned()));
        };
        self.grow(&cluster, [sorted, plain]);
        cluster.settle().map_err(|error| kept(&error))?;
        if let Some(wrong) = open(self.ledger).wrong.take() {
            return Err(wrong);
        }
        self.judge(&cluster, [sorted, plain])?;
        self.write(&cluster)
    }

    /// Starts a cluster of random shape; all lives have the same seed.
    fn begin(&mut self) -> Cluster {
        let nodes = self.rng.random_range(1..=MOST_COORDINATORS as u16 / 2);
        let threads = self.rng.random_range(1..=2);
        let profile = Profile::named("ideal").expect("it is built in");
        let limits = Limits { events: 20_000_000, bytes: 2 << 30, time: Duration::from_secs(60) };
        let config = Config {
            interleaving: Interleaving::PerVerb,
            limits,
            ..Config::new(self.seed, MEMORY_NODES + nodes, profile)
        };
        let world = World::new(config).expect("the settings are sound");
        self.waits = self.rng.random();
        let builder = Cluster::embedded()
            .lock_wait(if self.waits { LockWait::Ordered } else { LockWait::None })
            .memory_nodes(MEMORY_NODES.into())
            .compute_nodes(nodes.into())
            .threads(threads)
            .replicas(2)
            .coroutines(self.plan.clients as usize + 1)
            .memory_limit(64 << 20)
            .lock_table_bytes(1 << 16)
            .version_table_cache(64)
            .horizon_interval(Duration::from_micros(100))
            .lease(Some(LEASE));
        builder.start_on(SimMachines::new(world)).expect("the settings are sound")
    }

    fn create(&self, cluster: &Cluster) -> Result<(), lotus::ClusterError> {
        let Lives { loaded, lives, rows, clients, returns, .. } = *self.plan;
        // Each client adds at least one row, including clients of returned nodes.
        let clients = clients * MOST_COORDINATORS * (1 + returns);
        let most = u64::from(loaded + lives * (rows + clients));
        let spec = |name| {
            let spec = TableSpec::new(name).key_bytes(KEY_BYTES as u32).capacity(2 * most);
            spec.record_bytes(self.plan.value_bytes).shards(16)
        };
        let sorted = cluster.create_table(spec("sorted").ordered())?;
        cluster.create_table(spec("plain"))?;
        let bytes = self.plan.value_bytes as usize;
        let row = |number: u64, into: &mut Vec<u8>| {
            let key = key(u32::MAX, number);
            into.extend(value(&key, bytes));
            PrimaryKey::from(key)
        };
        let rows = u64::from(self.plan.loaded);
        cluster.load(sorted, rows, &row, &Default::default())?;
        let loaded = (0..rows).map(|number| (key(u32::MAX, number), true));
        open(self.ledger).sorted.extend(loaded);
        Ok(())
    }

    /// Adds rows on all coordinators, while compute nodes crash and return.
    fn grow(&mut self, cluster: &Cluster, tables: [TableId; 2]) {
        let coordinator_ids: Vec<CoordinatorId> = cluster.coordinators().collect();
        let clients = coordinator_ids.len() * self.plan.clients as usize;
        let nodes = cluster.config().compute_nodes;
        let crashes = if nodes > 1 { self.plan.returns } else { 0 };
        let mut crashes: Vec<usize> =
            (0..crashes).map(|_| self.rng.random_range(0..nodes)).collect();
        // One of all concurrent attempts succeeds, if no node is lost.
        let most = (self.plan.returns == 0).then_some(MOST_ATTEMPTS * clients as u64);
        open(self.ledger).begin(most);
        let mut jobs: Vec<Submitted<()>> = Vec::new();
        let client = |coordinator_id: CoordinatorId, number: usize| {
            let share = u64::from(self.plan.rows) / clients as u64 + 1;
            let first = number as u64 * share;
            self.submit(cluster, coordinator_id, tables, first..first + share)
        };
        for number in 0..clients {
            jobs.push(client(coordinator_ids[number % coordinator_ids.len()], number));
        }
        let machines = SimMachines::of(cluster.machines());
        let (mut next, mut away) = (clients, None);
        for _ in 0..MOST_LOOKS {
            let over = jobs.iter().all(Submitted::is_finished);
            if (over && away.is_none()) || machines.run_for(LOOK).is_none() {
                break;
            }
            match away {
                Some(node) => {
                    if let Ok(true) = cluster.restart(node) {
                        away = None;
                        // The node's clients ended with it; new clients add rows there.
                        for coordinator_id in coordinator_ids
                            .iter()
                            .filter(|coordinator_id| coordinator_id.compute_node == node)
                        {
                            jobs.push(client(*coordinator_id, next));
                            next += 1;
                        }
                    }
                }
                None if !over && self.has_added(crashes.len()) => {
                    let Some(node) = crashes.pop() else { continue };
                    let place = NodeId(MEMORY_NODES + node as u16);
                    let world = machines.world();
                    let crash = Fault::Crash { node: place, memory: MemoryFate::Kept };
                    for fault in [crash, Fault::Restart { node: place }] {
                        world.inject(fault).expect("there is such a node");
                    }
                    away = Some(node);
                }
                None => {}
            }
        }
        if !jobs.iter().all(Submitted::is_finished) {
            open(self.ledger).violate(GROWS, "the clients do not end".to_owned());
        }
    }

    /// Whether enough rows were added for the next crash, with `left` crashes to come: the crashes
    /// are spread over the life.
    fn has_added(&self, left: usize) -> bool {
        let (all, rows) = (u64::from(self.plan.returns), u64::from(self.plan.rows));
        let next = all.saturating_sub(left as u64) + 1;
        open(self.ledger).added * (all + 2) >= rows * next
    }

    fn submit(
        &self,
        cluster: &Cluster,
        coordinator_id: CoordinatorId,
        tables: [TableId; 2],
        numbers: std::ops::Range<u64>,
    ) -> Submitted<()> {
        let (life, bytes) = (self.life, self.plan.value_bytes as usize);
        let ledger = Arc::clone(self.ledger);
        cluster.submit(coordinator_id, async move |mut session: Session| {
            for number in numbers {
                let key = key(life, number);
                let row = (key, &value(&key, bytes)[..]);
                // A crash may end this job after the row has been added.
                for rows in open(&ledger).tables() {
                    rows.insert(key, false);
                }
                let Some(added) = add(&mut session, tables, row, &ledger).await else { break };
                let mut ledger = open(&ledger);
                ledger.added += 1;
                let told = added.is_ok();
                match added {
                    Ok(()) => {
                        ledger.tables().into_iter().for_each(|rows| _ = rows.insert(key, true))
                    }
                    Err(TxnError::Fenced | TxnError::Unknown(_)) => {}
                    Err(error) => ledger.violate(GROWS, format!("row {number}: {error}")),
                }
                if !told {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Compares the stored rows with the added rows, and audits the memory.
    fn judge(&self, cluster: &Cluster, tables: [TableId; 2]) -> Result<(), Wrong> {
        let bytes = self.plan.value_bytes as usize;
        let [mut sorted, mut plain] = [BTreeMap::new(), BTreeMap::new()];
        let failed = |error: lotus::ClusterError| (KEPT, error.to_string());
        let see = &mut |key: &[u8], found: &[u8]| _ = sorted.insert(key.to_vec(), found.to_vec());
        cluster.audit_ordered(tables[0], see).map_err(failed)?;
        let see = &mut |key: &PrimaryKey, found: &[u8], _| {
            plain.insert(key.as_bytes().to_vec(), found.to_vec());
        };
        cluster.audit_scan(tables[1], see).map_err(failed)?;
        let ledger = open(self.ledger);
        for (table, stored, added) in
            [("sorted", &sorted, &ledger.sorted), ("plain", &plain, &ledger.plain)]
        {
            let lost = |(key, told): &(&Key, &bool)| match stored.get(&key[..]) {
                Some(found) => *found != value(key, bytes),
                None => **told,
            };
            if let Some((key, _)) = added.iter().find(lost) {
                return Err((KEPT, format!("key {key:02x?} of table {table:?} is not as added")));
            }
            let strange = |key: &&Vec<u8>| !added.contains_key(&key[..]);
            if let Some(key) = stored.keys().find(strange) {
                return Err((KEPT, format!("key {key:02x?} of table {table:?} was never added")));
            }
        }
        let findings = cluster.audit().map_err(failed)?;
        match findings.into_iter().find(|finding| !finding.passed) {
            Some(finding) => Err((KEPT, format!("{}: {}", finding.name, finding.detail))),
            None => Ok(()),
        }
    }

    /// Writes all rows into a snapshot file.
    fn write(&mut self, cluster: &Cluster) -> Result<Vec<u8>, Wrong> {
        let coordinator_ids: Vec<CoordinatorId> = cluster.coordinators().collect();
        let label = SnapshotLabel {
            sequence: u64::from(self.life),
            taken: Nanos::NEVER,
            ..SnapshotLabel::default()
        };
        let mut why = String::new();
        for _ in 0..SNAPSHOTS {
            let mut file = Vec::new();
            let coordinator_id = coordinator_ids[self.rng.random_range(0..coordinator_ids.len())];
            let copying = cluster.start_snapshot(coordinator_id, PIECES);
            match copying.write(cluster, &mut file, &|_| Ok(label), &Vec::new) {
                Ok(_) => return Ok(file),
                Err(error) => why = error.to_string(),
            }
            SimMachines::of(cluster.machines()).run_for(LEASE);
        }
        Err((KEPT, format!("no snapshot: {why}")))
    }
}

/// Key of a life and a number, unique. The keys of different lives are interleaved.
fn key(life: u32, number: u64) -> Key {
    let mut key = [0; KEY_BYTES];
    let scattered = (number as u32).wrapping_mul(0x9E37_79B1);
    key[..4].copy_from_slice(&scattered.to_be_bytes());
    key[4..8].copy_from_slice(&life.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

fn value(key: &Key, bytes: usize) -> Vec<u8> {
    key.iter().copied().cycle().take(bytes).collect()
}

/// Adds a row to both tables, and retries while other transactions are in the way; `None` if the
/// life is over first.
async fn add(
    session: &mut Session,
    [sorted, plain]: [TableId; 2],
    (key, value): (Key, &[u8]),
    ledger: &Mutex<Ledger>,
) -> Option<Result<(), TxnError>> {
    let view = session.view();
    while open(ledger).may_try() {
        // An interactive client's next attempt runs in any free slot.
        session.new_transaction();
        let adding = async {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.insert(plain, key, value)?;
            txn.ordered(sorted)?.insert(&key, value).await?;
            txn.commit().await.map(drop)
        };
        match adding.await {
            Err(error) if error.is_retryable() => view.sleep_until(view.now().after(WAY)).await,
            outcome => return Some(outcome),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVES: Lives =
        Lives { lives: 3, loaded: 0, rows: 60, value_bytes: 900, clients: 2, returns: 0 };

    fn lived(plan: Lives) -> impl Iterator<Item = (u64, Vec<Violation>)> {
        (0..4).map(move |seed| (seed, live(&plan, seed)))
    }

    #[test]
    fn tables_go_on_growing_in_each_life() {
        for plan in [LIVES, Lives { loaded: 30, rows: 200, returns: 2, ..LIVES }] {
            for (seed, violations) in lived(plan) {
                assert_eq!(violations, [], "seed {seed}");
            }
        }
    }

    #[test]
    fn many_clients_of_one_leaf_have_their_turn() {
        for (seed, violations) in
            lived(Lives { lives: 1, rows: 200, value_bytes: 8, clients: 64, ..LIVES })
        {
            assert_eq!(violations, [], "seed {seed}");
        }
    }

    #[cfg(feature = "sabotage")]
    #[test]
    fn what_begins_again_is_noticed() {
        use lotus_sabotage::{Rule, break_rule};
        let of_one_leaf = Lives { lives: 1, rows: 1, value_bytes: 8, clients: 64, ..LIVES };
        let of_nodes = Lives { lives: 1, rows: 400, returns: 2, ..LIVES };
        for (rule, plan, noticed) in [
            (Rule::NodeNumbersAreNew, LIVES, GROWS),
            (Rule::NodeNumbersAreNew, of_nodes, GROWS),
            (Rule::NodesAreOpenedAtOnce, of_one_leaf, TURNS),
        ] {
            let _broken = break_rule(rule);
            let found: Vec<_> = lived(plan.clone()).flat_map(|(_, found)| found).collect();
            let is_noticed = found.iter().any(|violation| violation.property == noticed);
            assert!(is_noticed, "{rule:?} in {plan:?}: {found:?}");
        }
    }
}
