//! Applications that insert new keys into an ordered table, besides the callers; and the check that
//! the table has every acknowledged row, and no other row.
//!
//! # What it is
//! Half of the inserters insert ascending keys, half random keys, with values of up to
//! [`VALUE_BYTES`]. A key is inserted repeatedly until its row is known to exist. Repetitions are
//! recognised: a value names its key and its attempt, and a key not inserted yet must not be
//! refused as existing. If all attempts have failed without an effect, the key is given up; if the
//! outcome of an attempt stays unknown, the row may or may not exist.
//!
//! The table is [`TABLE`] of the cluster's file, or is created if applications may create tables.
//! Otherwise nothing grows.
//!
//! # What it is not
//! A throughput load: rows are inserted at a bounded rate, and take a small part of the memory.

use std::collections::BTreeMap;
use std::time::Duration;

use lotus_benchmarks::audit::Check;
use lotus_benchmarks::harness::BenchError;
use lotus_client::{
    CallError, Client, Effect, Failure, Kind, Rows, TableId, TableSpec, Transaction,
};
use lotus_fabric::env::{Env, Nanos};
use rand::Rng;
use tokio::task::JoinSet;

use crate::apps::connect::connect;
use lotus_node::config::file::ClusterFile;
use lotus_runner::applications::load::{LOOKING_UP, a_fault_explains, failed};

/// Name of the table.
pub const TABLE: &str = "chaos.grown";
/// Longest key, in bytes.
const KEY_BYTES: u32 = 16;
/// Longest value, in bytes.
const VALUE_BYTES: u32 = 900;
/// Number of inserters, each with one row at a time.
const INSERTERS: usize = 4;
/// Maximum number of rows a second: the test is not about throughput.
const MOST_ROWS_PER_S: f64 = 100.0;
/// Bytes of a memory node for each row: a node of the tree is half full, has two versions and is
/// rewritten for each of its rows, and the free slots of killed nodes are lost.
const MEMORY_PER_ROW: u64 = 16 << 10;
/// Pause before a key is inserted again, or the table is read again.
const PAUSE: Duration = Duration::from_millis(100);
/// Number of violations that a message names.
const SOME: usize = 5;
/// Random stream of the first inserter, separate from the streams of other clients.
const STREAM: u64 = 2000;

/// All rows inserted so far, over all lives of the cluster.
#[derive(Default)]
pub struct Growth {
    /// Whether a growing table exists.
    has_table: bool,
    rows: BTreeMap<Vec<u8>, PutRow>,
    /// Number of keys inserted so far by each inserter.
    given: [u64; INSERTERS],
    /// Keys refused as existing although never inserted.
    refused: Vec<String>,
    /// Rows that are missing, wrong, or never inserted.
    findings: Vec<String>,
}

/// An inserted row, which may exist.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PutRow {
    /// Possible writers: one of these attempts has written the row.
    writers: Vec<u32>,
    /// Whether the row exists for certain.
    certain: bool,
}

/// Outcome of one attempt to insert a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PutOutcome {
    /// The attempt has committed.
    Put,
    /// The key exists.
    Exists,
    /// The attempt may have committed.
    Unknown,
    /// The attempt has changed nothing, and the loss of nodes explains the error.
    Nothing,
}

/// Knowledge of a key after an attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
enum PutJudgement {
    /// The row exists.
    There(PutRow),
    /// The key was refused as existing, although never inserted.
    FalselyRefused,
    /// Nothing is known: try again.
    Open,
}

/// Judges the `attempt` to insert a key; `unknown` are earlier attempts that may have committed.
fn judge(unknown: &[u32], attempt: u32, outcome: PutOutcome) -> PutJudgement {
    let there = |writers: Vec<u32>| PutJudgement::There(PutRow { writers, certain: true });
    match outcome {
        PutOutcome::Put => there(vec![attempt]),
        PutOutcome::Exists if unknown.is_empty() => PutJudgement::FalselyRefused,
        PutOutcome::Exists => there(unknown.to_vec()),
        PutOutcome::Unknown | PutOutcome::Nothing => PutJudgement::Open,
    }
}

