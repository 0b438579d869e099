//! Wakes sleeping lanes: a thread that waits for a device's completion events.
//!
//! A busy lane polls and needs no events. A lane that is about to sleep requests the next event;
//! the events thread receives the event and wakes the lane's thread.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};

use super::ffi::{Context, EventChannel};
use crate::contract::transport::Wake;
use crate::run::env::Env;

/// Lanes to wake, by the queue's cookie.
type Sleepers = Mutex<BTreeMap<usize, Arc<dyn Wake>>>;

/// Handle of the thread that wakes a device's lanes.
pub(super) struct Events {
    channel: Arc<EventChannel>,
    sleepers: Arc<Sleepers>,
    /// Closed to end the thread.
    running: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Events {
    /// Starts the thread for one device.
    pub fn start(context: &Arc<Context>, env: &Env) -> io::Result<Self> {
        let channel = Arc::new(EventChannel::new(context)?);
        let sleepers = Arc::<Sleepers>::default();
        let (running, end) = UnixStream::pair()?;
        let (events, wakes) = (Arc::clone(&channel), Arc::clone(&sleepers));
        let thread = env.spawn("rdma-events", move || wake_sleepers(&events, &wakes, &end))?;
        Ok(Self { channel, sleepers, running: Some(running), thread: Some(thread) })
    }

    pub fn channel(&self) -> &Arc<EventChannel> {
        &self.channel
    }

    /// Wakes `sleeper` at events of the queue with this cookie from now on.
    pub fn add(&self, cookie: usize, sleeper: Arc<dyn Wake>) {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).insert(cookie, sleeper);
    }

    pub fn remove(&self, cookie: usize) {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).remove(&cookie);
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread only delays wakes: lanes sleep for a bounded time.
            let _ = thread.join();
        }
    }
}

/// Main loop of the thread; ends when the other end of `end` is closed.
fn wake_sleepers(events: &EventChannel, sleepers: &Sleepers, end: &UnixStream) {
    loop {
        let mut ready = [PollFd::new(events, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) if !ready[1].revents().is_empty() => return,
            Ok(_) => {}
        }
        let cookie = match events.take() {
            Ok(Some(cookie)) => cookie,
            // The event was withdrawn, because the queue is gone.
            Ok(None) => continue,
            Err(_) => return,
        };
        let sleeper = sleepers.lock().unwrap_or_else(PoisonError::into_inner).get(&cookie).cloned();
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }
}
