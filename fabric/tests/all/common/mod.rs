//! Helpers of tests with processes of their own.

use std::process::Child;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Stops a child with all its threads, and returns when the last of them has stopped: until then it
/// may still carry out requests that come after the signal.
pub fn stop(child: &Child) {
    signal(child, Signal::STOP);
    waitid(WaitId::Pid(Pid::from_child(child)), WaitIdOptions::STOPPED).expect("it is ours");
}

/// Continues a stopped child.
pub fn resume(child: &Child) {
    signal(child, Signal::CONT);
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it was not waited for");
}
