//! Takes in completions and messages from the back end.

use std::sync::Arc;

use super::{Core, Deferred, Lane, Outcome, State};
use crate::contract::ids::Endpoint;
use crate::contract::transport::{Sink, Sleep, Token};
use crate::contract::verbs::{VerbError, Work};
use crate::run::exec::Driver;

pub(super) struct LaneDriver {
    pub(super) lane: Lane,
}

impl Driver for LaneDriver {
    #[inline]
    fn drive(&mut self) -> bool {
        let core = &*self.lane.core;
        // A handler may send, so both borrows end before the delivery of messages.
        let progress = {
            let mut transport = core.transport.borrow_mut();
            let state = &mut *core.state.borrow_mut();
            let mut sink = LaneSink { core, state, progress: false };
            transport.poll(&mut sink);
            while let Some((token, next)) = sink.state.next_with_room() {
                match next {
                    Deferred::Batch(work) => transport.post(token, work),
                    Deferred::Reconnect(node) => transport.reconnect(token, node),
                }
            }
            sink.progress
        };
        core.deliver();
        progress
    }

    fn has_input(&self) -> bool {
        self.lane.core.transport.borrow().has_input()
    }

    fn sleeper(&self) -> Option<Arc<dyn Sleep>> {
        self.lane.core.transport.borrow().sleeper()
    }
}

impl State {
    /// Takes the next waiting batch or reconnect, if there is room for its verbs now.
    #[inline]
    fn next_with_room(&mut self) -> Option<(Token, Deferred)> {
        let verbs = match &self.waiting.front()?.1 {
            Deferred::Batch(work) => work.verb_count(),
            Deferred::Reconnect(_) => 0,
        };
        if !self.has_room(verbs) {
            return None;
        }
        self.verbs_in_flight += verbs;
        self.waiting.pop_front()
    }
}

impl Core {
    /// Passes the received messages to the handler.
    #[inline]
    fn deliver(&self) {
        loop {
            let Some((from, bytes)) = self.messages.borrow_mut().inbound.pop_front() else {
                return;
            };
            if let Some(handler) = &mut *self.handler.borrow_mut() {
                handler(from, &bytes);
            }
            self.messages.borrow_mut().spare.push(bytes);
        }
    }
}

struct LaneSink<'a> {
    core: &'a Core,
    state: &'a mut State,
    progress: bool,
}

impl LaneSink<'_> {
    #[inline]
    fn finish(&mut self, token: Token, outcome: Outcome) {
        self.progress = true;
        match self.state.entries.finish(token, outcome) {
            Ok(Some(task)) => self.core.executor.wake(task),
            Ok(None) => {}
            Err(outcome) => self.discard(outcome),
        }
    }

    #[cold]
    fn discard(&mut self, outcome: Outcome) {
        if let Outcome::Batch(work) = outcome {
            self.state.pool.put_back(work);
        }
    }
}

impl Sink for LaneSink<'_> {
    #[inline]
    fn completed(&mut self, token: Token, work: Box<Work>) {
        self.state.verbs_in_flight -= work.verb_count();
        self.finish(token, Outcome::Batch(work));
    }

    fn reconnected(&mut self, token: Token, result: Result<(), VerbError>) {
        self.finish(token, Outcome::Reconnected(result));
    }

    fn message(&mut self, from: Endpoint, bytes: &[u8]) {
        self.progress = true;
        let messages = &mut *self.core.messages.borrow_mut();
        let mut copy = messages.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        messages.inbound.push_back((from, copy));
    }
}
