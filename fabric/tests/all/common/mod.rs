//! What tests with processes of their own share.

use std::process::Child;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Stops a child with all its threads, and returns when the last of them stands still: until then
/// it may carry out what is asked of it after the signal.
pub fn stop(child: &Child) {
    signal(child, Signal::STOP);
    waitid(WaitId::Pid(Pid::from_child(child)), WaitIdOptions::STOPPED).expect("it is ours");
}

/// Lets a stopped child go on.
pub fn resume(child: &Child) {
    signal(child, Signal::CONT);
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it was not waited for");
}