/// Outcome of an attempt; an error that no fault explains is a defect.
fn outcome(put: Result<(), CallError>) -> Result<PutOutcome, BenchError> {
    match put {
        Ok(()) => Ok(PutOutcome::Put),
        Err(CallError::Failed(Failure::AlreadyExists(_))) => Ok(PutOutcome::Exists),
        Err(error) if !is_explained(&error) => Err(failed(&error)),
        Err(error) if error.effect() == Effect::Nothing => Ok(PutOutcome::Nothing),
        Err(_) => Ok(PutOutcome::Unknown),
    }
}

/// Whether the loss of nodes explains an error of an interactive transaction, or of a scan.
fn is_explained(error: &CallError) -> bool {
    let of_a_session = matches!(
        error,
        CallError::Failed(
            Failure::HeldTooLong { .. } | Failure::SnapshotTooOld | Failure::ScanTooLong { .. }
        )
    );
    of_a_session || error.is_retryable() || a_fault_explains(error)
}

/// Key number `number` of an inserter: half of the inserters insert in ascending order.
fn key(inserter: usize, number: u64, noise: u64) -> Vec<u8> {
    let inserter = inserter as u8;
    match inserter % 2 {
        0 => [&[b'a', inserter][..], &number.to_be_bytes()].concat(),
        _ => [&[b'r'][..], &noise.to_be_bytes(), &[inserter], &(number as u32).to_be_bytes()]
            .concat(),
    }
}

/// Value that an attempt inserts.
fn content(key: &[u8], attempt: u32) -> Vec<u8> {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let of_key = key.iter().fold(0xcbf2_9ce4_8422_2325, mix);
    let hash = attempt.to_le_bytes().iter().fold(of_key, mix);
    let length = 8 + (of_key >> 20) as usize % (VALUE_BYTES as usize - 7);
    hash.to_le_bytes().into_iter().cycle().take(length).collect()
}

/// Number of rows for a cluster with memory nodes of this size.
fn most_rows(memory_bytes: u64) -> u64 {
    (memory_bytes / MEMORY_PER_ROW).max(INSERTERS as u64)
}

fn spec(file: &ClusterFile) -> TableSpec {
    let rows = most_rows(file.settings.memory_bytes);
    TableSpec::new(TABLE).key_bytes(KEY_BYTES).record_bytes(VALUE_BYTES).capacity(rows).ordered()
}

/// Inserters of a round, before the start.
pub struct Inserters {
    table: Option<TableId>,
    clock: Env,
    /// Maximum number of rows per inserter, over all rounds.
    most: u64,
    growth: Growth,
}

/// Result of one inserter.
struct InsertResult {
    inserter: usize,
    given: u64,
    rows: Vec<(Vec<u8>, PutRow)>,
    refused: Vec<String>,
}

