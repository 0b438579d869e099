//! A cluster: the last answers of its nodes, the authority's view of them, and the last minute.
//! Pure.
//!
//! # Precedence of the sources
//! A node's state is the state that `lotus cluster status` shows. If the node is working according
//! to that state, its metrics take precedence: a node that does not answer is unreachable, whatever
//! the status, and compute nodes know which memory nodes are silent.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_node::config::name::{NodeKind, NodeName};

use super::Watched;
use super::rates::{self, Rates};
use super::view::{ClusterView, ComputeRow, HISTORY, MemoryRow, Mood, View};
use crate::operate::status::{LOST, Outline, SERVING};
use crate::top::parse::Sample;

/// Time since the last poll of the authority after which the authority counts as silent.
const STALE: Duration = Duration::from_secs(5);
/// Minimum time between two points of the last minute.
const STEP: Duration = Duration::from_secs(1);

/// Reason why a node's metrics are missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetricsError {
    /// No answer in time.
    Silent,
    /// No connection, with the error.
    Unreachable(String),
    /// An invalid answer, with the reason.
    Nonsense(String),
}

impl MetricsError {
    fn in_words(&self) -> String {
        match self {
            Self::Silent => "no answer in time".to_owned(),
            Self::Unreachable(why) | Self::Nonsense(why) => why.clone(),
        }
    }
}

/// News of a cluster.
#[derive(Clone, PartialEq, Debug)]
pub enum ClusterNews {
    /// Answer to a request for a node's metrics.
    Asked { node: NodeName, at: Nanos, answer: Result<Box<Sample>, MetricsError> },
    /// States of all nodes, from the authority and this host.
    Surveyed { at: Nanos, outline: Outline },
}

/// A watched cluster.
pub struct ClusterModel {
    title: String,
    interval: Duration,
    nodes: Vec<NodeModel>,
    survey: Option<(Nanos, Outline)>,
    began: Nanos,
    history: VecDeque<f64>,
    /// Time of the next point of the last minute.
    next_point: Option<Nanos>,
}

/// A node.
struct NodeModel {
    name: NodeName,
    has_metrics: bool,
    /// Start of the interval for the next rates.
    base: Option<(Nanos, Sample)>,
    last: Option<Sample>,
    rates: Option<Rates>,
    trouble: Option<MetricsError>,
}

impl NodeModel {
    fn take(&mut self, at: Nanos, answer: Result<Box<Sample>, MetricsError>, interval: Duration) {
        let sample = match answer {
            Ok(sample) => *sample,
            Err(trouble) => {
                (self.trouble, self.rates) = (Some(trouble), None);
                return;
            }
        };
        self.trouble = None;
        self.last = Some(sample.clone());
        let Some((since, base)) = &self.base else {
            self.base = Some((at, sample));
            return;
        };
        let passed = at.since(*since);
        let begins_again = sample.uptime_s < base.uptime_s;
        // With an answer right after a late answer, little time would look like much work.
        if passed >= interval / 2 || begins_again {
            self.rates = Rates::between(base, &sample, passed.as_secs_f64());
            self.base = Some((at, sample));
        }
    }

    /// The last sample of a node that answers.
    fn known(&self) -> Option<&Sample> {
        self.last.as_ref().filter(|_| self.trouble.is_none())
    }
}

/// State of a node in one word, from the state in `lotus cluster status` and from the node's
/// metrics.
fn judge(
    said: Option<&str>,
    trouble: Option<&MetricsError>,
    is_silent: bool,
    takes_part: Option<bool>,
) -> (String, Mood) {
    let said = said.unwrap_or("unknown");
    let is_at_work = [SERVING, "resting", "running", "returning", "joining", "unknown", "silent"];
    if !is_at_work.contains(&said) {
        let lost = ["ended", "expelled", "in recovery", LOST, "last copies lost"];
        let mood = if lost.contains(&said) { Mood::Bad } else { Mood::Changing };
        return (said.to_owned(), mood);
    }
    let bad = |word: &str| (word.to_owned(), Mood::Bad);
    match (trouble, takes_part) {
        (Some(MetricsError::Nonsense(_)), _) => bad("nonsense"),
        (Some(_), _) => bad("unreachable"),
        _ if is_silent => bad("silent"),
        (None, Some(false)) => bad("expelled"),
        // The node answers; only the authority does not.
        (None, Some(true)) if said == "unknown" => ("running".to_owned(), Mood::Changing),
        _ if said == SERVING => (SERVING.to_owned(), Mood::Good),
        _ => (said.to_owned(), Mood::Changing),
    }
}

