//! What verbs and messages queue for: the servers of NICs, and links.
//!
//! A server takes one operation at a time, first come first served; a link is a server whose
//! operations take as long as their bytes. Each NIC has (DESIGN §9)
//!
//! * an *outbound* server for what its node issues, an *inbound* one for what others ask of it;
//! * one *atomic unit*, through which compare-and-swaps and fetch-and-adds go one by one;
//! * a link in each direction.
//!
//! What a server has been busy for is counted; the report is made of that.

use super::profile::Costs;
use super::queue::Picos;
use crate::verbs::VerbKind;

/// Something that serves one at a time.
#[derive(Clone, Copy, Default)]
pub(super) struct Server {
    free_at: Picos,
    busy: Picos,
}

impl Server {
    /// Takes in an operation that comes at `at` and takes `span`; returns when it begins.
    #[inline]
    pub(super) fn admit(&mut self, at: Picos, span: Picos) -> Picos {
        let start = at.max(self.free_at);
        self.free_at = start + span;
        self.busy += span;
        start
    }

    pub(super) fn busy(&self) -> Picos {
        self.busy
    }

    pub(super) fn forget_busy(&mut self) {
        self.busy = 0;
    }
}

/// Normal speed. A NIC or core at 300 percent takes three times as long.
pub(super) const NORMAL_PERCENT: u32 = 100;

#[inline]
pub(super) fn slowed(span: Picos, percent: u32) -> Picos {
    if percent == NORMAL_PERCENT { span } else { span * u64::from(percent) / 100 }
}

/// The NIC of one node.
#[derive(Clone)]
pub(super) struct Nic {
    pub(super) outbound: Server,
    pub(super) inbound: Server,
    pub(super) atomic_unit: Server,
    pub(super) sending: Server,
    pub(super) receiving: Server,
    /// How long everything takes, in percent of the profile.
    pub(super) percent: u32,
}

/// An operation on its way.
#[derive(Clone, Copy)]
pub(super) struct Service {
    /// When it begins, and takes effect.
    pub(super) start: Picos,
    pub(super) end: Picos,
}

impl Nic {
    pub(super) fn new() -> Self {
        let idle = Server::default();
        Self {
            outbound: idle,
            inbound: idle,
            atomic_unit: idle,
            sending: idle,
            receiving: idle,
            percent: NORMAL_PERCENT,
        }
    }

    /// Issues an operation that takes `service` and sends `transmission`; returns when its last
    /// bit leaves.
    #[inline]
    pub(super) fn issue(&mut self, at: Picos, service: Picos, transmission: Picos) -> Picos {
        let (service, transmission) = (self.scaled(service), self.scaled(transmission));
        let start = self.outbound.admit(at, service);
        let sent = self.sending.admit(start, transmission) + transmission;
        sent.max(start + service)
    }

    /// How long after the verb before it one follows on the same connection.
    #[inline]
    pub(super) fn gap(&self, service: Picos, transmission: Picos) -> Picos {
        self.scaled(service.max(transmission))
    }

    /// Takes in a request whose last bit comes at `at`.
    #[inline]
    pub(super) fn serve(
        &mut self,
        at: Picos,
        kind: VerbKind,
        payload: usize,
        costs: &Costs,
    ) -> Service {
        let carried = if kind == VerbKind::Write { payload } else { 0 };
        let received = self.receive(at, costs.transmission(carried));
        let service = self.scaled(costs.inbound.of(kind));
        let start = self.inbound.admit(received, service);
        match kind {
            VerbKind::Read | VerbKind::Write => Service { start, end: start + service },
            VerbKind::CompareAndSwap | VerbKind::FetchAndAdd => {
                let unit = self.scaled(costs.atomic_unit);
                let start = self.atomic_unit.admit(start, unit);
                Service { start, end: start + unit }
            }
        }
    }

    /// Takes in a datagram whose last bit comes at `at`; returns when it is placed.
    #[inline]
    pub(super) fn serve_message(&mut self, at: Picos, bytes: usize, costs: &Costs) -> Picos {
        let received = self.receive(at, costs.transmission(bytes));
        let service = self.scaled(costs.inbound.message);
        self.inbound.admit(received, service)
    }

    /// Takes `transmission` in from the link. The bits come while the sender sends them, so that
    /// an idle link delays nothing.
    #[inline]
    pub(super) fn receive(&mut self, last_bit: Picos, transmission: Picos) -> Picos {
        let transmission = self.scaled(transmission);
        self.receiving.admit(last_bit.saturating_sub(transmission), transmission) + transmission
    }

    /// Sends a reply that is ready at `at`; returns when its last bit leaves.
    #[inline]
    pub(super) fn reply(&mut self, at: Picos, transmission: Picos) -> Picos {
        let transmission = self.scaled(transmission);
        self.sending.admit(at, transmission) + transmission
    }

    #[inline]
    fn scaled(&self, span: Picos) -> Picos {
        slowed(span, self.percent)
    }

    pub(super) fn servers(&mut self) -> [&mut Server; 5] {
        [
            &mut self.outbound,
            &mut self.inbound,
            &mut self.atomic_unit,
            &mut self.sending,
            &mut self.receiving,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_serves_one_at_a_time_and_counts() {
        let mut server = Server::default();
        let starts = [(10, 5), (11, 5), (30, 5)].map(|(at, span)| server.admit(at, span));
        assert_eq!((starts, server.busy()), ([10, 15, 30], 15));
    }

    #[test]
    fn an_idle_link_adds_nothing_at_the_receiver_and_a_busy_one_queues() {
        let mut nic = Nic::new();
        assert_eq!(nic.receive(1000, 400), 1000);
        assert_eq!(nic.receive(1000, 400), 1400);
    }

    #[test]
    fn a_slow_nic_takes_longer() {
        let mut nic = Nic { percent: 250, ..Nic::new() };
        assert_eq!(nic.issue(0, 100, 10), 250);
        assert_eq!(nic.issue(0, 100, 10), 500);
    }
}
