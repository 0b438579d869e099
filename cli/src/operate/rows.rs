//! `lotus tables`, `get`, `put`, `del` and `scan`: the data of a running cluster, through the
//! client library.
//!
//! An invalid command line is an error of the command. A failure at the cluster, or a missing row,
//! is reported on the standard error, and the verdict is [`Verdict::Unsound`].

use std::io::{BufWriter, Write};
use std::ops::Bound;
use std::time::Duration;

use comfy_table::Table;
use lotus_benchmarks::stream::{StandardOutput, reader_has_gone};
use lotus_client::{
    CallError, Client, Effect, Failure, Kind, PrimaryKey, Rows, Scan, Table as KnownTable, TableId,
};
use lotus_fabric::env::{Env, Nanos};
use lotus_node::agree::cluster_authority::authority;
use lotus_node::config::file::ClusterFile;
use lotus_node::config::name::NodeKind;
use lotus_node::host::processes::StateFolder;
use serde::Serialize;

use super::bytes::{Part, hex, parse, show, written};
use super::memory::{TableFigures, TableUse, Used, size};
use super::status::Survey;
use crate::apps::connect::connect_with;
use crate::args::{DelArgs, FormatArgs, GetArgs, PutArgs, RangeArgs, ScanArgs};
use lotus_runner::show::Verdict;
use lotus_runner::show::screen::{complain, or_dash};

/// Time limit of a request, and of the retries of a conflicting transaction. Longer than an
/// application's: a command that fails is run again by hand.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum length of a key of any table, in bytes: the limit of ordered tables.
const MAX_KEY_BYTES: usize = 255;

/// Runs a command as an application of the cluster. The command's error is a sentence with the
/// reason.
fn run<F, Fut>(file: &ClusterFile, command: F) -> Result<Verdict, String>
where
    F: FnOnce(Client) -> Fut,
    Fut: Future<Output = Result<(), String>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let path = file.path.display();
    let done = runtime.block_on(async {
        if file.compute_nodes.iter().all(|node| node.client.is_none()) {
            return Err(format!("{path} has no compute node with an address for clients"));
        }
        let connected = connect_with(file, |config| config.timeout = PATIENCE).await;
        let why = |error| format!("no compute node of {path} serves: {error}");
        command(connected.map_err(why)?).await
    });
    match done {
        Ok(()) => Ok(Verdict::Sound),
        Err(why) => Ok(complain(&why)),
    }
}

/// A row named on the command line.
struct Named {
    table: String,
    key: String,
    bytes: Vec<u8>,
}

impl Named {
    fn of(table: &str, key: &str, formats: FormatArgs) -> Result<Self, String> {
        let table = written(table);
        let wrong = |why: String| format!("{key:?} is no key of table {table}: {why}");
        let bytes = parse(key, formats.keys(), Part::Key).map_err(wrong)?;
        match bytes.len() {
            0 => return Err(wrong("a primary key has at least one byte".to_owned())),
            1..=MAX_KEY_BYTES => {}
            long => return Err(wrong(format!("it has {long} bytes, more than {MAX_KEY_BYTES}"))),
        }
        Ok(Self { table, key: written(key), bytes })
    }

    /// The row in a table of the cluster.
    fn of_table(&self, table: &KnownTable) -> Result<Row<'_>, String> {
        let key = match table.ordered {
            true => RowKey::Ordered(&self.bytes),
            false => RowKey::Plain(PrimaryKey::try_from(&self.bytes[..]).map_err(|error| {
                format!("{} is no key of table {}: {error}", self.key, self.table)
            })?),
        };
        Ok(Row { table: TableId(table.id), key })
    }

    fn absent(&self) -> String {
        format!("table {} has no row {}", self.table, self.key)
    }

    /// The error sentence of a transaction that was `to` read or write the row.
    fn fault(&self, to: &str, error: &CallError) -> String {
        let Self { table, key, .. } = self;
        match error.effect() {
            Effect::Nothing => format!("cannot {to} row {key} of table {table}: {error}"),
            _ => format!("row {key} of table {table} may have been changed, or not: {error}"),
        }
    }
}

/// A row of a table of the cluster.
struct Row<'r> {
    table: TableId,
    key: RowKey<'r>,
}

