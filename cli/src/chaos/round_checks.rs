//! Judges a cluster when load and strikes have ended: nodes that are out must have been recovered,
//! and every other compute node audits all data.

use lotus_authority::Authority;
use lotus_benchmarks::audit::Check;
use lotus_fabric::env::Env;
use lotus_recovery::Membership;
use lotus_recovery::membership;

use super::callers::CallerResults;
use super::hostile::HostileResults;
use super::round::AttackResults;
use super::schedule::Fault;
use super::striker::{Nodes, RECOVERING, StrikeRecord};
use crate::apps::node_tasks;
use lotus_node::agree::cluster_authority::ClusterAuthority;
use lotus_node::config::file::ClusterFile;
use lotus_node::config::name::{NodeKind, NodeName};
use lotus_node::host::polling::wait_until;
use lotus_runner::show::steps::Steps;

/// The cluster after the load and the strikes.
pub struct RoundChecks<'a> {
    pub file: &'a ClusterFile,
    pub nodes: &'a Nodes,
    /// Strikes since the start of all nodes.
    pub struck: &'a StrikeRecord,
    pub attack: &'a AttackResults,
    pub steps: &'a Steps,
}

/// Result of the judgement.
pub struct Findings {
    /// The membership, if the authority answered.
    pub members: Option<Membership>,
    /// Nodes that no longer take part.
    pub out: Vec<NodeName>,
    pub checks: Vec<Check>,
}

impl RoundChecks<'_> {
    /// Waits until nodes that are out have been recovered, and has all other compute nodes audit
    /// the effects of all calls so far.
    ///
    /// # Errors
    /// A sentence: a participating node does not carry out its audit.
    pub fn judge(
        &self,
        authority: &ClusterAuthority,
        seen: &CallerResults,
    ) -> Result<Findings, String> {
        let mut checks = Vec::new();
        self.steps.say("waiting until expelled nodes are recovered");
        let members = self.await_recovery(authority);
        let out: Vec<NodeName> = members.iter().flat_map(|now| self.nodes.out(now)).collect();
        let recovered = members.as_ref().is_some_and(|now| self.is_recovered(now));
        let detail = match &members {
            Some(now) => {
                let lacking = self.nodes.lacking(now);
                format!("epoch {}, out: {}{lacking}", now.epoch().0, names(&out))
            }
            None => "the authority does not answer".to_owned(),
        };
        checks.push(Check::new("expelled nodes have been recovered", recovered, detail));
        checks.push(Check::new(
            "what became of every call is known",
            seen.open == 0,
            format!("{} of {} unanswered calls are open", seen.open, seen.unanswered),
        ));
        checks.push(self.attack.memory_samples.check());
        if self.attack.results.admitted > 0 {
            checks.extend(self.check_attack(&out));
        }
        let compute = NodeName::all(self.file).filter(|node| node.kind == NodeKind::Compute);
        let serving: Vec<NodeName> = compute.filter(|node| !out.contains(node)).collect();
        for node in &serving {
            self.steps.say(format!("{} looks at all data", node.in_words()));
            let effects = seen.tally.effects;
            let audited = node_tasks::audit(self.file, authority, &serving, *node, effects)?;
            let named = |check: Check| Check { name: format!("{node}: {}", check.name), ..check };
            checks.extend(audited.into_iter().map(named));
        }
        Ok(Findings { members, out, checks })
    }

    /// Checks about hostile clients; `out` are the nodes that are out.
    fn check_attack(&self, out: &[NodeName]) -> [Check; 2] {
        let HostileResults { admitted, closed, granted } = self.attack.results;
        let refused = Check::new(
            "no node was given more than its share",
            granted == 0,
            format!("{admitted} hostile connections, {closed} closed, {granted} steps too large"),
        );
        let lease = self.file.settings.lease;
        let untouched = out.iter().filter(|node| self.struck.is_untouched(**node, lease));
        let still_out = untouched.map(|node| (*node, self.nodes.last_words(*node)));
        let unexplained = self.struck.unexplained.iter().cloned().chain(still_out);
        let lost: Vec<String> = unexplained
            .filter(|(node, _)| node.kind == NodeKind::Compute)
            .map(|(node, words)| format!("{node}: {words}"))
            .collect();
        let detail = if lost.is_empty() { "none".to_owned() } else { lost.join("; ") };
        let name = "no node was expelled for what applications did";
        [refused, Check::new(name, lost.is_empty(), detail)]
    }

    /// The membership, as soon as nothing is left to recover; the last known membership after a
    /// time-out.
    fn await_recovery(&self, authority: &dyn Authority) -> Option<Membership> {
        let mut members = None;
        wait_until(&Env::real(0), RECOVERING, || {
            members = membership::read(authority).ok();
            let serve = self.restarted().all(|node| self.nodes.serves(authority, node));
            serve && members.as_ref().is_some_and(|now| self.is_recovered(now))
        });
        members
    }

    /// Whether all nodes that have ended are out, all nodes that are out have been recovered, and
    /// restarted nodes take part and are filled.
    fn is_recovered(&self, now: &Membership) -> bool {
        let out = self.nodes.out(now);
        let mut ended = self.nodes.all().filter(|node| self.nodes.has_ended(*node));
        let noticed = ended.all(|node| out.contains(&node));
        let back = self.restarted().all(|node| !out.contains(&node));
        let filled = now.joining().next().is_none();
        noticed && back && filled && now.may_resume() && now.may_adopt()
    }

    /// Nodes restarted and not struck since.
    fn restarted(&self) -> impl Iterator<Item = NodeName> {
        let last =
            |node: &NodeName| self.struck.strikes.iter().rfind(|strike| strike.node == *node);
        NodeName::all(self.file)
            .filter(move |node| last(node).is_some_and(|last| last.fault == Fault::Restart))
    }
}

/// Names of nodes, as text.
pub fn names(nodes: &[NodeName]) -> String {
    let names: Vec<String> = nodes.iter().map(NodeName::to_string).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
