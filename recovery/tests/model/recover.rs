//! Steps 2 and 6 to 8 of recovery (docs/recovery.md): expel, fence, read, decide, record, repair,
//! done. A recoverer may stop at any step; another one then takes over.
//!
//! # What it is
//! The order of `engine/src/membership/recover/transaction.rs` around [`decide`] and [`repair`],
//! which are the engine's own. A swap finds the word that was read, or its recoverer starts over.
//!
//! # What is one step here
//! Reading a log slot on all memory nodes; reading the rows; giving the log to a memory node that
//! lacks it. Swaps of one batch land one by one, in any order between memory nodes; the first that
//! fails makes its recoverer start over, without the rest of the batch. So does a verb to a memory
//! node that was lost since the logs were read.
//!
//! # What it is not
//! Claims as such: there is one current recoverer of a node at a time, and a former one that does
//! not know that it has been replaced. Directories, floors and links are left out.

use lotus_recovery::{Decision, Repair, decide, repair};

use crate::commit::primary;
use crate::rules::{Rule, World};
use crate::state::{
    Entry, KEYS, NODES, Place, Plan, REPLICAS, Recoverer, Recovery, Replicas, Row, Stage, State,
    Verdict, Word, seen, timestamp,
};

/// Selects the current or the former recoverer of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Who {
    Current,
    Former,
}

/// Next action of a recoverer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Deed {
    Fence,
    ReadLogs,
    ReadRows,
    Record,
    Repair(u8),
    Finish(u8),
}

/// A word to change on one memory node, if it still is what was read.
struct Swap {
    key: usize,
    cell: u8,
    from: Word,
    to: Word,
}

impl Recovery {
    pub fn recoverer(&self, who: Who) -> Option<Recoverer> {
        match who {
            Who::Current => self.current,
            Who::Former => self.former,
        }
    }

    fn set(&mut self, who: Who, recoverer: Option<Recoverer>) {
        match who {
            Who::Current => self.current = recoverer,
            Who::Former => self.former = recoverer,
        }
    }
}

impl World {
    /// Whether a node may be expelled: it is dead, or is taken for dead, or its place is nobody's.
    pub fn may_expel(&self, state: &State, node: usize) -> bool {
        let it = &state.nodes[node];
        let has_come = it.place != Place::Free;
        !it.expelled && has_come && (it.dead || state.faults.suspicions > 0)
    }

    pub fn expel(&self, state: &mut State, node: usize) {
        let it = &mut state.nodes[node];
        it.expelled = true;
        if !it.dead {
            state.faults.suspicions -= 1;
        }
        state.recoveries[node].current = Some(self.first_step());
    }

    fn first_step(&self) -> Recoverer {
        match self.breaks(Rule::NodesAreFenced) {
            true => Recoverer::ReadLogs,
            false => Recoverer::Fencing(0),
        }
    }

    /// Whether a recoverer may stop and be replaced. One that has only fenced leaves nothing
    /// behind.
    pub fn may_take_over(&self, state: &State, of: usize) -> bool {
        let current = state.recoveries[of].current;
        state.faults.stops > 0 && !matches!(current, None | Some(Recoverer::Fencing(_)))
    }

    pub fn take_over(&self, state: &mut State, of: usize) {
        state.faults.stops -= 1;
        let recovery = &mut state.recoveries[of];
        recovery.former = recovery.current;
        recovery.current = Some(match self.breaks(Rule::RecoverersAreFenced) {
            true => Recoverer::ReadLogs,
            false => self.first_step(),
        });
    }

    /// Whether a recoverer's verbs take effect on a memory node.
    fn is_admitted(&self, state: &State, of: usize, who: Who, at: usize) -> bool {
        if who == Who::Current || self.breaks(Rule::RecoverersAreFenced) {
            return true;
        }
        match state.recoveries[of].current {
            Some(Recoverer::Fencing(fenced)) => at >= usize::from(fenced),
            // The current one has fenced all of them, unless that rule is broken.
            _ => self.breaks(Rule::NodesAreFenced),
        }
    }

