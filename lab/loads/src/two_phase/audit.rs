//! Audit of the locks when nothing runs.

use lotus_locks::{LockSpace, LockSystem as _};
use lotus_locksystems::local::Access;

use crate::lanes::{Findings, LaneClient};

/// Number of locks read in one batch.
const AUDITED: u64 = 256;

/// Reads every lock; returns the locks that are not free, or a sentence if they cannot be read.
pub(crate) async fn not_free<A: Access>(
    context: &LaneClient<A>,
    spaces: &[LockSpace],
) -> Result<Vec<String>, String> {
    let (system, mut findings) = (context.client().client().system(), Findings::default());
    for space in spaces {
        for first in (0..space.count()).step_by(AUDITED as usize) {
            let mut batch = context.lane().batch();
            let locks = first..space.count().min(first + AUDITED);
            let read = |lock| (lock, batch.read(space.object(lock), 16));
            let buffers: Vec<_> = locks.map(read).collect();
            let done = batch.post().await;
            let done = done.map_err(|error| format!("the locks cannot be read: {error}"))?;
            for (lock, words) in buffers {
                let [head, claim] = *done.words(words) else { unreachable!("two words") };
                if !system.is_unused([head, claim]) {
                    let place = format!("lock {lock} of node {}", space.object(lock).node().0);
                    findings.add(|| format!("{place} is not free: {head:#x}, {claim:#x}"));
                }
            }
        }
    }
    Ok(findings.told())
}
