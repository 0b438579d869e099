//! Applications' requests: calls of the stored transactions that run a workload.

use std::time::Duration;

use lotus_benchmarks::config::Routing;
use lotus_benchmarks::engine::Isolation;
use lotus_benchmarks::workload::{Access, Workload};
use lotus_client::{Call, Client};
use lotus_fabric::env::SmallRng;

/// Names of the stored transactions that run a workload's requests.
pub struct Procedures {
    pub(super) read: String,
    pub(super) write: String,
}

impl Procedures {
    /// Stored transactions of a workload, whose writes run at the given isolation. Each returns the
    /// change of the balance.
    pub fn of<W: Workload>(isolation: Isolation) -> Self {
        let level = match isolation {
            Isolation::Serializable => "sr",
            Isolation::Snapshot => "si",
        };
        Self { read: format!("{}.read", W::NAME), write: format!("{}.write.{level}", W::NAME) }
    }

    /// Variants that also return the rows read and written: [`Traced`](super::traced::Traced).
    pub fn traced<W: Workload>(isolation: Isolation) -> Self {
        let Self { read, write } = Self::of::<W>(isolation);
        Self { read: format!("{read}.traced"), write: format!("{write}.traced") }
    }

    /// Name of the stored transaction that runs a request.
    pub fn serving(&self, access: Access) -> &str {
        match access {
            Access::ReadOnly => &self.read,
            Access::ReadWrite => &self.write,
        }
    }
}

/// Source of applications' requests: a workload whose type of request is hidden, so that the code
/// of applications is compiled once.
pub trait Requests: Send + Sync {
    /// Number of types of transactions.
    fn types(&self) -> usize;

    /// Stored transactions that run the requests.
    fn procedures(&self, isolation: Isolation) -> Procedures;

    /// Draws the next request, `elapsed` after the load began.
    fn draw(&self, rng: &mut SmallRng, elapsed: Duration, caller: &Caller<'_>) -> DrawnCall;
}

/// An application that calls `procedures`.
pub struct Caller<'a> {
    /// Client that sends the calls.
    pub client: &'a Client,
    /// Names of the stored transactions.
    pub procedures: Procedures,
    /// Whether a call names its first row, so that it goes to the row's owner.
    pub routing: Routing,
}

impl<W: Workload> Requests for W {
    fn types(&self) -> usize {
        W::TRANSACTIONS.len()
    }

    fn procedures(&self, isolation: Isolation) -> Procedures {
        Procedures::of::<W>(isolation)
    }

    fn draw(&self, rng: &mut SmallRng, elapsed: Duration, caller: &Caller<'_>) -> DrawnCall {
        let request = self.draw_at(rng, elapsed);
        let access = W::access(&request);
        let mut call = caller.client.call(caller.procedures.serving(access), &request);
        if caller.routing == Routing::Hybrid {
            let (table, key) = self.first_record(&request);
            call = call.at(table, key);
        }
        DrawnCall { call, access, kind: W::kind(&request) }
    }
}

/// A request that is ready to be sent.
pub struct DrawnCall {
    /// The call of the stored transaction, which returns the change of the balance.
    pub call: Call<i64>,
    /// Whether the request writes.
    pub access: Access,
    /// Index of the request's type.
    pub kind: usize,
}
