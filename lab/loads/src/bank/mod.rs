//! Banks under two-phase locking: the balances lie at a server, and clients get and put balances by
//! messages while they hold the locks of the accounts (ShiftLock §4.5, FissLock §7.9).
//!
//! The server knows nothing of locks. Any lock system can provide the locks, one for each account,
//! and a transaction takes its locks in ascending order.
//!
//! # The audit
//! The sum of all balances equals the initial sum plus the changes made by transactions. If a
//! compute node is lost, some of its transactions have made only a part of their changes. The sum
//! then includes the part that the server has carried out, and nothing else: locks of the lost node
//! become free only once the server carries out no more requests of that node. Without a loss no
//! lock had conflicting holders, and all locks are free in the end.
//!
//! `plan`: transactions; `server`: the balances; `books`: notes of the clients; `lane`: work of
//! each lane.

mod books;
mod lane;
mod plan;
mod server;

use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::zipf::KeyChooser;
use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::{Core, Machines, Program};
use lotus_fabric::sim::Report;
use lotus_locks::systems::Visitor;
use lotus_locks::{LockSpace, LockSystem, Recovery};
use lotus_locksystems::redlock::rules::Times;
use lotus_locksystems::servers::{SWITCH_SLOTS, ServerLock};
use lotus_locksystems::systems::Kind;

use crate::lanes::{
    self, Clients, Done, LaneClient, Latencies, Run, RunContext, ServerLane, Used, latencies,
    refused,
};
use crate::locks::server_locks::{self, Popular, Service, ServiceVisitor};
use crate::two_phase::{Holders, audit, spaces_of};
use books::Books;
use lane::Serving;
use plan::Bank;
pub use plan::BankWorkload;
use server::Store;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct BankLoad {
    /// The clients, and the lock system.
    pub clients: Clients,
    /// Transactions of the clients.
    pub business: BankWorkload,
    /// Customers of the bank.
    pub customers: u64,
    /// Time that the server's core takes for a request.
    pub request: Duration,
    /// Time after which the client gives up an acquisition and begins its transaction again.
    pub patience: Duration,
    /// Time after [`lanes::START`] at which the last compute node is lost and removed from the
    /// membership; the machines have to end the node then.
    pub loses: Option<Duration>,
    /// Seed of the balances.
    pub seed: u64,
    /// Whether the run is audited.
    pub audit: bool,
}

impl BankLoad {
    /// Largest number of customers.
    pub const MAX_CUSTOMERS: u64 = 1 << 24;

    /// Number of nodes that the machines must have: the last is the server.
    pub fn nodes(&self) -> u16 {
        self.clients.nodes() + 1
    }

    /// Returns the compute node that is lost, if the run loses a node.
    pub const fn lost_node(&self) -> Option<NodeId> {
        match self.loses {
            Some(_) => Some(NodeId(self.clients.cns)),
            None => None,
        }
    }

    /// Number of accounts, and of locks.
    const fn accounts(&self) -> u64 {
        plan::accounts(self.business, self.customers)
    }

    fn server(&self) -> NodeId {
        NodeId(self.clients.nodes())
    }

    /// Refuses contradictory options.
    ///
    /// # Errors
    /// A sentence that names the contradiction.
    pub fn check(&self) -> Result<(), String> {
        self.clients.check(1)?;
        self.clients.check_room(self.accounts())?;
        let Clients { choice, server_lock, cns, .. } = self.clients;
        if let Some(server_lock) = server_lock
            .filter(|server_lock| self.loses.is_some() && !server_lock.outlasts_clients())
        {
            return Err(format!(
                "a lost node takes its locks of {server_lock} with it, and the run ends"
            ));
        }
        if self.loses.is_some() && server_lock == Some(ServerLock::RedLock) {
            let why = "locks of redlock have no fence";
            return Err(format!(
                "{why}: what a lost node has sent may come beside the next holder"
            ));
        }
        if self.loses.is_some() && cns < 2 {
            return Err("without its only compute node nobody goes on".to_owned());
        }
        if self.loses.is_some() && server_lock.is_none() && choice.recovery == Recovery::Paper {
            let why = "locks as published do not outlast every loss";
            return Err(format!("{why}: leave out --as-published"));
        }
        if self.audit && server_lock.is_none() && choice.kind == Kind::Drtm {
            let why = "readers of drtm have leases, which end while transactions go on";
            return Err(format!("{why}: no audit can pass"));
        }
        Ok(())
    }
}

