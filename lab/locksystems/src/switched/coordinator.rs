//! The steps of a recovery (FissLock §5.3), for a coordinator chosen by the membership.
//!
//! Every recovery has a larger epoch than all recoveries before, unfinished ones included; no two
//! coordinators use the same epoch. Every step may be repeated, and a step of an earlier epoch has
//! no effect. A coordinator that dies is therefore replaced by a coordinator with a later epoch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use RecoveryError::Overtaken;
use lotus_fabric::ids::Epoch;
use lotus_fabric::rpc::{PendingCall, RetryPolicy, Rpc, RpcError};
use lotus_locks::Peers;
use thiserror::Error;

use super::agent::SERVICE;
use super::control::{ControlRequest, Progress};
use super::pages::{Added, Assembly, MOST_BYTES, Page, pages_of};
use super::places::{Places, control_lane};
use crate::fisslock::recovery::{MachineReport, concerning, metadata, restore};
use crate::fisslock::report::{Locks, decode_report, encode_locks, encode_switch};

/// Reason why a recovery was not finished. The machines stand still until another recovery
/// finishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// A machine does not answer. Begin again, without the machine if it is lost.
    #[error("machine {0} does not answer: {1}")]
    Machine(u8, RpcError),
    /// The switch of a rack does not answer. Begin again when the switch does.
    #[error("the switch of rack {0} does not answer: {1}")]
    Switch(u8, RpcError),
    /// A later recovery has begun, or a switch was lost in the meantime.
    #[error("a later recovery has begun, or a switch was lost meanwhile")]
    Overtaken,
}

/// A finished recovery: its duration up to the moment when every survivor had resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// Number of locks held after the recovery.
    pub locks: usize,
    /// Time until the switches had reported their lives, and every survivor had stopped and
    /// reported (S1).
    pub reporting: Duration,
    /// Time from the end of `reporting` until the switches were rewritten (S3).
    pub rewriting: Duration,
    /// Time from the end of `rewriting` until the last survivor had resumed (S2).
    pub resuming: Duration,
}

impl Recovered {
    /// Returns the duration of the whole recovery.
    pub fn took(&self) -> Duration {
        self.reporting + self.rewriting + self.resuming
    }
}

/// Recovers from the loss of machines, of switches, or of both: every survivor stops and reports,
/// every switch is rewritten, and the survivors resume in a new epoch. Locks held only by lost
/// machines are then free, or granted to their waiters. No machine is stopped while a switch is
/// silent.
///
/// Long contents travel in pages of one datagram, 16 in flight at a time. Switches and machines act
/// once they have every page. A switch is told only which of its locks are held, and a machine only
/// of the locks that concern it. A report, and the answer to a machine, may have at most 256 MiB,
/// about ten million requests.
///
/// Lost machines must no longer be able to act on the data protected by the locks; the switch drops
/// their packets from then on. A lost machine does not return under its number: the machine takes a
/// number never used before, opens new lanes, and joins as a survivor of a recovery.
///
/// The lane of `rpc` has to be known to the receivers as a coordinator's lane: the control lane of
/// a machine ([`AgentProgram::control`](super::AgentProgram::control)), or the lane of
/// [`Places::with_coordinator`]. Requests from other lanes get no answer.
///
/// # Errors
/// [`RecoveryError`].
///
/// # Panics
/// If a survivor is not a machine of `places`.
pub async fn recover(
    rpc: &Rpc,
    places: &Places,
    epoch: u32,
    survivors: &[u8],
    patience: RetryPolicy,
) -> Result<Recovered, RecoveryError> {
    let recovery = Recovery { rpc, places, epoch, survivors, patience };
    let executor = rpc.lane().executor();
    let began = executor.now();
    let lives = recovery.lives().await?;
    let reports = recovery.reports().await?;
    let reported = executor.now();
    let locks = restore(&reports);
    drop(reports);
    recovery.rewrite(&lives, &locks).await?;
    let rewritten = executor.now();
    recovery.resume(&locks).await?;
    Ok(Recovered {
        locks: locks.len(),
        reporting: reported.since(began),
        rewriting: rewritten.since(reported),
        resuming: executor.now().since(rewritten),
    })
}

