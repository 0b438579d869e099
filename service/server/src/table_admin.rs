//! The table administrator: a thread that creates and drops tables for clients. The engine blocks
//! until the authority and the memory nodes have answered, and a coordinator must not wait for
//! that.

use std::io;
use std::sync::Weak;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus::{Cluster, ClusterError, TableId, TableSpec};
use lotus_fabric::env::{Env, Nanos};
use lotus_protocol::messages::{Answer, Failure, ScarceResource};

use crate::ticket::Ticket;

/// Requests that may wait.
const QUEUE: usize = 64;

/// One part in this many of a request's time is for waiting on a silent authority. The rest is for
/// the authority's last answer, which takes as long as the authority's own time limit.
const AUTHORITY_PART: u32 = 2;

/// The change that a client asks for.
pub(crate) enum TableChange {
    /// A table to be created.
    Create(TableSpec),
    /// A table to be dropped; without a number, the table does not exist.
    Drop { name: String, table: Option<TableId> },
}

impl TableChange {
    /// Returns the failure of a request that the cluster does not allow.
    pub(crate) const fn forbidden(&self) -> Failure {
        match self {
            Self::Create(_) => Failure::MayNotCreate,
            Self::Drop { .. } => Failure::MayNotDrop,
        }
    }
}

/// Rights of clients.
pub(crate) struct Rights {
    pub(crate) create: bool,
    pub(crate) drop: bool,
    /// Names of tables that clients may not drop.
    pub(crate) lasting: Vec<String>,
}

/// A request on its way to the administrator's thread.
struct Request {
    ticket: Ticket,
    change: TableChange,
    deadline: Nanos,
}

/// Handle of the administrator's thread, which ends when the handle is dropped or closed.
pub(crate) struct TableAdmin {
    requests: Sender<Request>,
    rights: Rights,
}

impl TableAdmin {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's error if it cannot start a thread.
    pub(crate) fn start(
        cluster: Weak<Cluster>,
        index: usize,
        env: &Env,
        rights: Rights,
    ) -> io::Result<Self> {
        let (sender, requests) = async_channel::bounded(QUEUE);
        let clock = env.clone();
        env.spawn(&format!("lotus-tables-{index}"), move || work(&cluster, &clock, &requests))?;
        Ok(Self { requests: sender, rights })
    }

    /// Whether clients may make this request.
    pub(crate) const fn may(&self, change: &TableChange) -> bool {
        match change {
            TableChange::Create(_) => self.rights.create,
            TableChange::Drop { .. } => self.rights.drop,
        }
    }

    /// Hands a request over; the ticket is answered in any case.
    pub(crate) fn carry_out(&self, ticket: Ticket, change: TableChange, deadline: Nanos) {
        if let TableChange::Drop { name, .. } = &change
            && let Some(refused) = refused(name, &self.rights.lasting)
        {
            return ticket.fail(Failure::Refused(refused));
        }
        if let Err(refused) = self.requests.try_send(Request { ticket, change, deadline }) {
            let is_closed = self.requests.is_closed();
            refused.into_inner().ticket.fail(match is_closed {
                true => Failure::Leaving,
                false => Failure::Busy(ScarceResource::Tables),
            });
        }
    }

    /// Ends the thread once it has served the waiting requests.
    pub(crate) fn close(&self) {
        self.requests.close();
    }
}

/// Returns the sentence for a table that no client may drop.
fn refused(name: &str, lasting: &[String]) -> Option<String> {
    if TableSpec::named(name.to_owned()).is_internal() {
        return Some(format!("{name}: tables of the system cannot be dropped"));
    }
    let lasts = lasting.iter().any(|lasting| lasting == name);
    lasts.then(|| format!("{name}: tables of the cluster file cannot be dropped"))
}

fn work(cluster: &Weak<Cluster>, clock: &Env, requests: &Receiver<Request>) {
    while let Ok(Request { mut ticket, change, deadline }) = requests.recv_blocking() {
        let left = deadline.since(clock.now());
        let outcome = match cluster.upgrade() {
            None => Err(Failure::Leaving),
            Some(_) if left.is_zero() => Err(Failure::Timeout),
            Some(cluster) => {
                // If the process ends meanwhile, the request may have been carried out.
                ticket.commits();
                let patience = left / AUTHORITY_PART;
                match change {
                    TableChange::Create(spec) => {
                        create(&cluster, spec, patience).map(|table| Answer::TableCreated(table.0))
                    }
                    TableChange::Drop { name, table } => {
                        drop_table(&cluster, &name, table, patience)
                    }
                }
            }
        };
        ticket.answer(&outcome.unwrap_or_else(Answer::Failed));
    }
}

