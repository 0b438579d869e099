//! Tables and stored transactions of a node's program.
//!
//! [`Tables`] is enough for most programs. [`Application`] is the general form: the `lotus` command
//! implements the trait for benchmark workloads, which also fill tables, answer requests of their
//! own and have values that snapshots include.

use std::collections::BTreeMap;
use std::ops::Index;
use std::sync::Arc;

use lotus::{Authority, Cluster, ClusterError, TableId, TableSpec};
use lotus_authority::AuthorityError;
use lotus_server::Registry;

use crate::agree::mailbox_server::MailboxServer;
use crate::config::file::ClusterFile;
use crate::config::name::NodeName;

/// An application of a cluster, run by each compute node. Memory nodes do not use it.
pub trait Application {
    /// Creates the tables of a new cluster and fills them. Called once in the life of a cluster, at
    /// the node that founds the cluster, unless the cluster begins with a snapshot.
    ///
    /// # Errors
    /// A sentence. The cluster does not start then.
    fn fill(&self, file: &ClusterFile, cluster: &Cluster) -> Result<(), String>;

    /// Opens the tables at a node, before it serves.
    ///
    /// # Errors
    /// A sentence: a table is missing, or has another shape. The node ends then.
    fn open(
        &self,
        file: &ClusterFile,
        node: NodeName,
        cluster: &Arc<Cluster>,
    ) -> Result<Opened, String>;

    /// Values at the authority that snapshots include; none by default.
    fn notes(&self) -> Arc<dyn Notes> {
        Arc::new(NoNotes)
    }
}

/// An application's part of a compute node.
#[derive(Default)]
pub struct Opened {
    /// Stored transactions that clients may call.
    pub procedures: Registry,
    /// Polled parts for further requests.
    pub requests: Vec<Box<dyn MailboxServer>>,
}

/// Values of an application at the authority, which are kept with each snapshot and restored with
/// the snapshot.
pub trait Notes: Send + Sync {
    /// Reads the values before the snapshot's timestamp is drawn.
    ///
    /// # Errors
    /// The authority does not answer.
    fn before(&self, authority: &dyn Authority) -> Result<Vec<u8>, AuthorityError>;

    /// Bytes to keep with the snapshot, once its timestamp is drawn. `before` is the result of
    /// [`Self::before`]; the values may have changed since.
    fn after(&self, authority: &dyn Authority, before: &[u8]) -> Vec<u8>;

    /// Sets the values in a cluster that begins with a snapshot, from the bytes kept with it. May
    /// be repeated.
    ///
    /// # Errors
    /// The authority does not answer.
    fn restore(&self, authority: &dyn Authority, kept: &[u8]) -> Result<(), AuthorityError>;
}

/// No values.
pub struct NoNotes;

impl Notes for NoNotes {
    fn before(&self, _authority: &dyn Authority) -> Result<Vec<u8>, AuthorityError> {
        Ok(Vec::new())
    }

    fn after(&self, _authority: &dyn Authority, before: &[u8]) -> Vec<u8> {
        before.to_vec()
    }

    fn restore(&self, _authority: &dyn Authority, _kept: &[u8]) -> Result<(), AuthorityError> {
        Ok(())
    }
}

/// Name of the cluster's file in messages.
const FILE: &str = "the cluster file";

/// Numbers of an application's tables and of the cluster file's tables, by name.
#[derive(Clone, Debug)]
pub struct TableIds(BTreeMap<String, TableId>);

impl TableIds {
    /// Number of the table `name`; `None` if neither the application nor the file has such a table.
    pub fn get(&self, name: &str) -> Option<TableId> {
        self.0.get(name).copied()
    }
}

impl Index<&str> for TableIds {
    type Output = TableId;

    /// Number of the table `name`.
    ///
    /// # Panics
    /// If neither the application nor the file has such a table.
    fn index(&self, name: &str) -> &TableId {
        self.0.get(name).unwrap_or_else(|| panic!("no table {name} was given to the node"))
    }
}

/// Tables that begin empty, and stored transactions on them.
pub struct Tables {
    pub(crate) specs: Vec<TableSpec>,
    pub(crate) procedures: Box<dyn Fn(&TableIds) -> Registry + Send + Sync>,
}

impl Default for Tables {
    /// No tables, and no stored transactions.
    fn default() -> Self {
        Self { specs: Vec::new(), procedures: Box::new(|_| Registry::new()) }
    }
}

/// Creates the tables of the cluster's file that neither the program nor the restored snapshot has
/// created.
///
/// # Errors
/// A sentence: no room for a table, or an existing table of the name has a different shape.
pub(crate) fn create_missing(file: &ClusterFile, cluster: &Cluster) -> Result<(), String> {
    file.tables.iter().try_for_each(|spec| match cluster.create_table(spec.clone()) {
        Ok(_) => Ok(()),
        Err(ClusterError::TableExists(_)) => open_table(cluster, spec, FILE).map(drop),
        Err(error) => Err(format!("table {}: {error}", spec.name)),
    })
}

/// Opens the tables of the cluster's file.
///
/// # Errors
/// A sentence: a table is missing, or has another shape.
pub(crate) fn open_tables(
    file: &ClusterFile,
    cluster: &Cluster,
) -> Result<Vec<(String, TableId)>, String> {
    let open = |spec: &TableSpec| {
        open_table(cluster, spec, FILE).map(|id| (spec.name.clone().into_owned(), id))
    };
    file.tables.iter().map(open).collect()
}