impl ClusterModel {
    /// A cluster of `nodes`, each with a flag for metrics, polled at `interval`.
    pub fn new(
        title: String,
        nodes: impl IntoIterator<Item = (NodeName, bool)>,
        interval: Duration,
        now: Nanos,
    ) -> Self {
        let node = |(name, has_metrics)| NodeModel {
            name,
            has_metrics,
            base: None,
            last: None,
            rates: None,
            trouble: None,
        };
        let nodes = nodes.into_iter().map(node).collect();
        let (survey, history, next_point) = (None, VecDeque::new(), None);
        Self { title, interval, nodes, survey, began: now, history, next_point }
    }

    fn rates(&self) -> impl Iterator<Item = &Rates> {
        self.nodes.iter().filter_map(|node| node.rates.as_ref())
    }

    /// Commits per second, summed over nodes that answer.
    fn committed(&self) -> Option<f64> {
        self.rates().map(|rates| rates.committed).reduce(|sum, more| sum + more)
    }

    fn step(&self) -> Duration {
        self.interval.max(STEP)
    }

    fn said(&self, node: NodeName) -> Option<&'static str> {
        let (_, outline) = self.survey.as_ref()?;
        outline.states.iter().find(|(name, _)| *name == node).map(|(_, state)| *state)
    }

    fn is_silent(&self, node: NodeName) -> bool {
        let name = node.to_string();
        node.kind == NodeKind::Memory
            && self.nodes.iter().filter_map(NodeModel::known).any(|it| it.silent.contains(&name))
    }

    fn compute(&self, node: &NodeModel) -> ComputeRow {
        let (known, rates) = (node.known(), node.rates.as_ref());
        let takes_part = known.and_then(|sample| sample.takes_part);
        let (state, mood) = judge(self.said(node.name), node.trouble.as_ref(), false, takes_part);
        let ms = |share| {
            let found = rates.and_then(|rates| rates::quantile(&rates.latencies, share));
            found.map(|secs| secs * 1e3)
        };
        ComputeRow {
            node: node.name,
            state,
            mood,
            trouble: node.trouble.as_ref().map(MetricsError::in_words),
            epoch: known.and_then(|sample| sample.epoch).map(|epoch| epoch as u64),
            committed: rates.map(|rates| rates.committed),
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            aborts: rates.map(Rates::all_aborts),
            locks: rates.map(|rates| rates.locks),
            own_locks: rates.and_then(|rates| rates.own_locks),
            shards: known.and_then(|sample| sample.shards).map(|shards| shards as u64),
            moved: known.map(|sample| sample.shards_moved as u64),
            processors: rates.map(|rates| rates.processors),
            resident: known.and_then(|sample| sample.resident).map(|bytes| bytes as u64),
            lease_left_s: known.and_then(|sample| sample.lease_left_s),
        }
    }

    fn memory(&self, node: &NodeModel) -> MemoryRow {
        let name = node.name.to_string();
        let (known, trouble) = (node.known(), node.trouble.as_ref());
        let takes_part = known.map(|_| true);
        let silent = self.is_silent(node.name);
        let (state, mood) = judge(self.said(node.name), trouble, silent, takes_part);
        let told = self.nodes.iter().filter_map(NodeModel::known);
        let told = told.filter_map(|sample| sample.memory.get(&name).copied());
        let used = told.reduce(|one, other| if other.0 > one.0 { other } else { one });
        let used = used.or(known.and_then(|sample| sample.region));
        MemoryRow {
            node: node.name,
            state,
            mood,
            trouble: trouble.map(MetricsError::in_words),
            used: used.map(|(used, limit)| (used as u64, limit as u64)),
            processors: node.rates.as_ref().map(|rates| rates.processors),
            resident: known.and_then(|sample| sample.resident).map(|bytes| bytes as u64),
        }
    }

    /// The authority's state in words, and whether it is well.
    fn authority(&self, now: Nanos) -> (String, bool) {
        let last = self.survey.as_ref().map_or(self.began, |(at, _)| *at);
        let passed = now.since(last);
        if passed > STALE.max(self.interval * 3) {
            return (format!("no answer for {} s", passed.as_secs()), false);
        }
        match &self.survey {
            None => ("not asked yet".to_owned(), true),
            Some((_, Outline { authority, reason, .. })) => {
                ((*authority).to_owned(), reason.is_none())
            }
        }
    }
}