    /// Adds the possible actions of a recoverer.
    pub fn deeds(&self, state: &State, of: usize, who: Who, add: &mut impl FnMut(Deed)) {
        let Some(recoverer) = state.recoveries[of].recoverer(who) else { return };
        let admitted = |at: usize| self.is_admitted(state, of, who, at);
        let everywhere = || state.surviving().all(|(at, _)| admitted(at));
        match recoverer {
            // Repeated fencing by a recoverer that has been replaced changes nothing.
            Recoverer::Fencing(_) => add(Deed::Fence),
            Recoverer::ReadLogs if everywhere() => add(Deed::ReadLogs),
            Recoverer::ReadRows(_) if everywhere() => add(Deed::ReadRows),
            Recoverer::ReadLogs | Recoverer::ReadRows(_) => {}
            Recoverer::Act(plan, Stage::Record(next)) => {
                if record_order(&plan).nth(usize::from(next)).is_some_and(admitted) {
                    add(Deed::Record);
                }
            }
            Recoverer::Act(plan, Stage::Repair { part, landed }) => {
                for at in reached(&plan) {
                    let swaps = self.swaps(of, &plan, part, at);
                    if admitted(at) && usize::from(landed[at]) < swaps.len() {
                        add(Deed::Repair(at as u8));
                    }
                }
            }
            Recoverer::Act(plan, Stage::Finish(done)) => {
                for at in reached(&plan) {
                    if admitted(at) && !done[at] && finish_from(&plan, at).is_some() {
                        add(Deed::Finish(at as u8));
                    }
                }
            }
        }
    }

    pub fn act(&self, state: &mut State, of: usize, who: Who, deed: Deed) {
        let Some(recoverer) = state.recoveries[of].recoverer(who) else { return };
        let next = match (recoverer, deed) {
            (Recoverer::Fencing(next), _) => self.fence(state, of, usize::from(next)),
            (Recoverer::ReadLogs, _) => self.read_logs(state, of),
            (Recoverer::ReadRows(logs), _) => self.read_rows(state, of, logs),
            (Recoverer::Act(plan, Stage::Record(next)), _) => record(state, of, plan, next),
            (Recoverer::Act(plan, stage), Deed::Repair(at)) => {
                self.repair(state, of, plan, stage, usize::from(at))
            }
            (Recoverer::Act(plan, stage), Deed::Finish(at)) => {
                finish(state, of, plan, stage, usize::from(at))
            }
            (Recoverer::Act(..), _) => unreachable!("{deed:?} is no step of {recoverer:?}"),
        };
        let next = next.and_then(|next| self.skip_what_is_empty(of, next));
        state.recoveries[of].set(who, next);
        let settled = next.is_none() && !state.contradiction;
        let counts = who == Who::Current || self.breaks(Rule::RecoverersAreFenced);
        state.recoveries[of].resolved |= settled && counts;
    }

    /// Makes one more memory node refuse every expelled node.
    fn fence(&self, state: &mut State, of: usize, at: usize) -> Option<Recoverer> {
        let over = |node: usize| state.nodes[node].life + u8::from(state.nodes[node].expelled);
        let over: [u8; NODES] = std::array::from_fn(over);
        let memory = &mut state.memory[at];
        if !memory.lost {
            memory.fenced = std::array::from_fn(|node| memory.fenced[node].max(over[node]));
        }
        if at + 1 < REPLICAS {
            return Some(Recoverer::Fencing(at as u8 + 1));
        }
        // The former recoverer is refused everywhere from now on.
        state.recoveries[of].former = None;
        Some(Recoverer::ReadLogs)
    }

    fn read_logs(&self, state: &State, of: usize) -> Option<Recoverer> {
        let logs: [Option<Entry>; REPLICAS] = std::array::from_fn(|at| {
            let memory = &state.memory[at];
            memory.logs[of].filter(|_| !memory.lost)
        });
        logs.iter().any(Option::is_some).then_some(Recoverer::ReadRows(logs))
    }

