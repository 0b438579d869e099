//! Servers of NICs and links, where verbs and messages queue.
//!
//! A server takes one operation at a time, first come first served; a link is a server with service
//! times proportional to bytes. A NIC has (`docs/simulation.md`)
//!
//! * an *outbound* server for operations that its node issues, an *inbound* server for operations
//!   from remote nodes;
//! * an *atomic unit*, which carries out compare-and-swaps and fetch-and-adds one by one, and,
//!   depending on the profile, holds up the inbound server meanwhile;
//! * depending on the profile, a server for each word, where atomics on the word queue; a 16-byte
//!   atomic queues at two servers;
//! * a link in each direction.
//!
//! For the report, servers sum up busy time, and NICs count served verbs.

use super::hot_words::HotWords;
use super::profile::{Atomics, Costs};
use super::queue::Picos;
use crate::contract::verbs::{VerbKind, WorkRequest};
use crate::run::utilisation::Served;

/// A server that takes one operation at a time.
#[derive(Clone, Copy, Default)]
pub(super) struct Server {
    free_at: Picos,
    busy: Picos,
}

impl Server {
    /// Queues an operation that arrives at `at` and takes `span`; returns the start of service.
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

    /// Returns the time at which the admitted operations have been served.
    pub(super) fn free_at(&self) -> Picos {
        self.free_at
    }

    /// Whether an operation that arrives at `at` begins at once.
    pub(super) fn is_free(&self, at: Picos) -> bool {
        self.free_at <= at
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
    pub(super) hot_words: HotWords,
    pub(super) sending: Server,
    pub(super) receiving: Server,
    /// Remote nodes' verbs served by the NIC.
    pub(super) served: Served,
    /// Duration of every operation, in percent of the profile.
    pub(super) percent: u32,
}

/// Time span in which the NIC serves an operation.
#[derive(Clone, Copy)]
pub(super) struct Service {
    /// Start of the service, when the operation takes effect.
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
            hot_words: HotWords::default(),
            sending: idle,
            receiving: idle,
            served: Served::default(),
            percent: NORMAL_PERCENT,
        }
    }

    /// Issues an operation that takes `service` and sends `transmission`; returns the departure of
    /// the last bit.
    #[inline]
    pub(super) fn issue(&mut self, at: Picos, service: Picos, transmission: Picos) -> Picos {
        let (service, transmission) = (self.scaled(service), self.scaled(transmission));
        let start = self.outbound.admit(at, service);
        let sent = self.sending.admit(start, transmission) + transmission;
        sent.max(start + service)
    }

    /// Time between two successive verbs on one connection.
    #[inline]
    pub(super) fn gap(&self, service: Picos, transmission: Picos) -> Picos {
        self.scaled(service.max(transmission))
    }

    /// Receives and serves a request whose last bit arrives at `at`.
    #[inline]
    pub(super) fn serve(&mut self, at: Picos, request: &WorkRequest, costs: &Costs) -> Service {
        let kind = request.kind();
        self.served.count(kind);
        let carried = if kind == VerbKind::Write { request.bytes() } else { 0 };
        let received = self.receive(at, costs.transmission(carried));
        let service = self.scaled(costs.inbound.of(kind));
        match kind {
            VerbKind::Read | VerbKind::Write => {
                let start = self.inbound.admit(received, service);
                Service { start, end: start + service }
            }
            VerbKind::CompareAndSwap | VerbKind::FetchAndAdd => {
                self.serve_atomic(received, service, request, &costs.atomics)
            }
        }
    }

    /// Serves an atomic that was received at `at`, and takes `service` at the inbound server like
    /// any request.
    #[inline]
    fn serve_atomic(
        &mut self,
        at: Picos,
        service: Picos,
        request: &WorkRequest,
        atomics: &Atomics,
    ) -> Service {
        let wide = request.is_wide();
        let unit = self.scaled(if wide { atomics.wide_unit() } else { atomics.unit });
        let entered = match atomics.blocks_inbound {
            true => self.inbound.admit(at, service + unit) + service,
            false => self.inbound.admit(at, service),
        };
        let mut start = self.atomic_unit.admit(entered, unit);
        if let Some(span) = atomics.same_address {
            let span = self.scaled(span);
            start = match wide {
                true => self.hot_words.admit_wide(request.addr, start, span),
                false => self.hot_words.admit(request.addr, start, span),
            };
        }
        Service { start, end: start + unit }
    }

    /// Receives a datagram whose last bit arrives at `at`; returns the time of placement.
    #[inline]
    pub(super) fn serve_message(&mut self, at: Picos, bytes: usize, costs: &Costs) -> Picos {
        let received = self.receive(at, costs.transmission(bytes));
        let service = self.scaled(costs.inbound.message);
        self.inbound.admit(received, service)
    }

    /// Receives `transmission` from the link; returns the arrival of the last bit. Receiving
    /// overlaps with sending, so an idle link adds no delay.
    #[inline]
    pub(super) fn receive(&mut self, last_bit: Picos, transmission: Picos) -> Picos {
        let transmission = self.scaled(transmission);
        self.receiving.admit(last_bit.saturating_sub(transmission), transmission) + transmission
    }

    /// Sends a reply that is ready at `at`; returns the departure of the last bit.
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
