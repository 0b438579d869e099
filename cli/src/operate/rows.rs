//! `lotus tables`, `get`, `put`, `del` and `scan`: the data of a running cluster, through the
//! client library.
//!
//! A command line that makes no sense is an error of the command; what fails at the cluster, or is
//! not there, is said on the standard error, and the verdict is [`Verdict::Unsound`].

use std::io::{self, BufWriter, ErrorKind, Write};
use std::time::Duration;

use comfy_table::Table;
use lotus_client::{CallError, Client, Effect, Failure, Kind, PrimaryKey, Rows, TableId};
use lotus_fabric::env::{Env, Nanos};
use lotus_node::config::file::ClusterFile;
use serde::Serialize;

use super::bytes::{Part, hex, parse, show, written};
use crate::apps::connect::connect;
use crate::args::{DelArgs, FormatArgs, GetArgs, PutArgs, ScanArgs};
use crate::show::Verdict;
use crate::show::screen::{complain, or_dash};

/// Time for which a transaction that meets others is tried again.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs a command as an application of the cluster. Its error is the sentence that says why it has
/// failed.
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
        let connected = connect(file).await;
        let why = |error| format!("no compute node of {path} serves: {error}");
        command(connected.map_err(why)?).await
    });
    match done {
        Ok(()) => Ok(Verdict::Sound),
        Err(why) => Ok(complain(&why)),
    }
}

/// A row as the command line names it.
struct Named {
    table: String,
    key: String,
    bytes: PrimaryKey,
}

impl Named {
    fn of(table: &str, key: &str, formats: FormatArgs) -> Result<Self, String> {
        let table = written(table);
        let wrong = |why: String| format!("{key:?} is no key of table {table}: {why}");
        let bytes = parse(key, formats.keys(), Part::Key).map_err(wrong)?;
        let bytes = PrimaryKey::try_from(&bytes[..]).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { table, key: written(key), bytes })
    }

    fn absent(&self) -> String {
        format!("table {} has no row {}", self.table, self.key)
    }

    /// The sentence for a transaction that was `to` read or write the row.
    fn fault(&self, to: &str, error: &CallError) -> String {
        let Self { table, key, .. } = self;
        match error.effect() {
            Effect::Nothing => format!("cannot {to} row {key} of table {table}: {error}"),
            _ => format!("row {key} of table {table} may have been changed, or not: {error}"),
        }
    }
}

/// Finds a table by its name.
fn table(client: &Client, name: &str) -> Result<TableId, String> {
    client.table(name).ok_or_else(|| {
        let tables = client.tables();
        let names: Vec<String> = tables.iter().map(|table| written(&table.name)).collect();
        let name = written(name);
        match names.is_empty() {
            true => format!("the cluster has no table {name}, nor any other"),
            false => format!("the cluster has no table {name}, but {}", names.join(", ")),
        }
    })
}

/// Time until which a command tries again.
struct Patience {
    env: Env,
    deadline: Nanos,
}

impl Patience {
    fn begin() -> Self {
        let env = Env::real(0);
        let deadline = env.now().after(PATIENCE);
        Self { env, deadline }
    }

    /// Whether to try again, after a pause: the attempt met another transaction, changed nothing,
    /// and there is time.
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

/// Result of one row.
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

/// Writes lines to the standard output; false once its reader has gone, which is no fault.
fn write(mut lines: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut out = BufWriter::new(io::stdout().lock());
    let written = lines.try_for_each(|line| writeln!(out, "{line}"));
    match written.and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("cannot write: {error}")),
    }
}

/// A table, as `lotus tables` shows it.
#[derive(Debug, Serialize)]
struct ShownTable {
    table: String,
    number: u16,
    shards: u16,
    /// First byte and length of the part of the key that decides the shard; none if all of it does.
    critical_field: Option<(u8, u8)>,
}

/// `lotus tables`.
///
/// # Errors
/// A sentence.
pub fn tables(file: &ClusterFile, as_json: bool) -> Result<Verdict, String> {
    run(file, async |client| {
        let shown = client.tables().into_iter().map(|table| ShownTable {
            table: written(&table.name),
            number: table.id,
            shards: table.shards,
            critical_field: table.critical_field,
        });
        let shown: Vec<ShownTable> = shown.collect();
        let text = match as_json {
            true => serde_json::to_string_pretty(&shown).expect("strings and numbers"),
            false => listed(&shown),
        };
        write(std::iter::once(text)).map(drop)
    })
}

