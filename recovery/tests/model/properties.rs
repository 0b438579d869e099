//! Properties that must hold always, at rest, or in the end; and events that must be possible.
//!
//! # At rest
//! A state is *at rest* if no commit is under way and every expelled node is resolved. Then memory
//! shows which transactions took effect: the newest version of a row, the one that its writer had
//! replaced, and so on, are the row's *history*.
//!
//! # Readers
//! They are not modelled. A snapshot reads a version from the primary as soon as it is visible
//! there, so every version that was ever visible there counts as read.

use stateright::Property;

use crate::rules::World;
use crate::state::{
    AttemptOutcome, Entry, KEYS, NEWEST, NODES, Phase, Place, State, Txn, Verdict, newest,
};

/// H3, I120: a transaction that was reported as committed is in every row that it wrote.
pub const DURABLE: &str = "what was reported as committed is there";
/// I121: a transaction is in all of its rows, or in none.
pub const ATOMIC: &str = "a transaction takes effect in all of its rows or in none";
/// H12, H15, I122: at rest all replicas are alike.
pub const ALIKE: &str = "at rest all replicas are alike";
/// H3, I123: nothing that a snapshot may have read is undone.
pub const SHOWN_STAYS: &str = "nothing that was read is undone";
/// H17, I124: recoverers agree, in what they have recorded and in what they have done.
pub const AGREED: &str = "recoverers never decide differently";
/// H1, H4, I125: a tag stands under its writer's lock, or no owner grants the lock.
pub const LOCKED: &str = "an open transaction keeps its locks";
/// I126: recovery meets nothing that the protocol rules out.
pub const CONSISTENT: &str = "no recoverer meets a contradiction";
/// I127: at the end, when nothing can happen any more, nothing is in doubt, and no dead node holds
/// a lock.
pub const SETTLED: &str = "in the end nothing is in doubt or locked";
/// H4, I344: at the end every row's lock has an owner that takes part, if any node does.
pub const SERVED: &str = "in the end every lock is granted by somebody";

/// A recoverer makes a transaction visible.
pub const FORWARD: &str = "a transaction is sent forward";
/// A recoverer undoes a transaction.
pub const UNDONE: &str = "a transaction is undone";
/// A survivor has locked a row of the lost node.
pub const INHERITED: &str = "an heir locks a row";
/// A node that has returned reports a commit to a caller.
pub const RETURNED: &str = "a later life commits";

/// All properties, and the events that show that they do not hold of an empty state space only.
pub fn all() -> Vec<Property<World>> {
    vec![
        Property::always(DURABLE, |_, state| durable(state)),
        Property::always(ATOMIC, |_, state| {
            !at_rest(state) || txns(state).all(|t| atomic(state, t))
        }),
        Property::always(ALIKE, |_, state| !at_rest(state) || alike(state)),
        Property::always(SHOWN_STAYS, |_, state| shown_stays(state)),
        Property::always(AGREED, |_, state| agreed(state)),
        Property::always(LOCKED, |_, state| locked(state)),
        Property::always(CONSISTENT, |_, state: &State| !state.contradiction),
        Property::always(SETTLED, |world, state| settled(state) || !world.is_over(state)),
        Property::always(SERVED, |world, state| served(state) || !world.is_over(state)),
        Property::sometimes(FORWARD, |_, state| outcomes(state).any(|outcome| outcome.forward)),
        Property::sometimes(UNDONE, |_, state| outcomes(state).any(|outcome| outcome.back)),
        Property::sometimes(INHERITED, |_, state| inherited(state)),
        Property::sometimes(RETURNED, |_, state| later_lives(state).any(|outcome| outcome.told)),
    ]
}

/// Whether no commit is under way, and every expelled node is resolved.
fn at_rest(state: &State) -> bool {
    state.nodes.iter().zip(&state.recoveries).all(|(node, recovery)| {
        let commits = matches!(node.phase, Phase::Posted { .. });
        let is_dead = node.dead && node.place != Place::Free;
        if node.expelled { recovery.resolved } else { !is_dead && !commits }
    })
}

/// All attempts that have posted anything.
fn txns(state: &State) -> impl Iterator<Item = Txn> {
    let all = (0..NODES as u8).flat_map(Txn::all_of);
    all.filter(|txn| outcome(state, *txn).base.iter().any(|base| *base != 0))
}

fn outcome(state: &State, txn: Txn) -> AttemptOutcome {
    let lives = &state.outcomes[usize::from(txn.node)];
    lives[usize::from(txn.life)][usize::from(txn.attempt) - 1]
}

fn outcomes(state: &State) -> impl Iterator<Item = &AttemptOutcome> {
    state.outcomes.iter().flatten().flatten()
}

fn later_lives(state: &State) -> impl Iterator<Item = &AttemptOutcome> {
    state.outcomes.iter().flat_map(|lives| &lives[1..]).flatten()
}

