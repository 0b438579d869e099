//! A machine stopped for a recovery: the machine's report, and the pages of the recovery's result.

use super::control::Progress;
use super::pages::{Added, Assembly, MOST_BYTES, Page};
use crate::fisslock::report::{Locks, decode_locks};

/// State of a machine from the stop in an epoch on. The state does not outlast the stop, so a page
/// of an earlier epoch is never taken for a page of this epoch.
#[derive(Debug)]
pub(super) struct StoppedMachine {
    epoch: u32,
    report: Vec<u8>,
    told: Assembly,
}

impl StoppedMachine {
    /// Creates the state of a stop, with the machine's report.
    pub(super) const fn of(epoch: u32, report: Vec<u8>) -> Self {
        Self { epoch, report, told: Assembly::of_at_most(MOST_BYTES) }
    }

    /// Epoch of the recovery.
    pub(super) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns a page of the report, if the report has so many.
    pub(super) fn page(&self, number: u32) -> Option<Page> {
        Page::of(&self.report, number)
    }

    /// Accepts a page of the locks that concern the machine. Returns the locks with the last page.
    pub(super) fn tell(&mut self, page: Page) -> Result<Locks, Progress> {
        match self.told.add(page) {
            Added::Kept => Err(Progress::Kept),
            Added::Refused => Err(Progress::Refused),
            Added::Whole(bytes) => decode_locks(&bytes).ok_or(Progress::Refused),
        }
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use std::time::Duration;

    use lotus_fabric::env::Nanos;
    use lotus_fabric::ids::{Endpoint, LaneId, NodeId};

    use super::*;
    use crate::fisslock::recovery::{concerning, restore};
    use crate::fisslock::report::{decode_report, encode_locks};
    use crate::switched::machine::Machine;
    use crate::switched::pages::pages_of;
    use crate::switched::{MachineLanes, Places, SwitchOptions};
    use lotus_locks::word::Mode;

    const NOW: Nanos = Nanos(0);
    /// Requests whose reports and answers are of several pages.
    const REQUESTS: u32 = 1_000;

    /// A machine with requests for locks.
    fn machine() -> Machine {
        let at = |node| Endpoint { node: NodeId(node), lane: LaneId(0) };
        let machine = MachineLanes { agent: at(1), clients: LaneId(2), cores: 1 };
        let places = Places::new(vec![at(0)], vec![machine], u64::from(REQUESTS)).expect("few");
        let machine = Machine::new(0, &places, SwitchOptions::repeating_after(Duration::ZERO));
        for lock in 0..REQUESTS {
            machine.ask(1, lock, Mode::Exclusive, NOW);
        }
        machine
    }

    fn report(machine: &Machine, epoch: u32) -> Vec<Page> {
        let first = machine.stop(epoch, 0).expect("it stops");
        let further = (1..first.pages).map(|page| machine.stop(epoch, page).expect("it has it"));
        std::iter::once(first.clone()).chain(further).collect()
    }

    /// Pages of what the machine is told after that report.
    fn told(report: &[Page]) -> Vec<Page> {
        let bytes: Vec<_> = report.iter().flat_map(|page| page.bytes.clone()).collect();
        let locks = restore(&[decode_report(&bytes).expect("a report")]);
        assert_eq!(locks.len(), REQUESTS as usize);
        let bytes = encode_locks(&concerning(0, &locks));
        (0..pages_of(&bytes)).filter_map(|number| Page::of(&bytes, number)).collect()
    }

    #[test]
    fn a_machine_reports_the_same_again_until_it_goes_on() {
        let machine = machine();
        let pages = report(&machine, 3);
        assert!(pages.len() > 1);
        assert_eq!(report(&machine, 3), pages);
        assert_eq!(machine.stop(3, pages.len() as u32), None, "it has no more");
        assert_eq!(machine.stop(2, 0), None, "an earlier recovery");
        assert_eq!(report(&machine, 4), pages, "nothing has happened");
        assert_eq!(machine.stop(3, 1), None, "a later recovery has begun");
        for page in told(&pages) {
            assert_ne!(machine.resume(4, page, NOW), Progress::Refused);
        }
        assert_eq!(machine.stop(4, 0), None, "it has gone on");
    }

    #[test]
    fn a_machine_goes_on_with_the_last_page_of_its_epoch() {
        let machine = machine();
        let pages = told(&report(&machine, 3));
        assert!(pages.len() > 2);
        let (last, others) = pages.split_last().expect("some");
        for page in others.iter().chain(others) {
            assert_eq!(machine.resume(3, page.clone(), NOW), Progress::Kept);
        }
        report(&machine, 4);
        assert_eq!(machine.resume(3, last.clone(), NOW), Progress::Refused, "an earlier one");
        assert_eq!(machine.resume(4, last.clone(), NOW), Progress::Kept, "all others are gone");
        for page in &others[1..] {
            assert_eq!(machine.resume(4, page.clone(), NOW), Progress::Kept);
        }
        assert_eq!(machine.resume(4, others[0].clone(), NOW), Progress::Done);
        assert_eq!(machine.resume(4, others[1].clone(), NOW), Progress::Done, "late");
        assert_eq!(machine.resume(5, last.clone(), NOW), Progress::Refused, "it has not stopped");
        assert_eq!(machine.in_use(), 2 * REQUESTS as usize, "agents, and holders");
    }
}
