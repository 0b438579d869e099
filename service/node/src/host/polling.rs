//! Waiting for a condition that has no notification: the condition is polled.

use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;

/// Interval of polling.
pub const PAUSE: Duration = Duration::from_millis(20);

/// Polls until `holds` returns true, for at most `patience`. Returns the last result of `holds`.
pub fn wait_until(env: &Env, patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let mut executor = Executor::new(env.clone());
    let handle = executor.handle().clone();
    executor.run(async move {
        let deadline = handle.now().after(patience);
        while !holds() {
            if handle.now() >= deadline {
                return false;
            }
            handle.sleep(PAUSE).await;
        }
        true
    })
}
