//! What is left when load and strikes have ended: whoever is out has been recovered, and everybody
//! else looks at all data.

use lotus_benchmarks::audit::{Check, Effects};
use lotus_fabric::env::Env;
use lotus_recovery::Membership;
use lotus_recovery::membership;
use lotus_router::Authority;

use super::RECOVERING;
use super::callers::Seen;
use super::hostile::Met;
use super::round::Siege;
use super::schedule::Fault;
use super::striker::{Nodes, Struck};
use crate::cluster::drive::AUDITING;
use crate::cluster::errands::{Done, Errand, ask};
use crate::cluster::file::ClusterFile;
use crate::cluster::node::{Kind, Node};
use crate::cluster::processes::wait_until;
use crate::cluster::seat::Seat;
use crate::steps::Steps;

/// What is left when the load and the strikes have ended.
pub struct Aftermath<'a> {
    pub file: &'a ClusterFile,
    pub nodes: &'a Nodes,
    /// What was done to the nodes since they were all started.
    pub struck: &'a Struck,
    pub siege: &'a Siege,
    pub steps: &'a Steps,
}

/// What was found.
pub struct Findings {
    /// The membership, if the authority has said what it is.
    pub members: Option<Membership>,
    /// Who takes no part any more.
    pub out: Vec<Node>,
    pub checks: Vec<Check>,
}

impl Aftermath<'_> {
    /// Waits until those who are out have been recovered, and has everybody else look at what all
    /// calls so far have left.
    ///
    /// # Errors
    /// A sentence: a node that takes part does not look.
    pub fn judge(&self, authority: &Seat, seen: &Seen) -> Result<Findings, String> {
        let mut checks = Vec::new();
        self.steps.say("whoever is out is recovered");
        let members = self.await_recovery(authority);
        let out: Vec<Node> = members.iter().flat_map(|now| self.nodes.out(now)).collect();
        let recovered = members.as_ref().is_some_and(|now| self.is_recovered(now));
        let detail = match &members {
            Some(now) => {
                let lacking = self.nodes.lacking(now);
                format!("epoch {}, out: {}{lacking}", now.epoch().0, names(&out))
            }
            None => "the authority does not answer".to_owned(),
        };
        checks.push(Check::new("whoever is out has been recovered", recovered, detail));
        checks.push(Check::new(
            "what became of every call is known",
            seen.open == 0,
            format!("{} of {} unanswered calls are open", seen.open, seen.unanswered),
        ));
        checks.push(self.siege.resident.check());
        if self.siege.met.admitted > 0 {
            checks.extend(self.siege(&out));
        }
        let serving = Node::all(self.file).filter(|node| node.kind == Kind::Compute);
        for node in serving.filter(|node| !out.contains(node)) {
            self.steps.say(format!("{} looks at all data", node.in_words()));
            checks.extend(audit(authority, node, seen.tally.effects)?);
        }
        Ok(Findings { members, out, checks })
    }

    /// What there is to say of hostile clients, when these nodes are out.
    fn siege(&self, out: &[Node]) -> [Check; 2] {
        let Met { admitted, closed, granted } = self.siege.met;
        let refused = Check::new(
            "nobody was given more than his share",
            granted == 0,
            format!("{admitted} hostile connections, {closed} closed, {granted} steps too large"),
        );
        let lease = self.file.lease;
        let untouched = out.iter().filter(|node| self.struck.is_untouched(**node, lease));
        let still_out = untouched.map(|node| (*node, self.nodes.last_words(*node)));
        let unexplained = self.struck.unexplained.iter().cloned().chain(still_out);
        let lost: Vec<String> = unexplained
            .filter(|(node, _)| node.kind == Kind::Compute)
            .map(|(node, words)| format!("{node}: {words}"))
            .collect();
        let detail = if lost.is_empty() { "nobody".to_owned() } else { lost.join("; ") };
        let name = "nobody was expelled for what applications did";
        [refused, Check::new(name, lost.is_empty(), detail)]
    }

    /// The membership, as soon as nothing is left to recover; or as it is when that takes too long.
    fn await_recovery(&self, authority: &dyn Authority) -> Option<Membership> {
        let mut members = None;
        wait_until(&Env::real(0), RECOVERING, || {
            members = membership::read(authority).ok();
            let serve = self.restarted().all(|node| self.nodes.serves(authority, node));
            serve && members.as_ref().is_some_and(|now| self.is_recovered(now))
        });
        members
    }

    /// Whether everybody who has ended is out, and everybody who is out is recovered.
    fn is_recovered(&self, now: &Membership) -> bool {
        let out = self.nodes.out(now);
        let mut ended = self.nodes.all().filter(|node| self.nodes.has_ended(*node));
        let noticed = ended.all(|node| out.contains(&node));
        let back = self.restarted().all(|node| !out.contains(&node));
        let filled = now.joining().next().is_none();
        noticed && back && filled && now.may_resume() && now.may_adopt()
    }

    /// Who was started again, and struck by nothing since.
    fn restarted(&self) -> impl Iterator<Item = Node> {
        let last = |node: &Node| self.struck.strikes.iter().rfind(|strike| strike.node == *node);
        Node::all(self.file)
            .filter(move |node| last(node).is_some_and(|last| last.fault == Fault::Restart))
    }
}

/// What a node finds.
fn audit(
    authority: &dyn Authority,
    node: Node,
    effects: Effects,
) -> Result<impl Iterator<Item = Check>, String> {
    match ask(authority, node, Errand::Audit(effects), AUDITING)? {
        Done::Audited(checks) => Ok(checks
            .into_iter()
            .map(move |check| Check { name: format!("{node}: {}", check.name), ..check })),
        _ => Err(format!("{} has looked at nothing", node.in_words())),
    }
}

/// Nodes, in words.
pub fn names(nodes: &[Node]) -> String {
    let names: Vec<String> = nodes.iter().map(Node::to_string).collect();
    if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
}
