//! `lotus-lab bench bank`: money at a server, under the locks of a lock system (ShiftLock §4.5,
//! FissLock §7.9).

use std::sync::Arc;
use std::time::Duration;

use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::report::grouped;
use lotus_fabric::machines::Machines;
use lotus_fabric::sim::{Fault, MemoryFate, Scheduled, When};
use lotus_loads::bank::{self, BankLoad, BankOutcome};
use lotus_loads::lanes::{Clients, START};
use serde_json::json;

use super::Failure;
use super::clients::{
    self, LockBench, Table, check_locks, clients, extend, latency, nodes, on_machines, quantiles,
    rate, verdict, who,
};
use crate::args::BankArgs;
use lotus_runner::show::outputs::Outputs;
use lotus_runner::show::{Verdict, screen};

impl LockBench for BankLoad {
    type Outcome = BankOutcome;
    const DONE: &str = "ended";

    fn clients(&self) -> &Clients {
        &self.clients
    }

    fn nodes(&self) -> u16 {
        self.nodes()
    }

    fn schedule(&self) -> Vec<Scheduled> {
        let losses = self.lost_node().zip(self.loses).map(|(node, after)| Scheduled {
            when: When::At(START + after),
            fault: Fault::Crash { node, memory: MemoryFate::Lost },
        });
        losses.into_iter().collect()
    }

    fn run(
        &self,
        machines: &dyn Machines,
        progress: &Arc<Progress>,
    ) -> Result<BankOutcome, DeployError> {
        bank::run(machines, self, progress)
    }
}

/// Runs the bank and shows the result.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn run(args: &BankArgs) -> Result<Verdict, Failure> {
    check(args)?;
    let (load, run) = (load(args).map_err(Failure::Arguments)?, &args.run);
    let outputs = Outputs::check(run.json.as_deref(), None)?;
    let outcome = on_machines(run, &load)?;
    if let Some(output) = &outputs.json {
        screen::write_json(output, &as_json(args, &load, &outcome))?;
    }
    screen::show(&text(args, &load, &outcome), &[&outputs.json])?;
    Ok(verdict(outcome.findings.as_ref()))
}

/// Refuses conflicting flags.
///
/// # Errors
/// [`Failure::Arguments`] with a sentence that names the conflict.
pub fn check(args: &BankArgs) -> Result<(), Failure> {
    let checked = load(args).and_then(|load| {
        load.check()?;
        check_locks(&args.system, &args.run, "banks")
    });
    checked.map_err(Failure::Arguments)
}

/// Runs the bank, with flags that [`check`] accepts.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn measure(args: &BankArgs) -> Result<BankOutcome, Failure> {
    Ok(on_machines(&args.run, &load(args).map_err(Failure::Arguments)?)?)
}

fn load(args: &BankArgs) -> Result<BankLoad, String> {
    let clients = clients::charged(clients(&args.system, &args.run), &args.run);
    Ok(BankLoad {
        clients: clients.map_err(|error| error.to_string())?,
        business: args.business,
        customers: args.accounts,
        request: Duration::from_secs_f64(args.request_us / 1e6),
        patience: Duration::from_micros(args.timeout_us),
        loses: args.run.loses(),
        seed: args.run.seed,
        audit: !args.run.no_audit,
    })
}

fn text(args: &BankArgs, load: &BankLoad, outcome: &BankOutcome) -> String {
    let (tally, mut text) = (&outcome.tally, Table::default());
    text.line("lock", who(&load.clients, &args.run));
    text.line("transactions a second", rate(tally.transactions, outcome.used.secs));
    let (aborts, lost) = (grouped(tally.aborts), grouped(tally.lost));
    text.line("aborts", format!("{aborts} given up, {lost} lost a lock"));
    text.line("acquire, µs", quantiles(&tally.acquire_ns));
    text.line("transaction, µs", quantiles(&tally.transaction_ns));
    for (kind, latencies) in load.business.kinds().iter().zip(&tally.of_kind_ns) {
        if !latencies.is_empty() {
            text.line(kind, quantiles(latencies));
        }
    }
    text.used(&load.clients, &outcome.used, tally.transactions);
    text.line("requests", format!("{} at the bank", grouped(outcome.requests)));
    let passed = match load.loses {
        None => "no money came or went, nobody held two, all locks free".to_owned(),
        Some(_) => format!(
            "no money came or went but by {} transactions that the lost node has not ended",
            outcome.unfinished
        ),
    };
    text.end(outcome.utilisation.as_ref(), outcome.findings.as_ref(), &passed);
    text.0
}

fn as_json(args: &BankArgs, load: &BankLoad, outcome: &BankOutcome) -> serde_json::Value {
    let BankOutcome { tally, used, requests, unfinished, findings, utilisation } = outcome;
    let (system, run) = (&args.system, &args.run);
    let mut json = clients::as_json(system, run, &load.clients, tally.transactions, used);
    let kinds = load.business.kinds().iter().zip(&tally.of_kind_ns).map(|(kind, latencies)| {
        json!({ "kind": kind, "transactions": latencies.len(), "latency": latency(latencies) })
    });
    let own = json!({
        "customers": load.customers,
        "aborts": tally.aborts,
        "lost": tally.lost,
        "acquire": latency(&tally.acquire_ns),
        "transaction": latency(&tally.transaction_ns),
        "kinds": kinds.collect::<Vec<_>>(),
        "requests": requests,
        "unfinished": unfinished,
        "nodes": nodes(utilisation.as_ref()),
        "audit": findings,
    });
    extend(&mut json, own);
    json
}