/// Counts of a lane, or sums over lanes, in the measured time.
#[derive(Clone, Debug)]
pub struct BankTally {
    /// Transactions that have ended, including transactions refused for lack of money.
    pub transactions: u64,
    /// Attempts that gave up an acquisition.
    pub aborts: u64,
    /// Transactions that lost a lock before its release.
    pub lost: u64,
    /// Time of each acquisition, in nanoseconds.
    pub acquire_ns: Latencies,
    /// Time from the start of a transaction to the end of its releases, in nanoseconds.
    pub transaction_ns: Latencies,
    /// Time of a transaction by type, in nanoseconds.
    pub of_kind_ns: Vec<Latencies>,
}

impl Default for BankTally {
    fn default() -> Self {
        Self {
            transactions: 0,
            aborts: 0,
            lost: 0,
            acquire_ns: latencies(),
            transaction_ns: latencies(),
            of_kind_ns: Vec::new(),
        }
    }
}

impl BankTally {
    /// Latencies of a type of transactions.
    fn of_kind(&mut self, kind: usize) -> &mut Latencies {
        let count = self.of_kind_ns.len().max(kind + 1);
        self.of_kind_ns.resize_with(count, latencies);
        &mut self.of_kind_ns[kind]
    }
}

impl AddAssign for BankTally {
    fn add_assign(&mut self, other: Self) {
        self.transactions += other.transactions;
        self.aborts += other.aborts;
        self.lost += other.lost;
        lanes::add(&mut self.acquire_ns, &other.acquire_ns);
        lanes::add(&mut self.transaction_ns, &other.transaction_ns);
        for (kind, ns) in other.of_kind_ns.iter().enumerate() {
            lanes::add(self.of_kind(kind), ns);
        }
    }
}

/// Results of a run.
#[derive(Debug, Default)]
pub struct BankOutcome {
    /// Counts of all lanes.
    pub tally: BankTally,
    /// Verbs, messages and locks used in the measured time.
    pub used: Used,
    /// Requests that the server has carried out, from the beginning to the end of the run.
    pub requests: u64,
    /// Transactions of the lost node that have made a part of their changes, or no change.
    pub unfinished: u64,
    /// Findings of the audit, if the run was audited; empty if the audit passed.
    pub findings: Option<Vec<String>>,
    /// Utilisation of NICs, links and cores since the clients have begun, in simulation.
    pub utilisation: Option<Report>,
}

/// Runs the load. `progress` counts transactions, with one coordinator for each lane; a failure of
/// `progress` ends the run.
///
/// # Errors
/// [`DeployError`] if the machines refuse, or a client or a lane ends early.
pub fn run(
    machines: &dyn Machines,
    load: &BankLoad,
    progress: &Arc<Progress>,
) -> Result<BankOutcome, DeployError> {
    let visit = Visit { machines, load, progress };
    match load.clients.server_lock {
        Some(server_lock) => {
            let clients = &load.clients;
            // Accounts have equal popularity.
            let accounts = load.accounts();
            let chooser = KeyChooser::new(accounts, 0.0);
            let popular =
                || Popular::each_with_all_clients(chooser.by_popularity(SWITCH_SLOTS as usize));
            server_locks::visit(
                machines,
                server_lock,
                clients,
                accounts,
                Times::BANK,
                popular,
                visit,
            )
        }
        None => load.clients.choice.visit(visit),
    }
}

struct Visit<'a> {
    machines: &'a dyn Machines,
    load: &'a BankLoad,
    progress: &'a Arc<Progress>,
}

impl Visitor for Visit<'_> {
    type Output = Result<BankOutcome, DeployError>;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self::Output {
        let Self { machines, load, progress } = self;
        let spaces = spaces_of(&make(), load.accounts(), &[lanes::MEMORY])?;
        let clocks = lanes::register(machines, spaces[0].bytes())?;
        let run = Run::new(machines, load.clients.clone(), progress, clocks, Arc::new(make));
        let shared = Shared::new(load, spaces);
        let done = with_server(machines, &shared, progress, || {
            run.run(machines, &shared, load.lost_node())
        })?;
        let free = || locks_are_free(machines, &run, &shared);
        shared.outcome(done, free)
    }
}

