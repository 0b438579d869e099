//! Drives a running cluster through rounds of load, with a restore between rounds.

use std::time::Duration;

use lotus_benchmarks::audit::{Audit, Check};
use lotus_benchmarks::history::History;
use lotus_fabric::env::Env;

use super::callers::{CallerResults, ask_again};
use super::copies::Copies;
use super::events::{Restore, Round};
use super::inserters::Growth;
use super::joined_history::JoinedHistory;
use super::pacer::{Pace, SchedulePacer};
use super::report::Report;
use super::restoring::{Restored, Restoring};
use super::round::{Driven, Driving};
use super::round_checks::{Findings, RoundChecks};
use super::schedule::{Bounds, Strike};
use super::striker::Nodes;
use crate::config::load::Load;
use lotus_node::config::file::ClusterFile;
use lotus_runner::show::steps::Steps;

/// A running cluster, and the settings of the run.
pub struct ChaosRun<'a> {
    pub file: &'a ClusterFile,
    pub load: &'a Load,
    pub nodes: &'a Nodes,
    pub seed: u64,
    /// Limits of the whole schedule.
    pub bounds: Bounds,
    pub pace: Pace,
    /// Whether calls report the rows read and written.
    pub traced: bool,
    /// Number of hostile clients.
    pub hostile: usize,
    pub steps: &'a Steps,
}

/// Results of all rounds so far.
#[derive(Default)]
struct Sum {
    seen: Option<CallerResults>,
    joined: JoinedHistory,
    copies: Copies,
    growth: Growth,
    /// Strikes, with times since the start of the load.
    strikes: Vec<Strike>,
    starts: usize,
    left_out: usize,
    restores: usize,
    restores_struck: usize,
    begun_anew: usize,
    checks: Vec<Check>,
    last: Option<Findings>,
}