    /// Reads the rows that the latest entry names, and decides.
    fn read_rows(
        &self,
        state: &mut State,
        of: usize,
        logs: [Option<Entry>; REPLICAS],
    ) -> Option<Recoverer> {
        // A log that was read is lost: the remaining ones may say otherwise.
        if (0..REPLICAS).any(|at| logs[at].is_some() && state.memory[at].lost) {
            return Some(Recoverer::ReadLogs);
        }
        let life = |entry: &Entry| if self.breaks(Rule::LogsNameLives) { 0 } else { entry.life };
        let latest = *logs.iter().flatten().max_by_key(|entry| (life(entry), entry.attempt))?;
        let rows: [Option<[Row; KEYS]>; REPLICAS] = std::array::from_fn(|at| {
            let memory = &state.memory[at];
            (!memory.lost).then_some(memory.rows)
        });
        let txn = latest.txn(of);
        let whole = logs.iter().flatten().filter(|entry| entry.txn(of) == txn);
        let cells = rows.iter().flatten().flat_map(|rows| {
            let named = (0..KEYS).filter_map(|key| Some((key, latest.cells[key]?)));
            named.map(|(key, cell)| seen(&rows[key], cell))
        });
        let verdict = match decide(txn.id(), whole.map(|entry| entry.verdict.word()), cells) {
            Ok(Decision::AlreadyResolved) => Verdict::Done,
            Ok(Decision::Back) => Verdict::Back,
            Ok(Decision::Forward(_)) if self.breaks(Rule::TimestampsDecide) => Verdict::Back,
            Ok(Decision::Forward(time)) => Verdict::Forward(time.raw() as u8),
            Err(_) => {
                state.contradiction = true;
                return None;
            }
        };
        let plan = Plan { entry: latest, logs, rows, verdict };
        let stage = match verdict {
            Verdict::Done => Stage::Finish([false; REPLICAS]),
            _ if self.breaks(Rule::DecisionsAreRecorded) => first_repairs(verdict),
            _ => Stage::Record(0),
        };
        Some(Recoverer::Act(plan, stage))
    }

    /// Swaps that a plan requires on one memory node.
    fn swaps(&self, of: usize, plan: &Plan, part: Replicas, at: usize) -> Vec<Swap> {
        let Some(rows) = &plan.rows[at] else { return Vec::new() };
        let txn = plan.entry.txn(of);
        let decision = match plan.verdict {
            Verdict::Back => Decision::Back,
            Verdict::Forward(time) => Decision::Forward(timestamp(time)),
            Verdict::Done | Verdict::Undecided => return Vec::new(),
        };
        let mut swaps = Vec::new();
        for (key, row) in rows.iter().enumerate() {
            let Some(cell) = plan.entry.cells[key] else { continue };
            let here = match part {
                Replicas::All => true,
                Replicas::Backups => primary(key) != at,
                Replicas::Primaries => primary(key) == at,
            };
            let word = row[usize::from(cell)];
            let missed = word != Word::tag(txn) && self.breaks(Rule::AllReplicasAreRepaired);
            if !here || missed {
                continue;
            }
            let (from, to) = match repair(txn.id(), decision, seen(row, cell)) {
                Repair::Keep => continue,
                Repair::Publish { from, to } => (from, to),
                Repair::Empty { from } => (from, 0),
            };
            let (from, to) = (Word::from_raw(from), Word::from_raw(to));
            swaps.push(Swap { key, cell, from, to });
        }
        swaps
    }

    fn repair(
        &self,
        state: &mut State,
        of: usize,
        plan: Plan,
        stage: Stage,
        at: usize,
    ) -> Option<Recoverer> {
        let Stage::Repair { part, mut landed } = stage else { return Some(Recoverer::ReadLogs) };
        let swaps = self.swaps(of, &plan, part, at);
        let Swap { key, cell, from, to } = swaps[usize::from(landed[at])];
        let lost = state.memory[at].lost;
        let word = &mut state.memory[at].rows[key][usize::from(cell)];
        if lost || *word != from && *word != to {
            return Some(Recoverer::ReadLogs);
        }
        *word = to;
        let outcome = state.outcome(plan.entry.txn(of));
        match to.time() {
            0 => outcome.back = true,
            _ => outcome.forward = true,
        }
        outcome.shown |= to.time() != 0 && primary(key) == at;
        landed[at] += 1;
        Some(Recoverer::Act(plan, Stage::Repair { part, landed }))
    }

