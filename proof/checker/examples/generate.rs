//! Writes a sound history of any size, for measuring the checker:
//! `cargo run --release -p lotus-checker --example generate -- 1000000 > h.jsonl`.
//!
//! Arguments: transactions (1,000,000), sessions (64), rows (100,000), seed (1). Every session has
//! one transaction in flight; each takes place, at one point for `sr` and at two for `si`, between
//! its start and its end. Half update two rows and read a third, a quarter are under snapshot
//! isolation, some abort, some end unknown.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufWriter, Write};

/// A small random number generator (xorshift64*), with the same results on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % bound
    }
}

/// A transaction in flight.
struct Running {
    id: u64,
    start: u64,
    snapshot_isolation: bool,
    snapshot: u64,
    rows: [u64; 3],
    read: [Option<u64>; 3],
}

struct Database {
    random: Random,
    clock: u64,
    rows: u64,
    /// Version and commit timestamp of each row.
    newest: BTreeMap<u64, (u64, u64)>,
}

impl Database {
    fn begin(&mut self, id: u64) -> Running {
        self.clock += 2;
        let rows = [0; 3].map(|_| self.random.below(self.rows));
        let mut running = Running {
            id,
            start: self.clock - 1,
            snapshot_isolation: self.random.below(4) == 0,
            snapshot: self.clock,
            rows,
            read: [None; 3],
        };
        self.read(&mut running);
        running
    }

    fn read(&self, running: &mut Running) {
        let version = |row: u64| self.newest.get(&row).map(|newest| newest.0);
        running.read = running.rows.map(version);
    }

    /// Ends a transaction; returns its line, newline included.
    fn end(&mut self, mut running: Running, session: u64) -> String {
        self.clock += 2;
        let commit_ts = self.clock - 1;
        if !running.snapshot_isolation {
            self.read(&mut running);
        }
        let Running { id, start, snapshot, rows, read, .. } = running;
        let [a, b, _] = rows;
        let updates = self.random.below(2) == 0 && a != b;
        let newest_ts = |row| self.newest.get(&row).map_or(0, |newest: &(u64, u64)| newest.1);
        let conflicts = running.snapshot_isolation
            && updates
            && (newest_ts(a) > snapshot || newest_ts(b) > snapshot);
        let aborts = conflicts || self.random.below(50) == 0;
        let unknown = !aborts && updates && self.random.below(1000) == 0;
        if updates && !aborts {
            self.newest.insert(a, (id, commit_ts));
            self.newest.insert(b, (id, commit_ts));
        }
        let mut ops: Vec<String> = rows
            .iter()
            .zip(read)
            .map(|(row, version)| format!(r#"["r","acct",{row},{}]"#, or_null(version)))
            .collect();
        if updates {
            ops.extend([a, b].map(|row| format!(r#"["w","acct",{row},{id}]"#)));
        }
        let iso = if running.snapshot_isolation { "si" } else { "sr" };
        let status = if aborts {
            "fail"
        } else if unknown {
            "info"
        } else {
            "ok"
        };
        let end = or_null((!unknown).then_some(self.clock));
        let cts = or_null((status == "ok" && updates).then_some(commit_ts));
        let snap = or_null(running.snapshot_isolation.then_some(snapshot));
        format!(
            concat!(
                r#"{{"id":{},"session":{},"start":{},"end":{},"iso":"{}","status":"{}","#,
                r#""cts":{},"snap":{},"ops":[{}]}}"#,
                "\n"
            ),
            id,
            session,
            start,
            end,
            iso,
            status,
            cts,
            snap,
            ops.join(",")
        )
    }
}

fn or_null(number: Option<u64>) -> String {
    number.map_or_else(|| "null".to_owned(), |number| number.to_string())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = [1_000_000, 64, 100_000, 1u64];
    for (number, argument) in numbers.iter_mut().zip(std::env::args().skip(1)) {
        *number = argument.parse()?;
    }
    let [transactions, sessions, rows, seed] = numbers.map(|number| number.max(1));
    let random = Random(seed);
    let mut database = Database { random, clock: 0, rows, newest: BTreeMap::new() };
    let mut running: Vec<Option<Running>> = (0..sessions).map(|_| None).collect();
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut ended = 0;
    for id in 1.. {
        let session = database.random.below(sessions);
        if let Some(ends) = running[session as usize].take() {
            out.write_all(database.end(ends, session).as_bytes())?;
            ended += 1;
            if ended == transactions {
                break;
            }
        }
        running[session as usize] = Some(database.begin(id));
    }
    out.flush()?;
    Ok(())
}