impl ChaosRun<'_> {
    /// Runs all rounds.
    ///
    /// # Errors
    /// A sentence: the load fails in a way that no fault explains, or a step cannot be carried out.
    pub fn run(&self, rounds: &[Round]) -> Result<(Report, History), String> {
        let clock = Env::real(self.seed);
        let mut sum = Sum::default();
        let mut workload = self.load.name();
        for (life, round) in rounds.iter().enumerate() {
            workload = self.drive(&clock, life, round, &mut sum)?;
            let Some(restore) = &round.restore else { continue };
            if let Err(why) = self.restore(restore, &mut sum) {
                let name = "the cluster starts again from its last snapshot";
                sum.find(vec![Check::new(name, false, why)]);
                break;
            }
        }
        Ok(self.report(workload, sum))
    }

    /// Runs a round, and judges its result.
    fn drive(
        &self,
        clock: &Env,
        life: usize,
        round: &Round,
        sum: &mut Sum,
    ) -> Result<&'static str, String> {
        let Self { file, nodes, traced, hostile, steps, .. } = *self;
        let span = round.span;
        steps.say(format!("calls are made, and nodes struck, for {} s", span.as_secs_f64()));
        let pacer = SchedulePacer::new(Bounds { span, ..self.bounds }, self.pace, &round.strikes);
        let driving = Driving {
            file,
            nodes,
            clock,
            life: life as u32,
            span,
            all: self.bounds.span,
            pacer: pacer.with_snapshots(&round.snapshots_ms).with_waits(&round.waits_ms),
            copies: std::mem::take(&mut sum.copies),
            growth: std::mem::take(&mut sum.growth),
            traced,
            hostile,
        };
        let driven = self.load.with(driving)?;
        let Driven { workload, mut seen, tables, struck, copies, growth, attack } = driven;
        sum.joined.add(tables, std::mem::take(&mut seen.logs));
        (sum.copies, sum.growth) = (copies, growth);
        sum.starts += struck.starts;
        sum.left_out += struck.left_out;
        sum.add_strikes(round.began, &struck.strikes);
        let seen = sum.see(seen);
        let authority = lotus_node::agree::cluster_authority::authority(file)?;
        let checks = RoundChecks { file, nodes, struck: &struck, attack: &attack, steps };
        let mut findings = checks.judge(&authority, seen)?;
        sum.find(std::mem::take(&mut findings.checks));
        let grown = sum.growth.check(file)?;
        sum.find(grown);
        sum.last = Some(findings);
        Ok(workload)
    }

    /// Ends the cluster and starts it again, and checks that no data is missing.
    fn restore(&self, restore: &Restore, sum: &mut Sum) -> Result<(), String> {
        let Self { file, nodes, steps, .. } = *self;
        let authority = lotus_node::agree::cluster_authority::authority(file)?;
        let restored =
            Restoring { file, nodes, steps }.carry_out(&authority, restore, &mut sum.copies)?;
        let Restored { struck, begun_anew, check } = restored;
        sum.restores += 1;
        sum.restores_struck += usize::from(struck > 0);
        sum.begun_anew += begun_anew;
        let known = sum.seen.as_mut().map(|seen| std::mem::take(&mut seen.known));
        let (asked, others) = ask_again(file, &known.unwrap_or_default(), self.traced)?;
        let detail = match others.is_empty() {
            true => format!("{asked} calls asked for again"),
            false => others.join("; "),
        };
        let name = "what became of calls stays so after each restore";
        sum.find(vec![check, Check::new(name, others.is_empty(), detail)]);
        let grown = sum.growth.check(file)?;
        sum.find(grown);
        Ok(())
    }

    fn report(&self, workload: &'static str, mut sum: Sum) -> (Report, History) {
        if self.bounds.snapshots {
            let check = sum.copies.check(self.file.snapshots.as_ref());
            sum.find(vec![check]);
        }
        let Sum { seen, joined, copies, strikes, starts, restores, restores_struck, .. } = sum;
        let (members, out) = sum.last.map_or((None, Vec::new()), |last| (last.members, last.out));
        let seen = seen.as_ref();
        let count = |of: fn(&CallerResults) -> u64| seen.map_or(0, of);
        let report = Report {
            file: self.file.path.display().to_string(),
            seed: self.seed,
            secs: self.bounds.span.as_secs_f64(),
            workload,
            schedule: strikes,
            strikes_left_out: sum.left_out,
            starts_struck: starts,
            snapshots: copies.reported.len(),
            snapshots_failed: copies.failed,
            snapshots_struck: copies.struck,
            restores,
            restores_struck,
            begun_anew: sum.begun_anew,
            epoch: members.map(|now| now.epoch().0),
            expelled: out,
            committed: count(|seen| seen.tally.all_committed),
            refused: count(|seen| seen.refused),
            unanswered: count(|seen| seen.unanswered),
            found_committed: count(|seen| seen.found),
            grown: sum.growth.count(),
            longest_silence_ms: count(|seen| seen.silence.as_millis() as u64),
            audit: Audit::new(sum.checks),
        };
        (report, joined.into_history())
    }
}

impl Sum {
    fn see(&mut self, seen: CallerResults) -> &CallerResults {
        match &mut self.seen {
            Some(before) => before.merge(seen),
            none => *none = Some(seen),
        }
        self.seen.as_ref().expect("it is there now")
    }

    fn add_strikes(&mut self, began: Duration, strikes: &[Strike]) {
        let began_ms = began.as_millis() as u64;
        let since = |strike: &Strike| Strike { at_ms: began_ms + strike.at_ms, ..*strike };
        self.strikes.extend(strikes.iter().map(since));
    }

    /// Adds checks. Of checks with the same name, the first failure stays; otherwise the last check
    /// counts.
    fn find(&mut self, checks: Vec<Check>) {
        for check in checks {
            match self.checks.iter_mut().find(|before| before.name == check.name) {
                Some(before) if before.has_failed() => {}
                Some(before) => *before = check,
                None => self.checks.push(check),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_has_failed_in_any_round_has_failed() {
        let check = |name: &str, passed, round: &str| Check::new(name, passed, round);
        let mut sum = Sum::default();
        sum.find(vec![check("a", true, "1"), check("b", false, "1")]);
        sum.find(vec![check("a", true, "2"), check("b", true, "2"), check("c", true, "2")]);
        sum.find(vec![check("c", false, "3")]);
        let expected = [check("a", true, "2"), check("b", false, "1"), check("c", false, "3")];
        assert_eq!(sum.checks, expected);
        assert!(!Audit::new(sum.checks).passed);
    }
}