/// Maximum number of pages in flight.
const AT_A_TIME: usize = 16;

/// Lives of the switches, by which a switch that has restarted in the meantime is recognised.
type Lives = BTreeMap<Recipient, u64>;

/// A recovery in progress.
struct Recovery<'a> {
    rpc: &'a Rpc,
    places: &'a Places,
    epoch: u32,
    survivors: &'a [u8],
    patience: RetryPolicy,
}

/// Recipient of the coordinator's requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Recipient {
    /// The switch of a rack.
    Switch(u8),
    Machine(u8),
}

impl Recipient {
    const fn silent(self, why: RpcError) -> RecoveryError {
        match self {
            Self::Switch(rack) => RecoveryError::Switch(rack, why),
            Self::Machine(machine) => RecoveryError::Machine(machine, why),
        }
    }
}

impl Recovery<'_> {
    fn ask(&self, to: Recipient, request: &ControlRequest) -> (Recipient, PendingCall) {
        let at = match to {
            Recipient::Switch(rack) => self.places.switch(rack),
            Recipient::Machine(machine) => self.places.agent(machine),
        };
        let request = request.encode();
        (to, self.rpc.call(control_lane(at), SERVICE, &request, self.patience))
    }

    /// Awaits the answers to the requests sent by an iterator, with `at_a_time` requests in flight.
    async fn answers(
        &self,
        at_a_time: usize,
        mut requests: impl Iterator<Item = (Recipient, PendingCall)>,
        mut note: impl FnMut(Recipient, &[u8]) -> Result<(), RecoveryError>,
    ) -> Result<(), RecoveryError> {
        let mut under_way = VecDeque::new();
        loop {
            while under_way.len() < at_a_time
                && let Some(asked) = requests.next()
            {
                under_way.push_back(asked);
            }
            let Some((to, call)) = under_way.pop_front() else { return Ok(()) };
            note(to, &call.await.map_err(|why| to.silent(why))?)?;
        }
    }

    /// Stops the survivors, all at once, and fetches their reports (S1).
    async fn reports(&self) -> Result<Vec<MachineReport>, RecoveryError> {
        let ask = |to, page| self.ask(to, &ControlRequest::Stop { epoch: self.epoch, page });
        let mut reports = Reports::default();
        let mut pages = BTreeMap::new();
        let stop = self.survivors.iter().map(|&machine| ask(Recipient::Machine(machine), 0));
        self.answers(self.survivors.len(), stop, |to, answer| {
            let page = Page::decode(answer).ok_or(Overtaken)?;
            pages.insert(to, page.pages);
            reports.add(to, page)
        })
        .await?;
        let further = turns(&pages, 1).map(|(to, page)| ask(to, page));
        self.answers(AT_A_TIME, further, |to, answer| {
            reports.add(to, Page::decode(answer).ok_or(Overtaken)?)
        })
        .await?;
        Ok(reports.whole)
    }

    /// Fetches the lives of every switch. Machines are not stopped while a switch is silent.
    async fn lives(&self) -> Result<Lives, RecoveryError> {
        let mut lives = Lives::new();
        let racks = (0..self.places.racks()).map(Recipient::Switch);
        let asks = racks.map(|switch| self.ask(switch, &ControlRequest::Life));
        self.answers(usize::from(self.places.racks()), asks, |switch, life| {
            let life = u64::from_le_bytes(life.try_into().map_err(|_| Overtaken)?);
            lives.insert(switch, life);
            Ok(())
        })
        .await?;
        Ok(lives)
    }

    /// Rewrites every switch (S3), in the life that the switch had when the recovery began.
    async fn rewrite(&self, lives: &Lives, locks: &Locks) -> Result<(), RecoveryError> {
        let all = 0..self.places.machines() as u8;
        let dead: Vec<_> = all.filter(|machine| !self.survivors.contains(machine)).collect();
        let mut own: BTreeMap<Recipient, BTreeMap<_, _>> =
            lives.keys().map(|switch| (*switch, BTreeMap::new())).collect();
        for (lock, state) in metadata(locks) {
            own.entry(Recipient::Switch(self.places.home(lock))).or_default().insert(lock, state);
        }
        let told = own.iter().map(|(switch, locks)| (*switch, encode_switch(&dead, locks)));
        self.tell(&told.collect(), |switch, page| {
            let life = lives.get(&switch).copied().unwrap_or_default();
            ControlRequest::Rewrite { epoch: self.epoch, life, page }
        })
        .await
    }

    /// Makes the survivors resume (S2).
    async fn resume(&self, locks: &Locks) -> Result<(), RecoveryError> {
        let told = |&machine: &u8| {
            (Recipient::Machine(machine), encode_locks(&concerning(machine, locks)))
        };
        let told = self.survivors.iter().map(told).collect();
        self.tell(&told, |_, page| ControlRequest::Resume { epoch: self.epoch, page }).await
    }

    /// Sends every recipient its contents in pages, until every recipient has every page.
    async fn tell(
        &self,
        told: &BTreeMap<Recipient, Vec<u8>>,
        request: impl Fn(Recipient, Page) -> ControlRequest,
    ) -> Result<(), RecoveryError> {
        let pages = told.iter().map(|(to, told)| (*to, pages_of(told))).collect();
        let requests = turns(&pages, 0).filter_map(|(to, number)| {
            Some(self.ask(to, &request(to, Page::of(&told[&to], number)?)))
        });
        let mut waits_for: BTreeSet<_> = told.keys().copied().collect();
        self.answers(AT_A_TIME, requests, |to, answer| {
            if check(answer)? {
                waits_for.remove(&to);
            }
            Ok(())
        })
        .await?;
        waits_for.is_empty().then_some(()).ok_or(Overtaken)
    }
}