/// Opens a table and checks that its shape is as `source` expects.
fn open_table(cluster: &Cluster, wanted: &TableSpec, source: &str) -> Result<TableId, String> {
    let id = cluster.open_table(&wanted.name).map_err(|error| {
        format!("{error}; the tables of {source} are created when the cluster is made")
    })?;
    let found = cluster.tables().into_iter().find(|(table, _)| *table == id);
    match found {
        Some((_, found)) if found != *wanted => Err(format!(
            "table {} has another shape in this cluster than in {source}: {}",
            wanted.name,
            found.differences(wanted)
        )),
        _ => Ok(id),
    }
}

impl Application for Tables {
    fn fill(&self, _file: &ClusterFile, cluster: &Cluster) -> Result<(), String> {
        self.specs.iter().try_for_each(|spec| {
            let created = cluster.create_table(spec.clone()).map(drop);
            created.map_err(|error| format!("table {}: {error}", spec.name))
        })
    }

    fn open(
        &self,
        file: &ClusterFile,
        _node: NodeName,
        cluster: &Arc<Cluster>,
    ) -> Result<Opened, String> {
        let mut ids: BTreeMap<_, _> = open_tables(file, cluster)?.into_iter().collect();
        for spec in &self.specs {
            let id = open_table(cluster, spec, "this program")?;
            ids.insert(spec.name.clone().into_owned(), id);
        }
        Ok(Opened { procedures: (self.procedures)(&TableIds(ids)), requests: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus::Inline;

    fn orders() -> TableSpec {
        TableSpec::new("orders").record_bytes(16).capacity(100)
    }

    fn file() -> ClusterFile {
        file_with("")
    }

    fn file_with(tables: &str) -> ClusterFile {
        let text = format!("fabric = \"shm\"\n[[memory_node]]\n[[compute_node]]\n{tables}");
        ClusterFile::parse("orders.toml".as_ref(), &text, None).expect("sound")
    }

    #[test]
    fn tables_are_created_once_and_opened_by_name() {
        let cluster = Arc::new(Cluster::embedded().start().expect("it starts"));
        let specs = vec![orders(), TableSpec::new("stock").record_bytes(8).capacity(10)];
        let procedures = |tables: &TableIds| {
            assert!(tables["orders"] != tables["stock"] && tables.get("other").is_none());
            Registry::new()
        };
        let tables = Tables { specs, procedures: Box::new(procedures) };
        tables.fill(&file(), &cluster).expect("there is room");
        tables.open(&file(), NodeName::compute(0), &cluster).expect("they are there");
        let again = tables.fill(&file(), &cluster).expect_err("they are there");
        assert!(again.contains("orders"), "{again}");
    }

    #[test]
    fn a_table_that_is_missing_or_of_another_shape_is_named() {
        let cluster = Arc::new(Cluster::embedded().start().expect("it starts"));
        let open = |spec| {
            let tables = Tables { specs: vec![spec], ..Tables::default() };
            tables.open(&file(), NodeName::compute(0), &cluster).map(drop)
        };
        let missing = open(orders()).expect_err("it was not created");
        assert!(missing.contains("orders"), "{missing}");
        cluster.create_table(orders()).expect("there is room");
        open(orders()).expect("it is there");
        let other = open(orders().record_bytes(24)).expect_err("the cluster's has 16");
        assert!(other.ends_with("this program: record_bytes is 16, not 24"), "{other}");
        let other = open(orders().inline(Inline::Never)).expect_err("the cluster's is not so");
        assert!(other.ends_with("this program: inline is Auto, not Never"), "{other}");
    }

    #[test]
    fn tables_of_the_file_are_created_beside_those_of_the_program_and_opened_by_name() {
        let cluster = Arc::new(Cluster::embedded().start().expect("it starts"));
        let table = |name: &str, bytes: u32| {
            format!("[[table]]\nname = \"{name}\"\nrecord_bytes = {bytes}\ncapacity = 100\n")
        };
        let file = file_with(&(table("orders", 16) + &table("stock", 8)));
        let procedures = |tables: &TableIds| {
            assert!(tables["orders"] != tables["stock"]);
            Registry::new()
        };
        let tables = Tables { specs: vec![orders()], procedures: Box::new(procedures) };
        let missing = tables.open(&file, NodeName::compute(0), &cluster).map(drop);
        let missing = missing.expect_err("not created yet");
        assert!(missing.contains("no table named \"orders\""), "{missing}");
        tables.fill(&file, &cluster).expect("there is room");
        create_missing(&file, &cluster).expect("one is there, and there is room for the other");
        create_missing(&file, &cluster).expect("they are there");
        tables.open(&file, NodeName::compute(0), &cluster).expect("they are there");
        assert_eq!(cluster.tables().len(), 2);
        let other = file_with(&table("stock", 9));
        for refused in [create_missing(&other, &cluster), open_tables(&other, &cluster).map(drop)] {
            let refused = refused.expect_err("it has 8");
            assert!(refused.ends_with("the cluster file: record_bytes is 8, not 9"), "{refused}");
        }
    }
}
