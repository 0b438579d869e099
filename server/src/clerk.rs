//! The clerk, a thread that creates the tables that clients ask for: the engine blocks until the
//! authority and the memory nodes have answered, which a coordinator must not wait for.

use std::io;
use std::sync::Weak;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus::{ClusterError, TableId, TableSpec};
use lotus_fabric::env::{Env, Nanos};
use lotus_protocol::messages::{Answer, Failure, Room};

use crate::host::Host;
use crate::ticket::Ticket;

/// Tables that may wait to be created.
const QUEUE: usize = 64;

/// One part in this many of a request's time is for an authority that does not answer. The rest is
/// for its last answer, which takes as long as the authority's own time limit.
const AUTHORITY_PART: u32 = 2;

/// A table that a client asks for.
struct Request {
    ticket: Ticket,
    spec: TableSpec,
    deadline: Nanos,
}

/// The way to the clerk's thread, which ends when this is dropped or closed.
pub(crate) struct Clerk(Sender<Request>);

impl Clerk {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's error when it has no thread to give.
    pub(crate) fn start(host: Weak<dyn Host>, index: usize, env: &Env) -> io::Result<Self> {
        let (sender, requests) = async_channel::bounded(QUEUE);
        let clock = env.clone();
        env.spawn(&format!("lotus-clerk-{index}"), move || work(&host, &clock, &requests))?;
        Ok(Self(sender))
    }

    /// Hands a table over; the ticket is answered in any case.
    pub(crate) fn create(&self, ticket: Ticket, spec: TableSpec, deadline: Nanos) {
        if let Err(refused) = self.0.try_send(Request { ticket, spec, deadline }) {
            let is_closed = self.0.is_closed();
            refused.into_inner().ticket.fail(match is_closed {
                true => Failure::Leaving,
                false => Failure::Busy(Room::Tables),
            });
        }
    }

    /// Ends the thread once it has served what waits.
    pub(crate) fn close(&self) {
        self.0.close();
    }
}

fn work(host: &Weak<dyn Host>, clock: &Env, requests: &Receiver<Request>) {
    while let Ok(Request { mut ticket, spec, deadline }) = requests.recv_blocking() {
        let left = deadline.since(clock.now());
        let outcome = match host.upgrade() {
            None => Err(Failure::Leaving),
            Some(_) if left.is_zero() => Err(Failure::Timeout),
            Some(host) => {
                // If the process ends meanwhile, the table may have been created.
                ticket.commits();
                create(&*host, spec, left / AUTHORITY_PART)
            }
        };
        ticket.answer(&match outcome {
            Ok(table) => Answer::TableCreated(table.0),
            Err(failure) => Answer::Failed(failure),
        });
    }
}

/// Creates a table, or finds it created.
fn create(host: &dyn Host, spec: TableSpec, patience: Duration) -> Result<TableId, Failure> {
    if spec.is_internal() {
        return Err(Failure::InvalidTable(internal(&spec)));
    }
    match host.create_table(spec.clone(), patience) {
        Ok(table) => {
            tracing::info!(table = %spec.name, number = table.0, "created a table for a client");
            Ok(table)
        }
        Err(ClusterError::TableExists(_)) => found(&host.tables(), &spec),
        Err(error) => Err(failure_of(error)),
    }
}

fn internal(spec: &TableSpec) -> String {
    format!("{}: names that begin with \"lotus.\" are kept for tables of the system", spec.name)
}

/// The table of this name, if it has the shape that is asked for.
fn found(tables: &[(TableId, TableSpec)], wanted: &TableSpec) -> Result<TableId, Failure> {
    let found = tables.iter().find(|(_, spec)| spec.name == wanted.name);
    // It was entered meanwhile, and is not known here yet.
    let (table, found) = found.ok_or_else(|| Failure::Conflict("it is being created".into()))?;
    match found.differences(wanted) {
        none if none.is_empty() => Ok(*table),
        some => Err(Failure::TableDiffers(some)),
    }
}

/// Failure that a client gets for the engine's error.
fn failure_of(error: ClusterError) -> Failure {
    match error {
        ClusterError::Spec { .. } => Failure::InvalidTable(error.to_string()),
        ClusterError::MayExist(_) => Failure::Unknown,
        ClusterError::Authority(_) => Failure::NoAuthority,
        ClusterError::OutOfMemory { .. } | ClusterError::TooManyTables => {
            Failure::NoRoomForTable(error.to_string())
        }
        // A memory node that is silent, lost or being filled.
        ClusterError::Unreachable(_) | ClusterError::Fabric(_) => {
            Failure::Conflict(error.to_string())
        }
        error => Failure::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus::Cluster;
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
            (lotus_fabric::transport::FabricError::UnknownNode(NodeId(7)).into(), "7"),
            (ClusterError::Damaged, "damaged"),
        ];
        for (error, said) in cases {
            let failure = failure_of(error).to_string();
            assert!(failure.contains(said), "{failure}");
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