/// Reports under assembly; pages come in any order.
#[derive(Default)]
struct Reports {
    begun: BTreeMap<Recipient, Assembly>,
    whole: Vec<MachineReport>,
}

impl Reports {
    /// Adds a page of a machine's report.
    fn add(&mut self, to: Recipient, page: Page) -> Result<(), RecoveryError> {
        let begun = self.begun.entry(to);
        match begun.or_insert_with(|| Assembly::of_at_most(MOST_BYTES)).add(page) {
            Added::Kept => Ok(()),
            Added::Refused => Err(Overtaken),
            Added::Whole(bytes) => {
                let is_its = |report: &MachineReport| Recipient::Machine(report.machine) == to;
                let report = decode_report(&bytes).filter(is_its);
                self.whole.push(report.ok_or(Overtaken)?);
                Ok(())
            }
        }
    }
}

/// Iterates over the pages numbered `from` and up, taking turns among the recipients that still
/// have pages.
fn turns(pages: &BTreeMap<Recipient, u32>, from: u32) -> impl Iterator<Item = (Recipient, u32)> {
    let most = pages.values().copied().max().unwrap_or(0);
    (from..most).flat_map(move |number| {
        let have = pages.iter().filter(move |(_, pages)| number < **pages);
        have.map(move |(to, _)| (*to, number))
    })
}

/// Returns whether the request is carried out; otherwise, further pages are missing.
fn check(answer: &[u8]) -> Result<bool, RecoveryError> {
    match Progress::decode(answer) {
        Some(Progress::Done) => Ok(true),
        Some(Progress::Kept) => Ok(false),
        Some(Progress::Refused) | None => Err(Overtaken),
    }
}