    /// Goes on to the next stage with something left to do; `None` when all is done.
    fn skip_what_is_empty(&self, of: usize, next: Recoverer) -> Option<Recoverer> {
        let Recoverer::Act(plan, mut stage) = next else { return Some(next) };
        loop {
            let over = match stage {
                Stage::Record(next) => record_order(&plan).nth(usize::from(next)).is_none(),
                Stage::Repair { part, landed } => reached(&plan)
                    .all(|at| usize::from(landed[at]) == self.swaps(of, &plan, part, at).len()),
                Stage::Finish(done) => {
                    reached(&plan).all(|at| done[at] || finish_from(&plan, at).is_none())
                }
            };
            stage = match stage {
                _ if !over => return Some(Recoverer::Act(plan, stage)),
                Stage::Record(_) => first_repairs(plan.verdict),
                Stage::Repair { part: Replicas::Backups, .. } => {
                    Stage::Repair { part: Replicas::Primaries, landed: [0; REPLICAS] }
                }
                Stage::Repair { .. } => Stage::Finish([false; REPLICAS]),
                Stage::Finish(_) => return None,
            };
        }
    }
}

/// First repairs of a plan: backups before primaries where versions turn visible (H3).
fn first_repairs(verdict: Verdict) -> Stage {
    let part = match verdict {
        Verdict::Forward(_) => Replicas::Backups,
        _ => Replicas::All,
    };
    Stage::Repair { part, landed: [0; REPLICAS] }
}

/// Memory nodes that a recoverer believes to be there. If one is lost after all, the next verb to
/// it fails, and the recoverer starts over.
fn reached(plan: &Plan) -> impl Iterator<Item = usize> + Clone {
    (0..REPLICAS).filter(|at| plan.rows[*at].is_some())
}

/// Memory nodes in the order in which their logs get the decision: first those that have the entry.
fn record_order(plan: &Plan) -> impl Iterator<Item = usize> {
    let there = reached(plan);
    let has_it = |at: &usize| is_named(plan, *at).is_some();
    there.clone().filter(has_it).chain(there.filter(move |at| !has_it(at)))
}

/// The transaction's entry on a memory node; `None` if it had none.
fn is_named(plan: &Plan, at: usize) -> Option<Entry> {
    plan.logs[at].filter(|entry| entry.txn(0) == plan.entry.txn(0))
}

fn record(state: &mut State, of: usize, plan: Plan, next: u8) -> Option<Recoverer> {
    let at = record_order(&plan).nth(usize::from(next))?;
    let memory = &mut state.memory[at];
    let recorded = Entry { verdict: plan.verdict, ..plan.entry };
    let undecided = Entry { verdict: Verdict::Undecided, ..plan.entry };
    let from = is_named(&plan, at).map_or(plan.logs[at], |_| Some(undecided));
    let now = memory.logs[of];
    if memory.lost || now != from && now != Some(recorded) {
        return Some(Recoverer::ReadLogs);
    }
    memory.logs[of] = Some(recorded);
    Some(Recoverer::Act(plan, Stage::Record(next + 1)))
}

/// Verdict from which a log is swapped to done; `None` if it is not swapped.
fn finish_from(plan: &Plan, at: usize) -> Option<Verdict> {
    plan.rows[at]?;
    match plan.verdict {
        Verdict::Done => is_named(plan, at).map(|entry| entry.verdict),
        verdict => Some(verdict),
    }
}

fn finish(state: &mut State, of: usize, plan: Plan, stage: Stage, at: usize) -> Option<Recoverer> {
    let Stage::Finish(mut done) = stage else { return Some(Recoverer::ReadLogs) };
    let from = finish_from(&plan, at)?;
    if state.memory[at].lost {
        return Some(Recoverer::ReadLogs);
    }
    // If no decision was recorded here, there may be no entry, which counts as done.
    if let Some(log) = &mut state.memory[at].logs[of] {
        let same = log.txn(of) == plan.entry.txn(of);
        if !same || log.verdict != from && log.verdict != Verdict::Done {
            return Some(Recoverer::ReadLogs);
        }
        log.verdict = Verdict::Done;
    }
    done[at] = true;
    Some(Recoverer::Act(plan, Stage::Finish(done)))
}