/// Key of a row.
enum RowKey<'r> {
    Plain(PrimaryKey),
    /// Key in an ordered table.
    Ordered(&'r [u8]),
}

/// Finds a table by its name.
fn table(client: &Client, name: &str) -> Result<KnownTable, String> {
    let tables = client.tables();
    let found = tables.iter().find(|table| table.name == name).cloned();
    found.ok_or_else(|| {
        let names: Vec<String> = tables.iter().map(|table| written(&table.name)).collect();
        let name = written(name);
        match names.is_empty() {
            true => format!("the cluster has no table {name}, nor any other"),
            false => format!("the cluster has no table {name}, but {}", names.join(", ")),
        }
    })
}

/// Time until which a command retries.
struct RetryDeadline {
    env: Env,
    deadline: Nanos,
}

impl RetryDeadline {
    fn begin() -> Self {
        let env = Env::real(0);
        let deadline = env.now().after(PATIENCE);
        Self { env, deadline }
    }

    /// Whether to retry, after a pause: the attempt conflicted with another transaction and changed
    /// nothing, and time is left.
    async fn allows(&self, error: &CallError) -> bool {
        let is_met =
            matches!(error, CallError::Failed(Failure::Conflict(_) | Failure::HeldTooLong { .. }));
        let again = is_met && self.env.now() < self.deadline;
        if again {
            tokio::time::sleep(PAUSE).await;
        }
        again
    }
}

/// A row in output format.
#[derive(Debug, Serialize)]
struct ShownRow {
    key: String,
    value: String,
    key_hex: String,
    value_hex: String,
}

impl ShownRow {
    fn of(key: &[u8], value: &[u8], formats: FormatArgs) -> Self {
        Self {
            key: show(key, formats.keys(), Part::Key),
            value: show(value, formats.values(), Part::Value),
            key_hex: hex(key),
            value_hex: hex(value),
        }
    }

    fn json(&self) -> String {
        serde_json::to_string(self).expect("strings")
    }
}

/// Writes lines to the standard output; returns false once the reader has gone, which is no fault.
fn write(mut lines: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut out = BufWriter::new(StandardOutput);
    let written = lines.try_for_each(|line| writeln!(out, "{line}"));
    match written.and_then(|()| out.flush()) {
        Ok(()) => Ok(!reader_has_gone()),
        Err(error) => Err(format!("cannot write: {error}")),
    }
}

/// A table in the output of `lotus tables`.
#[derive(Debug, Serialize)]
struct ShownTable {
    table: String,
    number: u16,
    shards: u16,
    /// First byte and length of the part of the key that decides the shard; `None` for the whole
    /// key.
    critical_field: Option<(u8, u8)>,
    /// Whether the rows are ordered by key.
    ordered: bool,
    /// Rows and memory, if reported by compute nodes.
    #[serde(flatten)]
    used: Option<TableFigures>,
}

/// `lotus tables --drop`.
///
/// # Errors
/// A sentence.
pub fn drop_table(file: &ClusterFile, name: &str) -> Result<Verdict, String> {
    run(file, async |client| {
        let dropped = client.drop_table(name).await;
        dropped.map_err(|error| format!("cannot drop table {}: {error}", written(name)))?;
        write(std::iter::once(format!("dropped table {}", written(name)))).map(drop)
    })
}

/// `lotus tables`.
///
/// # Errors
/// A sentence.
pub fn tables(file: &ClusterFile, as_json: bool) -> Result<Verdict, String> {
    let mut known = Vec::new();
    let verdict = run(file, async |client| {
        known = client.tables();
        Ok(())
    })?;
    if verdict != Verdict::Sound {
        return Ok(verdict);
    }
    let used = used(file);
    let shown = known.into_iter().map(|table| ShownTable {
        used: used.iter().find(|used| used.table == table.name).map(|used| used.figures),
        table: written(&table.name),
        number: table.id,
        shards: table.shards,
        critical_field: table.critical_field,
        ordered: table.ordered,
    });
    let shown: Vec<ShownTable> = shown.collect();
    let text = match as_json {
        true => serde_json::to_string_pretty(&shown).expect("strings and numbers"),
        false => listed(&shown),
    };
    match write(std::iter::once(text)) {
        Ok(_) => Ok(Verdict::Sound),
        Err(why) => Ok(complain(&why)),
    }
}