impl Watched for ClusterModel {
    type News = ClusterNews;

    fn take(&mut self, news: ClusterNews) {
        match news {
            ClusterNews::Asked { node, at, answer } => {
                let interval = self.interval;
                let node = self.nodes.iter_mut().find(|known| known.name == node);
                if let Some(node) = node {
                    node.take(at, answer, interval);
                }
            }
            ClusterNews::Surveyed { at, outline } => self.survey = Some((at, outline)),
        }
    }

    fn tick(&mut self, now: Nanos) {
        let Some(due) = self.next_point else {
            // The last minute starts with the first rate.
            self.next_point = self.committed().map(|_| now);
            return;
        };
        if now < due {
            return;
        }
        let missed = now.since(due).as_secs_f64() / self.step().as_secs_f64();
        let points = (missed as usize + 1).min(HISTORY);
        let committed = self.committed().unwrap_or(0.0);
        self.history.extend(std::iter::repeat_n(committed, points));
        while self.history.len() > HISTORY {
            self.history.pop_front();
        }
        self.next_point = Some(due.after(self.step() * (missed as u32 + 1)));
    }

    fn view(&self, now: Nanos) -> View {
        let outline = self.survey.as_ref().map(|(_, outline)| outline);
        let (authority, authority_is_well) = self.authority(now);
        let (mut aborts, mut latencies) = (BTreeMap::new(), Vec::new());
        for rates in self.rates() {
            for (reason, rate) in rates.aborts.iter().filter(|(_, rate)| **rate > 0.0) {
                *aborts.entry(reason.clone()).or_insert(0.0) += rate;
            }
            rates::add(&mut latencies, &rates.latencies);
        }
        let ms = |share| rates::quantile(&latencies, share).map(|secs| secs * 1e3);
        let of = |kind| self.nodes.iter().filter(move |node| node.name.kind == kind);
        let compute: Vec<_> = of(NodeKind::Compute).map(|node| self.compute(node)).collect();
        let memory: Vec<_> = of(NodeKind::Memory).map(|node| self.memory(node)).collect();
        let moods = compute.iter().map(|row| row.mood).chain(memory.iter().map(|row| row.mood));
        let serving = moods.filter(|mood| *mood == Mood::Good).count();
        let known = self.nodes.iter().filter_map(NodeModel::known);
        View::Cluster(ClusterView {
            title: self.title.clone(),
            serving: (serving, self.nodes.len()),
            epoch: outline.and_then(|outline| outline.epoch),
            copies: outline.and_then(|outline| outline.copies),
            data: outline.and_then(|outline| outline.data),
            authority,
            authority_why: outline.and_then(|outline| outline.reason.clone()),
            authority_is_well,
            committed: self.committed(),
            history: self.history.iter().copied().collect(),
            history_step_s: self.step().as_secs_f64(),
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            aborts,
            moves: self.rates().map(|rates| rates.shards_moved).sum(),
            moved: known.map(|sample| sample.shards_moved).sum(),
            compute,
            memory,
        })
    }

    fn is_complete(&self) -> bool {
        let is_known = |node: &NodeModel| node.rates.is_some() || node.trouble.is_some();
        let mut asked = self.nodes.iter().filter(|node| node.has_metrics);
        self.survey.is_some() && asked.all(is_known)
    }
}

#[cfg(test)]
pub mod tests;