/// Drops a table, or finds that the table was dropped before.
fn drop_table(
    cluster: &Cluster,
    name: &str,
    table: Option<TableId>,
    patience: Duration,
) -> Result<Answer<'static>, Failure> {
    let Some(number) = table else {
        return Err(Failure::NotFound(ClusterError::NoSuchTable(name.to_owned()).to_string()));
    };
    match cluster.drop_numbered(name, number, patience) {
        // The table's memory is given back later.
        Ok(()) | Err(ClusterError::StillThere(_)) => {
            tracing::info!(table = %name, "dropped a table for a client");
            Ok(Answer::TableDropped)
        }
        Err(error @ ClusterError::NoSuchTable(_)) => Err(Failure::NotFound(error.to_string())),
        // The table may have been dropped before the authority fell silent.
        Err(ClusterError::Authority(_)) => Err(Failure::Unknown),
        Err(error) => Err(failure_of(error)),
    }
}

/// Creates a table, or finds that the table was created before.
fn create(cluster: &Cluster, spec: TableSpec, patience: Duration) -> Result<TableId, Failure> {
    if spec.is_internal() {
        return Err(Failure::InvalidTable(internal(&spec)));
    }
    match cluster.create_table_within(spec.clone(), patience) {
        Ok(table) => {
            tracing::info!(table = %spec.name, number = table.0, "created a table for a client");
            Ok(table)
        }
        Err(ClusterError::TableExists(_)) => found(&cluster.tables(), &spec),
        Err(error) => Err(failure_of(error)),
    }
}

fn internal(spec: &TableSpec) -> String {
    format!("{}: names that begin with \"lotus.\" are kept for tables of the system", spec.name)
}

/// Returns the table of this name, if the shape is as requested.
fn found(tables: &[(TableId, TableSpec)], wanted: &TableSpec) -> Result<TableId, Failure> {
    let found = tables.iter().find(|(_, spec)| spec.name == wanted.name);
    // The table was entered meanwhile, and is not known on this node yet.
    let (table, found) = found.ok_or_else(|| Failure::Conflict("it is being created".into()))?;
    match found.differences(wanted) {
        none if none.is_empty() => Ok(*table),
        some => Err(Failure::TableDiffers(some)),
    }
}

/// Returns the failure that a client gets for the engine's error.
fn failure_of(error: ClusterError) -> Failure {
    match error {
        ClusterError::Spec { .. } => Failure::InvalidTable(error.to_string()),
        ClusterError::MayExist(_) => Failure::Unknown,
        ClusterError::Authority(_) => Failure::NoAuthority,
        ClusterError::OutOfMemory { .. } | ClusterError::TooManyTables => {
            Failure::NoRoomForTable(error.to_string())
        }
        // A memory node that is silent, lost or being filled; memory that is about to be free.
        ClusterError::Unreachable(_) | ClusterError::Fabric(_) | ClusterError::Clearing => {
            Failure::Conflict(error.to_string())
        }
        error => Failure::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::ids::NodeId;

    const ORDERS: TableSpec = TableSpec::new("orders").record_bytes(16).capacity(100);

    #[test]
    fn a_table_of_the_same_shape_is_the_one_that_was_asked_for() {
        let tables = [(TableId(3), ORDERS)];
        assert_eq!(found(&tables, &ORDERS), Ok(TableId(3)));
        let differs = Failure::TableDiffers("capacity is 100, not 7".to_owned());
        assert_eq!(found(&tables, &ORDERS.capacity(7)), Err(differs));
        assert!(matches!(found(&[], &ORDERS), Err(Failure::Conflict(_))));
    }

    #[test]
    fn each_error_of_the_engine_has_its_failure() {
        let table = TableId(0);
        let spec = ORDERS.versions(1).validate().expect_err("too few");
        let spec = ClusterError::Spec { table: "orders".into(), error: spec };
        let cases = [
            (spec, "table \"orders\": versions must be 2 to 8"),
            (ClusterError::MayExist("orders".into()), "the outcome is unknown"),
            (ClusterError::OutOfMemory { table, needed: 5 }, "5 more bytes do not fit"),
            (ClusterError::TooManyTables, "at most 1024 tables"),
            (ClusterError::Unreachable("mn-1".into()), "mn-1"),
            (ClusterError::Clearing, "try again"),
            (lotus_fabric::transport::FabricError::UnknownNode(NodeId(7)).into(), "7"),
            (ClusterError::Damaged, "damaged"),
        ];
        for (error, said) in cases {
            let failure = failure_of(error).to_string();
            assert!(failure.contains(said), "{failure}");
        }
    }

    #[test]
    fn tables_that_last_are_not_dropped() {
        let lasting = ["orders".to_owned()];
        assert_eq!(refused("items", &lasting), None);
        for (name, said) in [("orders", "the cluster file"), ("lotus.calls", "the system")] {
            assert!(refused(name, &lasting).is_some_and(|why| why.contains(said)), "{name}");
        }
    }

    #[test]
    fn names_of_the_system_are_refused() {
        let cluster = Cluster::embedded().start().expect("it starts");
        let spec = TableSpec::new("lotus.orders").record_bytes(16).capacity(100);
        let refused = create(&cluster, spec, Duration::from_secs(1));
        assert!(matches!(refused, Err(Failure::InvalidTable(_))), "{refused:?}");
        assert!(cluster.tables().is_empty());
    }
}