fn inherited(state: &State) -> bool {
    let mut locks = state.locks.iter().enumerate();
    locks.any(|(key, lock)| usize::from(lock.owner) != key && lock.holder.is_some())
}

/// Versions of a row, the newest first, without the initial ones.
fn history(state: &State, key: usize) -> impl Iterator<Item = u8> {
    let (_, memory) = state.surviving().next().expect("one memory node is there");
    let before = move |time: &u8| {
        let writer = txns(state).find(|txn| outcome(state, *txn).time == *time)?;
        Some(outcome(state, writer).base[key])
    };
    std::iter::successors(Some(newest(&memory.rows[key])), before).take_while(|time| *time > NEWEST)
}

/// Whether a row's history contains the transaction, for each row that it has written.
fn rows_with(state: &State, txn: Txn) -> impl Iterator<Item = bool> {
    let outcome = outcome(state, txn);
    let written = (0..KEYS).filter(move |key| outcome.base[*key] != 0);
    written
        .map(move |key| outcome.time != 0 && history(state, key).any(|time| time == outcome.time))
}

fn atomic(state: &State, txn: Txn) -> bool {
    rows_with(state, txn).all(|there| there) || rows_with(state, txn).all(|there| !there)
}

fn durable(state: &State) -> bool {
    let rest = at_rest(state);
    let mut told = txns(state).filter(|txn| outcome(state, *txn).told);
    told.all(|txn| !outcome(state, txn).back && (!rest || rows_with(state, txn).all(|there| there)))
}

fn shown_stays(state: &State) -> bool {
    let rest = at_rest(state);
    let mut shown = txns(state).filter(|txn| outcome(state, *txn).shown);
    shown
        .all(|txn| !outcome(state, txn).back && (!rest || rows_with(state, txn).all(|there| there)))
}

fn alike(state: &State) -> bool {
    let mut rows = state.surviving().map(|(_, memory)| memory.rows);
    let first = rows.next();
    rows.all(|rows| Some(rows) == first)
}

fn agreed(state: &State) -> bool {
    let logs_agree = (0..NODES).all(|node| {
        let logs = || state.surviving().filter_map(move |(_, memory)| memory.logs[node]);
        let decided = |verdict: Verdict| matches!(verdict, Verdict::Back | Verdict::Forward(_));
        let decided = || logs().filter(move |entry| decided(entry.verdict));
        let name = |entry: Entry| (entry.life, entry.attempt);
        decided().all(|one| {
            decided().all(|other| name(one) != name(other) || one.verdict == other.verdict)
        })
    });
    logs_agree && txns(state).all(|txn| !(outcome(state, txn).forward && outcome(state, txn).back))
}

fn locked(state: &State) -> bool {
    state.surviving().all(|(_, memory)| {
        (0..KEYS).all(|key| {
            let lock = &state.locks[key];
            let served = !state.nodes[usize::from(lock.owner)].dead;
            let mut writers = memory.rows[key].iter().filter_map(|word| word.writer());
            !served || writers.all(|writer| lock.holder == Some(writer))
        })
    })
}

/// Whether no node has anything left to clean up. A commit that waits for a lost memory node is not
/// over, and keeps what it has.
fn settled(state: &State) -> bool {
    let waits = |node: usize| {
        let it = &state.nodes[node];
        let lost = state.memory.iter().any(|memory| memory.lost);
        lost && it.is_member() && !matches!(it.phase, Phase::Resting)
    };
    let is_now = |txn: Txn| state.nodes[usize::from(txn.node)].life == txn.life;
    let open = |txn: Txn| is_now(txn) && waits(usize::from(txn.node));
    let words = state.surviving().flat_map(|(_, memory)| memory.rows.iter().flatten());
    let in_doubt = words.filter_map(|word| word.writer()).any(|writer| !open(writer));
    let mut holders =
        state.locks.iter().filter(|lock| state.nodes[usize::from(lock.owner)].is_member());
    let locked = holders.any(|lock| lock.holder.is_some_and(|holder| !open(holder)));
    let resolved = |node: usize| state.recoveries[node].resolved || !state.nodes[node].expelled;
    !in_doubt && !locked && (0..NODES).all(resolved)
}

/// Whether every row's owner is a member, unless none is, or a commit waits for a lost memory node.
fn served(state: &State) -> bool {
    let rests = |phase: Phase| matches!(phase, Phase::Resting | Phase::Locking(_));
    let waits = || state.nodes.iter().any(|node| node.is_member() && !rests(node.phase));
    let owner = |key: usize| &state.nodes[usize::from(state.locks[key].owner)];
    let nobody = !state.nodes.iter().any(|node| node.is_member());
    nobody || waits() || (0..KEYS).all(|key| owner(key).is_member())
}