impl ServiceVisitor for Visit<'_> {
    type Output = Result<BankOutcome, DeployError>;

    fn visit<S: Service>(self, service: S) -> Self::Output {
        let Self { machines, load, progress } = self;
        let shared = Shared::new(load, Arc::new([]));
        let (service, run_context) =
            (Arc::new(service), RunContext::new(machines, load.clients.clone(), progress));
        let noted = Arc::clone(&shared);
        let work = move |context: LaneClient<ServerLane<S::Locker>>| {
            let ServerLane(locks, rpc) = context.client().clone();
            Serving::new(context, Arc::clone(&noted), locks, rpc)
        };
        let done = with_server(machines, &shared, progress, || {
            server_locks::run_lanes(machines, &run_context, &service, work, load.lost_node())
        })?;
        shared.outcome(done, || Ok(server_locks::used(&*service).into_iter().collect()))
    }
}

/// Runs the clients while the server serves them.
fn with_server<R>(
    machines: &dyn Machines,
    shared: &Arc<Shared>,
    progress: &Arc<Progress>,
    clients: impl FnOnce() -> Result<R, DeployError>,
) -> Result<R, DeployError> {
    let (stop, stopped) = async_channel::bounded::<()>(1);
    let server = serve(machines, shared, progress, stopped)?;
    let done = clients();
    drop(stop);
    machines.join(server);
    done
}

/// Starts the server, which runs until the sender of `stopped` is dropped.
fn serve(
    machines: &dyn Machines,
    shared: &Arc<Shared>,
    progress: &Arc<Progress>,
    stopped: async_channel::Receiver<()>,
) -> Result<Core, DeployError> {
    let (fabric, node) = (machines.fabric(), shared.load.server());
    let (store, progress) = (Arc::clone(&shared.store), Arc::clone(progress));
    let program: Program = Box::new(move |executor| {
        let opened = server::open(executor, &*fabric, node, store);
        Box::pin(async move {
            match opened {
                Ok(_serves) => {
                    let _ = stopped.recv().await;
                }
                Err(error) => progress.fail(error.to_string()),
            }
        })
    });
    machines.start(node, "bank", program).map_err(refused)
}

/// Looks at every lock when nothing runs.
fn locks_are_free<S: LockSystem>(
    machines: &dyn Machines,
    run: &Arc<Run<S>>,
    shared: &Arc<Shared>,
) -> Result<Vec<String>, DeployError> {
    let spaces = Arc::clone(&shared.spaces);
    let look = async move |context| audit::not_free(&context, &spaces).await;
    run.audit(machines, look)
}

/// State shared by all lanes.
struct Shared {
    load: BankLoad,
    bank: Bank,
    spaces: Arc<[LockSpace]>,
    holders: Option<Holders>,
    store: Arc<Store>,
    books: Books,
}

impl Shared {
    fn new(load: &BankLoad, spaces: Arc<[LockSpace]>) -> Arc<Self> {
        let bank = Bank::new(load.business, load.customers, load.seed);
        let balances = (0..bank.accounts()).map(|account| bank.initial(account)).collect();
        let judged = load.audit && load.loses.is_none();
        Arc::new(Self {
            holders: judged.then(|| Holders::new(bank.accounts())),
            store: Store::new(balances, load.lost_node(), load.request),
            books: Books::default(),
            load: load.clone(),
            bank,
            spaces,
        })
    }

    /// Returns the results of a run with its audit; `locks` inspects the locks when nothing runs.
    fn outcome(
        &self,
        done: Done<BankTally>,
        locks: impl FnOnce() -> Result<Vec<String>, DeployError>,
    ) -> Result<BankOutcome, DeployError> {
        let Done { tally, used, utilisation, .. } = done;
        let (requests, unfinished) = (self.store.lock().requests, self.books.unfinished());
        let mut findings = self.load.audit.then(|| self.money());
        if let Some((findings, holders)) = findings.as_mut().zip(self.holders.as_ref()) {
            findings.extend(locks()?);
            findings.extend(holders.findings());
        }
        Ok(BankOutcome { tally, used, requests, unfinished, findings, utilisation })
    }

    /// Findings about the sum of all balances.
    fn money(&self) -> Vec<String> {
        let initial = (0..self.bank.accounts()).map(|account| self.bank.initial(account));
        let initial = initial.map(i128::from).sum();
        let balances = self.store.lock();
        let (sum, expected) = (balances.sum(), self.books.sum(initial, &balances));
        let unfinished = self.books.unfinished();
        let wrong = (sum != expected)
            .then(|| format!("the accounts have {sum} in all, and should have {expected}"));
        let unfinished = (unfinished > 0 && self.load.loses.is_none())
            .then(|| format!("{unfinished} transactions have not ended"));
        wrong.into_iter().chain(unfinished).collect()
    }
}

#[cfg(test)]
mod tests;