/// Rows and memory of all tables, as reported by the compute nodes; empty without reports.
fn used(file: &ClusterFile) -> Vec<TableUse> {
    let Ok(authority) = authority(file) else { return Vec::new() };
    let serving =
        Survey::take(file, &StateFolder::look(file), &authority).serving(NodeKind::Compute);
    Used::ask(&authority, &serving).tables
}

fn listed(tables: &[ShownTable]) -> String {
    let mut text = Table::new();
    text.load_preset(comfy_table::presets::NOTHING);
    text.set_header(["table", "number", "rows", "bytes", "shards", "shard by bytes", "order"]);
    for ShownTable { table, number, shards, critical_field, ordered, used } in tables {
        let field = or_dash(*critical_field, |(start, length)| format!("{start}, {length} long"));
        let order = if *ordered { "ordered" } else { "in no order" };
        let [number, shards] = [number, shards].map(ToString::to_string);
        let rows = or_dash(used.as_ref(), TableFigures::rows_in_words);
        let bytes = or_dash(used.as_ref(), |used| size(used.bytes));
        text.add_row([table.clone(), number, rows, bytes, shards, field, order.to_owned()]);
    }
    text.trim_fmt()
}

/// `lotus get`.
///
/// # Errors
/// A sentence: the key is invalid.
pub fn get(file: &ClusterFile, args: &GetArgs) -> Result<Verdict, String> {
    let row = Named::of(&args.table, &args.key, args.formats)?;
    run(file, async |client| {
        let known = row.of_table(&table(&client, &args.table)?)?;
        let patience = RetryDeadline::begin();
        let value = loop {
            match read(&client, &known).await {
                Ok(value) => break value.ok_or_else(|| row.absent())?,
                Err(error) if patience.allows(&error).await => {}
                Err(error) => return Err(row.fault("read", &error)),
            }
        };
        let shown = ShownRow::of(&row.bytes, &value, args.formats);
        let line = if args.json { shown.json() } else { shown.value };
        write(std::iter::once(line)).map(drop)
    })
}

async fn read(client: &Client, row: &Row<'_>) -> Result<Option<Vec<u8>>, CallError> {
    let mut txn = client.transaction(Kind::ReadOnly);
    match row.key {
        RowKey::Plain(key) => {
            let item = txn.add_ro(row.table, key);
            txn.execute().await?;
            Ok(txn.value(item).map(Vec::from))
        }
        RowKey::Ordered(key) => txn.ordered(row.table).get(key).await,
    }
}

/// `lotus put`.
///
/// # Errors
/// A sentence: the key or the value is invalid.
pub fn put(file: &ClusterFile, args: &PutArgs) -> Result<Verdict, String> {
    let row = Named::of(&args.table, &args.key, args.formats)?;
    let wrong = |why| format!("{:?} is no value for row {}: {why}", args.value, row.key);
    let value = parse(&args.value, args.formats.values(), Part::Value).map_err(wrong)?;
    run(file, async |client| {
        let known = row.of_table(&table(&client, &args.table)?)?;
        let patience = RetryDeadline::begin();
        let existed = loop {
            match upsert(&client, &known, &value).await {
                Ok(existed) => break existed,
                Err(error) if patience.allows(&error).await => {}
                Err(error) => return Err(row.fault("write", &error)),
            }
        };
        let did = if existed { "updated" } else { "inserted" };
        write(std::iter::once(format!("{did} row {} of table {}", row.key, row.table))).map(drop)
    })
}

/// Writes a row; returns whether it existed.
async fn upsert(client: &Client, row: &Row<'_>, value: &[u8]) -> Result<bool, CallError> {
    let mut txn = client.transaction(Kind::Serializable);
    let existed = match row.key {
        RowKey::Plain(key) => {
            let item = txn.add_rw(row.table, key);
            txn.execute().await?;
            let existed = txn.value(item).is_some();
            txn.upsert(item, value);
            existed
        }
        RowKey::Ordered(key) => {
            let mut table = txn.ordered(row.table);
            let existed = table.get_for_update(key).await?.is_some();
            table.put(key, value);
            existed
        }
    };
    txn.commit().await.map(|_| existed)
}