/// Recovers from every loss of machines reported by the membership, for ever: checks for losses at
/// intervals of `every`, and repeats an unfinished recovery at a later check and in a later epoch.
/// (Machines that resumed in an epoch do not stop for the same epoch again.) One machine at a time
/// runs this function, on its agent's core
/// ([`AgentProgram::control`](super::AgentProgram::control)).
///
/// A member counts as settled only when the member can no longer act on the data protected by the
/// locks. Expelled members still listed by `peers` count as survivors, so `peers` has to drop them
/// when reporting the loss.
///
/// The epochs of further tries are not the membership's. No other coordinator may therefore exist,
/// during this call or after it. Where coordinators are replaced, call [`recover`] with epochs
/// drawn from a source common to every coordinator.
///
/// `note` is called for every finished recovery, with the time since the check that found the loss;
/// that time includes unfinished recoveries.
pub async fn recover_losses(
    rpc: &Rpc,
    places: &Places,
    peers: &dyn Peers,
    every: Duration,
    patience: RetryPolicy,
    mut note: impl FnMut(Recovered, Duration),
) {
    let executor = rpc.lane().executor().clone();
    let (mut recovered, mut found) = (Epoch(0), None);
    let (mut tried, mut finished) = (0_u32, 0_u32);
    loop {
        executor.sleep(every).await;
        let lost = peers.last_loss();
        if lost <= recovered {
            continue;
        }
        let found_at = *found.get_or_insert(executor.now());
        let Some((epoch, members)) = peers.members().await else { continue };
        let is_left =
            |machine: &u8| members.iter().any(|member| member.node == places.agent(*machine).node);
        // At most 255 machines exist.
        let survivors: Vec<u8> = (0..places.machines() as u8).filter(is_left).collect();
        tried = epoch.0.max(tried + 1);
        // Packets of the last epoch may be in flight, and epochs in packets differ by their low
        // bytes only.
        if tried as u8 == finished as u8 && tried != finished {
            tried += 1;
        }
        if let Ok(over) = recover(rpc, places, tried, &survivors, patience).await {
            (recovered, found, finished) = (lost, None, tried);
            note(over, executor.now().since(found_at));
        }
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;
    use crate::fisslock::packet::Participant;
    use crate::fisslock::recovery::Granted;
    use crate::fisslock::report::encode_report;
    use lotus_locks::word::Mode;

    fn report(machine: u8, locks: u32) -> MachineReport {
        let who = Participant { machine, task: 1, nonce: 1 };
        let of = |lock| (lock, who, Mode::Exclusive, Granted::Holds);
        MachineReport { machine, agents: Vec::new(), requests: (0..locks).map(of).collect() }
    }

    #[test]
    fn machines_take_turns_until_none_has_further_pages() {
        let pages =
            [(1, 1), (4, 3), (7, 2)].map(|(of, pages)| (Recipient::Machine(of), pages)).into();
        let all: Vec<_> = turns(&pages, 0).collect();
        let expected = [(1, 0), (4, 0), (7, 0), (4, 1), (7, 1), (4, 2)];
        assert_eq!(all, expected.map(|(of, page)| (Recipient::Machine(of), page)));
        assert_eq!(turns(&pages, 1).collect::<Vec<_>>(), all[3..]);
        assert_eq!(turns(&BTreeMap::new(), 0).count(), 0);
    }

    #[test]
    fn reports_are_whole_when_all_of_their_pages_have_come() {
        let (mut reports, all) = (Reports::default(), [report(1, 1_000), report(2, 500)]);
        let bytes = [encode_report(&all[0]), encode_report(&all[1])];
        let of = [&bytes[0], &bytes[1]].map(|bytes| pages_of(bytes));
        assert_eq!(of, [4, 2]);
        for (machine, number) in [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (1, 3)] {
            assert!(reports.whole.len() < 2);
            let page = Page::of(&bytes[usize::from(machine) - 1], number).expect("it has it");
            assert_eq!(reports.add(Recipient::Machine(machine), page), Ok(()));
        }
        reports.whole.sort_by_key(|report| report.machine);
        assert_eq!(reports.whole, all);
    }

    #[test]
    fn reports_of_others_and_garbage_are_refused() {
        let page = |bytes: &[u8]| Page::of(bytes, 0).expect("there is a first one");
        let mut reports = Reports::default();
        assert_eq!(
            reports.add(Recipient::Machine(2), page(&encode_report(&report(1, 1)))),
            Err(Overtaken)
        );
        assert_eq!(reports.add(Recipient::Machine(1), page(&[1])), Err(Overtaken));
        let mut long = page(&[1]);
        long.pages = u32::MAX;
        assert_eq!(reports.add(Recipient::Machine(3), long), Err(Overtaken));
    }
}