fn listed(tables: &[ShownTable]) -> String {
    let mut text = Table::new();
    text.load_preset(comfy_table::presets::NOTHING);
    text.set_header(["table", "number", "shards", "shard by bytes"]);
    for ShownTable { table, number, shards, critical_field } in tables {
        let bytes = or_dash(*critical_field, |(start, length)| format!("{start}, {length} long"));
        text.add_row([table.clone(), number.to_string(), shards.to_string(), bytes]);
    }
    text.trim_fmt()
}

/// `lotus get`.
///
/// # Errors
/// A sentence: the key is none.
pub fn get(file: &ClusterFile, args: &GetArgs) -> Result<Verdict, String> {
    let row = Named::of(&args.table, &args.key, args.formats)?;
    run(file, async |client| {
        let table = table(&client, &args.table)?;
        let patience = Patience::begin();
        let value = loop {
            match read(&client, table, row.bytes).await {
                Ok(value) => break value.ok_or_else(|| row.absent())?,
                Err(error) if patience.allows(&error).await => {}
                Err(error) => return Err(row.fault("read", &error)),
            }
        };
        let shown = ShownRow::of(row.bytes.as_bytes(), &value, args.formats);
        let line = if args.json { shown.json() } else { shown.value };
        write(std::iter::once(line)).map(drop)
    })
}

async fn read(
    client: &Client,
    table: TableId,
    key: PrimaryKey,
) -> Result<Option<Vec<u8>>, CallError> {
    let mut txn = client.transaction(Kind::ReadOnly);
    let item = txn.add_ro(table, key);
    txn.execute().await?;
    Ok(txn.value(item).map(Vec::from))
}

/// `lotus put`.
///
/// # Errors
/// A sentence: the key or the value is none.
pub fn put(file: &ClusterFile, args: &PutArgs) -> Result<Verdict, String> {
    let row = Named::of(&args.table, &args.key, args.formats)?;
    let wrong = |why| format!("{:?} is no value for row {}: {why}", args.value, row.key);
    let value = parse(&args.value, args.formats.values(), Part::Value).map_err(wrong)?;
    run(file, async |client| {
        let table = table(&client, &args.table)?;
        let patience = Patience::begin();
        let existed = loop {
            match upsert(&client, table, row.bytes, &value).await {
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
async fn upsert(
    client: &Client,
    table: TableId,
    key: PrimaryKey,
    value: &[u8],
) -> Result<bool, CallError> {
    let mut txn = client.transaction(Kind::Serializable);
    let item = txn.add_rw(table, key);
    txn.execute().await?;
    let existed = txn.value(item).is_some();
    match existed {
        true => txn.put(item, value),
        false => _ = txn.insert(table, key, value),
    }
    txn.commit().await.map(|_| existed)
}

/// `lotus del`.
///
/// # Errors
/// A sentence: the key is none.
pub fn del(file: &ClusterFile, args: &DelArgs) -> Result<Verdict, String> {
    let row = Named::of(&args.table, &args.key, args.formats)?;
    run(file, async |client| {
        let table = table(&client, &args.table)?;
        let patience = Patience::begin();
        loop {
            match delete(&client, table, row.bytes).await {
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
async fn delete(client: &Client, table: TableId, key: PrimaryKey) -> Result<bool, CallError> {
    let mut txn = client.transaction(Kind::Serializable);
    let item = txn.add_rw(table, key);
    txn.execute().await?;
    if txn.value(item).is_none() {
        return Ok(false);
    }
    txn.delete(item);
    txn.commit().await.map(|_| true)
}

/// `lotus scan`.
///
/// # Errors
/// A sentence.
pub fn scan(file: &ClusterFile, args: &ScanArgs) -> Result<Verdict, String> {
    run(file, async |client| {
        let mut scan = client.scan(table(&client, &args.table)?);
        let (mut shown, limit) = (0, args.limit.unwrap_or(u64::MAX));
        while shown < limit {
            let page = match scan.next_page().await {
                Ok(page) => page,
                // The reader of the output took its time: go on, if the snapshot is still there.
                Err(CallError::Failed(Failure::ScanTooLong { .. })) => continue,
                Err(error) => {
                    let table = written(&args.table);
                    return Err(format!("table {table}, after {shown} rows: {error}"));
                }
            };
            let Some(rows) = page else { break };
            let some: Rows = rows.into_iter().take((limit - shown) as usize).collect();
            shown += some.len() as u64;
            let line = |(key, value): &(PrimaryKey, Vec<u8>)| {
                let row = ShownRow::of(key.as_bytes(), value, args.formats);
                if args.json { row.json() } else { format!("{}\t{}", row.key, row.value) }
            };
            if !write(some.iter().map(line))? {
                break;
            }
        }
        Ok(())
    })
}