/// `lotus del`.
///
/// # Errors
/// A sentence: the key is invalid.
pub fn del(file: &ClusterFile, args: &DelArgs) -> Result<Verdict, String> {
    let row = Named::of(&args.table, &args.key, args.formats)?;
    run(file, async |client| {
        let known = row.of_table(&table(&client, &args.table)?)?;
        let patience = RetryDeadline::begin();
        loop {
            match delete(&client, &known).await {
                Ok(true) => break,
                Ok(false) => return Err(row.absent()),
                Err(error) if patience.allows(&error).await => {}
                Err(error) => return Err(row.fault("delete", &error)),
            }
        }
        write(std::iter::once(format!("deleted row {} of table {}", row.key, row.table))).map(drop)
    })
}

/// Deletes a row; returns whether it existed.
async fn delete(client: &Client, row: &Row<'_>) -> Result<bool, CallError> {
    let mut txn = client.transaction(Kind::Serializable);
    let existed = match row.key {
        RowKey::Plain(key) => {
            let item = txn.add_rw(row.table, key);
            txn.execute().await?;
            let existed = txn.value(item).is_some();
            if existed {
                txn.delete(item);
            }
            existed
        }
        RowKey::Ordered(key) => txn.ordered(row.table).delete(key).await?,
    };
    txn.commit().await.map(|_| existed)
}

/// Rows to show from a scan.
struct Wanted {
    from: Option<Vec<u8>>,
    until: Option<Vec<u8>>,
    prefix: Option<Vec<u8>>,
    reverse: bool,
}

impl Wanted {
    fn of(args: &RangeArgs, formats: FormatArgs) -> Result<Self, String> {
        let bound = |flag: &str, key: &Option<String>| {
            let key = key.as_deref();
            let bytes = key.map(|key| parse(key, formats.keys(), Part::Key)).transpose();
            bytes.map_err(|why| format!("{:?} of --{flag} is no key: {why}", key.unwrap_or("")))
        };
        Ok(Self {
            from: bound("from", &args.from)?,
            until: bound("until", &args.until)?,
            prefix: bound("prefix", &args.prefix)?,
            reverse: args.reverse,
        })
    }

    /// Whether all rows are wanted, in scan order.
    const fn is_all(&self) -> bool {
        self.from.is_none() && self.until.is_none() && self.prefix.is_none() && !self.reverse
    }

    /// The scan of a table for the wanted rows.
    fn scan(&self, client: &Client, table: &KnownTable) -> Result<Scan, String> {
        if !table.ordered && !self.is_all() {
            let name = written(&table.name);
            return Err(format!("table {name} is not ordered: its rows have no bounds or order"));
        }
        let from = self.from.as_deref().map_or(Bound::Unbounded, Bound::Included);
        let until = self.until.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let scan = client.scan(TableId(table.id));
        let scan = match &self.prefix {
            Some(prefix) => scan.prefix(prefix),
            None => scan.range((from, until)),
        };
        Ok(if self.reverse { scan.reverse() } else { scan })
    }
}

/// `lotus scan`.
///
/// # Errors
/// A sentence: a bound is not a key.
pub fn scan(file: &ClusterFile, args: &ScanArgs) -> Result<Verdict, String> {
    let wanted = Wanted::of(&args.range, args.formats)?;
    run(file, async |client| {
        let mut scan = wanted.scan(&client, &table(&client, &args.table)?)?;
        let (mut shown, limit) = (0, args.limit.unwrap_or(u64::MAX));
        while shown < limit {
            let page = match scan.next_page().await {
                Ok(page) => page,
                // The reader of the output was slow: continue while the snapshot exists.
                Err(CallError::Failed(Failure::ScanTooLong { .. })) => continue,
                Err(error) => {
                    let table = written(&args.table);
                    return Err(format!("table {table}, after {shown} rows: {error}"));
                }
            };
            let Some(rows) = page else { break };
            let some: Rows = rows.into_iter().take((limit - shown) as usize).collect();
            shown += some.len() as u64;
            let line = |(key, value): &(Vec<u8>, Vec<u8>)| {
                let row = ShownRow::of(key, value, args.formats);
                if args.json { row.json() } else { format!("{}\t{}", row.key, row.value) }
            };
            if !write(some.iter().map(line))? {
                break;
            }
        }
        Ok(())
    })
}