impl Inserters {
    /// Finds or creates the table, in a cluster before its first strike.
    ///
    /// # Errors
    /// The table cannot be created although applications may create tables; or it is gone since the
    /// last round.
    pub async fn ready(
        client: &Client,
        file: &ClusterFile,
        clock: &Env,
        mut growth: Growth,
    ) -> Result<Self, BenchError> {
        let deadline = clock.now().after(LOOKING_UP);
        let begins = growth.rows.is_empty() && !growth.has_table;
        let table = loop {
            let found = client.open_table(TABLE).await;
            let found = match found {
                Ok(None) if begins => client.create_table(&spec(file)).await.map(Some),
                found => found,
            };
            match found {
                Ok(None) if growth.has_table => {
                    growth.findings.push(format!("there is no table {TABLE} any more"));
                    break None;
                }
                Ok(table) => break table,
                Err(CallError::Failed(Failure::MayNotCreate)) => break None,
                Err(error) if !is_explained(&error) || clock.now() >= deadline => {
                    return Err(failed(&format!("the table {TABLE}: {error}")));
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        };
        growth.has_table |= table.is_some();
        let most = most_rows(file.settings.memory_bytes) / INSERTERS as u64;
        Ok(Self { table, clock: clock.clone(), most, growth })
    }

    /// Inserts rows until the time is up, then finds out whether the last rows exist. `all` is the
    /// total duration of the load in all rounds.
    ///
    /// # Errors
    /// An insert failed in a way that no fault explains.
    pub async fn grow(
        mut self,
        client: &Client,
        until: Nanos,
        all: Duration,
    ) -> Result<Growth, BenchError> {
        let Some(table) = self.table else { return Ok(self.growth) };
        let most = self.most;
        let slowest = all.as_secs_f64() / most as f64;
        let pause = Duration::from_secs_f64(slowest.max(INSERTERS as f64 / MOST_ROWS_PER_S));
        let mut tasks = JoinSet::new();
        for inserter in 0..INSERTERS {
            let (client, clock) = (client.clone(), self.clock.clone());
            let one = Inserter { client, table, inserter, clock, until };
            let given = self.growth.given[inserter];
            tasks.spawn(async move { one.keep_putting(given, most, pause).await });
        }
        while let Some(ended) = tasks.join_next().await {
            let InsertResult { inserter, given, rows, refused } =
                ended.map_err(|error| failed(&error))??;
            self.growth.given[inserter] = given;
            self.growth.rows.extend(rows);
            self.growth.refused.extend(refused);
        }
        Ok(self.growth)
    }
}

/// An application that inserts rows.
struct Inserter {
    client: Client,
    table: TableId,
    inserter: usize,
    clock: Env,
    until: Nanos,
}

impl Inserter {
    async fn keep_putting(
        self,
        mut given: u64,
        most: u64,
        pause: Duration,
    ) -> Result<InsertResult, BenchError> {
        // Row numbers and random keys continue in the next life of the cluster.
        let mut rng = self.clock.rng((STREAM + self.inserter as u64) << 32 | given);
        let (mut rows, mut refused) = (Vec::new(), Vec::new());
        while given < most && self.clock.now() < self.until {
            let key = key(self.inserter, given, rng.random());
            given += 1;
            match self.put(&key).await? {
                PutJudgement::There(row) => rows.push((key, row)),
                PutJudgement::FalselyRefused => refused.push(key.escape_ascii().to_string()),
                PutJudgement::Open => {}
            }
            tokio::time::sleep(pause).await;
        }
        Ok(InsertResult { inserter: self.inserter, given, rows, refused })
    }

    /// Inserts a row until it is known to exist, or time is up.
    async fn put(&self, key: &[u8]) -> Result<PutJudgement, BenchError> {
        let mut unknown = Vec::new();
        for attempt in 1.. {
            let (table, key, value) = (self.table, key.to_vec(), content(key, attempt));
            let body = async move |txn: &mut Transaction| {
                txn.ordered(table).insert(key.clone(), value.clone());
                Ok::<(), CallError>(())
            };
            let put = self.client.run(Kind::Serializable, body).await;
            let outcome = outcome(put.map(|_| ()))?;
            let known = judge(&unknown, attempt, outcome);
            if known != PutJudgement::Open {
                return Ok(known);
            }
            unknown.extend((outcome == PutOutcome::Unknown).then_some(attempt));
            let now = self.clock.now();
            if unknown.is_empty() && now >= self.until {
                return Ok(PutJudgement::Open);
            }
            if now >= self.until.after(LOOKING_UP) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(PutJudgement::There(PutRow { writers: unknown, certain: false }))
    }
}

impl Growth {
    /// Number of rows that exist for certain; `None` if nothing grows.
    pub fn count(&self) -> Option<usize> {
        self.has_table.then(|| self.rows.values().filter(|row| row.certain).count())
    }

    /// Scans the table as an application, compares its rows, and returns the checks to report;
    /// without a growing table, the list is empty.
    ///
    /// # Errors
    /// Errors of the operating system; no compute node accepts the connection.
    pub fn check(&mut self, file: &ClusterFile) -> Result<Vec<Check>, String> {
        if !self.has_table {
            return Ok(Vec::new());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let read = runtime.block_on(async {
            let client = connect(file).await.map_err(|error| error.to_string())?;
            read_all(&client).await
        });
        match read {
            Ok(found) => {
                let findings = compare(&self.rows, &found);
                self.findings.extend(findings);
                self.settle(&found);
            }
            Err(why) => self.findings.push(why),
        }
        let certain = self.count().unwrap_or_default();
        let open = self.rows.len() - certain;
        let rows = format!("{certain} rows, and {open} that may be there");
        let refused = format!("{} refused", self.refused.len());
        let check = |name, findings: &[String], sound| {
            let detail = if findings.is_empty() { sound } else { in_brief(findings) };
            Check::new(name, findings.is_empty(), detail)
        };
        Ok(vec![
            check("the ordered table has all rows put into it and no other", &self.findings, rows),
            check("no new key is refused as one that exists", &self.refused, refused),
        ])
    }

    /// Remembers the rows found, and the attempts that wrote them: these rows must stay.
    fn settle(&mut self, found: &Rows) {
        for (key, value) in found {
            let Some(row) = self.rows.get_mut(key) else { continue };
            row.writers.retain(|attempt| content(key, *attempt) == *value);
            row.certain = true;
        }
    }
}

/// Reads the whole table in one scan; starts again if nodes are lost meanwhile.
async fn read_all(client: &Client) -> Result<Rows, String> {
    let clock = Env::real(0);
    let deadline = clock.now().after(LOOKING_UP);
    loop {
        let why = match read_once(client).await {
            Ok(Some(rows)) => return Ok(rows),
            Ok(None) => return Err(format!("there is no table {TABLE} any more")),
            Err(error) if !is_explained(&error) => return Err(format!("{TABLE}: {error}")),
            Err(error) => error,
        };
        if clock.now() >= deadline {
            return Err(format!("{TABLE} cannot be read: {why}"));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn read_once(client: &Client) -> Result<Option<Rows>, CallError> {
    let Some(table) = client.open_table(TABLE).await? else { return Ok(None) };
    let mut scan = client.scan(table);
    let mut rows = Rows::new();
    while let Some(page) = scan.next_page().await? {
        rows.extend(page);
    }
    Ok(Some(rows))
}

/// Violations in a scan's rows, given the rows inserted.
fn compare(put: &BTreeMap<Vec<u8>, PutRow>, found: &Rows) -> Vec<String> {
    let mut findings = Vec::new();
    let name = |key: &[u8]| key.escape_ascii().to_string();
    for pair in found.windows(2).filter(|pair| pair[0].0 >= pair[1].0) {
        findings.push(format!("{} comes before {}", name(&pair[0].0), name(&pair[1].0)));
    }
    let mut there: BTreeMap<&[u8], &[u8]> = BTreeMap::new();
    for (key, value) in found {
        there.insert(key, value);
        match put.get(key) {
            None => findings.push(format!("nobody has put {}", name(key))),
            Some(row) if row.writers.iter().any(|it| content(key, *it) == *value) => {}
            Some(_) => findings.push(format!("{} has a value that nobody has put", name(key))),
        }
    }
    let gone = put.iter().filter(|(key, row)| row.certain && !there.contains_key(&key[..]));
    findings.extend(gone.map(|(key, _)| format!("{} is gone", name(key))));
    findings
}

/// The first violations, and their number.
fn in_brief(findings: &[String]) -> String {
    let first = findings[..findings.len().min(SOME)].join(", ");
    format!("{}: {first}", findings.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repetition_is_recognised_and_a_first_attempt_must_not_be_refused() {
        let there = |writers: &[u32]| {
            PutJudgement::There(PutRow { writers: writers.into(), certain: true })
        };
        // (attempts of unknown outcome, attempt, its outcome, verdict)
        let cases: [(&[u32], u32, PutOutcome, PutJudgement); 8] = [
            (&[], 1, PutOutcome::Put, there(&[1])),
            (&[], 1, PutOutcome::Exists, PutJudgement::FalselyRefused),
            // Attempts that have changed nothing are no reason for the key to exist.
            (&[], 3, PutOutcome::Exists, PutJudgement::FalselyRefused),
            (&[1, 3], 4, PutOutcome::Exists, there(&[1, 3])),
            (&[1], 2, PutOutcome::Put, there(&[2])),
            (&[1], 2, PutOutcome::Unknown, PutJudgement::Open),
            (&[], 1, PutOutcome::Nothing, PutJudgement::Open),
            (&[], 1, PutOutcome::Unknown, PutJudgement::Open),
        ];
        for (unknown, attempt, outcome, verdict) in cases {
            assert_eq!(judge(unknown, attempt, outcome), verdict, "{unknown:?} {outcome:?}");
        }
    }

    #[test]
    fn errors_say_whether_a_row_may_have_been_put() {
        let of = |failure| outcome(Err(CallError::Failed(failure))).ok();
        assert_eq!(outcome(Ok(())).ok(), Some(PutOutcome::Put));
        assert_eq!(of(Failure::AlreadyExists(String::new())), Some(PutOutcome::Exists));
        assert_eq!(of(Failure::Conflict(String::new())), Some(PutOutcome::Nothing));
        assert_eq!(of(Failure::HeldTooLong { limit_ms: 1 }), Some(PutOutcome::Nothing));
        assert_eq!(of(Failure::Unknown), Some(PutOutcome::Unknown));
        assert_eq!(outcome(Err(CallError::Unknown)).ok(), Some(PutOutcome::Unknown));
        for defect in [Failure::Panicked, Failure::UnknownTable { table: 3 }] {
            assert_eq!(of(defect), None, "no fault of a node explains it");
        }
        assert_eq!(outcome(Err(CallError::Protocol)).ok(), None);
    }

    #[test]
    fn a_row_that_is_gone_or_wrong_or_nobody_s_or_out_of_order_is_a_finding() {
        let [one, two, three] = [key(0, 1, 0), key(0, 2, 0), key(1, 1, 7)];
        let row = |writers: &[u32], certain| PutRow { writers: writers.into(), certain };
        let put = BTreeMap::from([
            (one.clone(), row(&[1], true)),
            (two.clone(), row(&[1, 2], false)),
            (three.clone(), row(&[2, 3], true)),
        ]);
        let of = |key: &[u8], attempt| (key.to_vec(), content(key, attempt));
        let findings = |found: &[(Vec<u8>, Vec<u8>)]| compare(&put, &found.to_vec()).join("; ");
        assert_eq!(findings(&[of(&one, 1), of(&three, 3)]), "");
        assert_eq!(findings(&[of(&one, 1), of(&two, 2), of(&three, 2)]), "");
        assert!(findings(&[of(&one, 1)]).ends_with("is gone"));
        assert!(findings(&[of(&one, 2), of(&three, 3)]).ends_with("a value that nobody has put"));
        assert!(findings(&[of(&two, 1), of(&one, 1), of(&three, 3)]).contains("comes before"));
        assert!(findings(&[of(&one, 1), of(&one, 1), of(&three, 3)]).contains("comes before"));
        let alien = [of(&one, 1), of(b"b", 1), of(&three, 3)];
        assert_eq!(findings(&alien), "nobody has put b");
    }

    #[test]
    fn a_row_that_was_found_must_stay_and_its_value_too() {
        let one = key(1, 1, 9);
        let row = PutRow { writers: vec![1, 4], certain: false };
        let mut growth = Growth { rows: [(one.clone(), row)].into(), ..Growth::default() };
        growth.settle(&vec![(one.clone(), content(&one, 4))]);
        assert_eq!(growth.rows[&one], PutRow { writers: vec![4], certain: true });
    }

    #[test]
    fn rows_fit_the_table_and_attempts_differ_in_every_value() {
        for (inserter, number) in (0..INSERTERS).flat_map(|one| (0..500).map(move |to| (one, to))) {
            let key = key(inserter, number, number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            assert!(key.len() <= KEY_BYTES as usize);
            let values = [1, 2, 3].map(|attempt| content(&key, attempt));
            assert!(values.iter().all(|value| (8..=VALUE_BYTES as usize).contains(&value.len())));
            assert!(values[0] != values[1] && values[1] != values[2] && values[0] != values[2]);
        }
        assert!(key(0, 255, 0) < key(0, 256, 0), "they ascend");
        assert_eq!(most_rows(64 << 20), 4096);
    }
}
