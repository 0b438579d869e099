//! Agreement on whether all data of a cluster of several processes is loaded.
//!
//! # What it is
//! The charter says that a cluster is founded, with empty memory. The founder then creates tables
//! and fills them, without locks, from a snapshot or otherwise. A write-once value at the authority
//! says that all data is loaded, or never will be:
//!
//! | `loaded` | means | is written by |
//! |---|---|---|
//! | nothing yet | the founder loads, or is dead | |
//! | `loaded` | the cluster may serve | the founder, when every row has landed |
//! | `cut short: …` | the data will never be whole | the founder, or any other process |
//!
//! Every process waits for this value before serving, however it has got its part (I170), and no
//! snapshot is taken before (I172). During the load the founder counts up a second value,
//! `loading`, which tells the other processes how long waiting makes sense.
//!
//! # If it stops anywhere
//! If the founder dies, is expelled, or is silent for longer than the other processes' patience,
//! the first process that notices cuts the load short. A founder that only paused finds `cut short`
//! when it has finished: only one of the two values is ever written (I171). No process reads the
//! data that a paused founder writes to memory meanwhile.
//!
//! # What it is not
//! A way to go on with half a load. Memory of a cluster that was cut short is of no use: end all
//! nodes and start the cluster again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lotus_authority::Version;
use lotus_authority::{Authority, AuthorityError};
use lotus_fabric::env::{Env, Nanos};
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::NodeId;
use lotus_points::point_here;
use lotus_recovery::Membership;
use lotus_recovery::membership::{self, FIRST_EPOCH};

use crate::api::error::ClusterError;
use crate::cluster::handle::Cluster;
use crate::cluster::once::write_once;
use crate::membership::absent::{LOADED, LOADED_KEY as KEY};
use crate::node::shared::Shared;

const PROGRESS_KEY: &str = "loading";
const CUT_SHORT: &str = "cut short: ";
/// Interval at which the founder reports its progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between two checks for the end of the load.
const PAUSE: Duration = Duration::from_millis(20);

/// State of a cluster's data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Data {
    /// The founder fills tables, or has not begun yet.
    Loading {
        /// Rows loaded so far, as last reported by the founder.
        rows: u64,
        /// Version of the last report; changes with every report.
        said: Version,
    },
    /// All data is there.
    Loaded,
    /// The data will never be complete: the sentence says why.
    CutShort {
        /// The reason, without a full stop.
        why: String,
    },
}

impl Data {
    /// Reads the state from the authority.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn read(authority: &dyn Authority) -> Result<Self, AuthorityError> {
        match authority.read(KEY)? {
            Some(found) => Ok(Self::decode(&found.value)),
            None => {
                let (said, rows) = progress(authority)?;
                Ok(Self::Loading { rows, said })
            }
        }
    }

    fn decode(value: &[u8]) -> Self {
        let text = String::from_utf8_lossy(value);
        match (text.as_ref(), text.strip_prefix(CUT_SHORT)) {
            (LOADED, _) => Self::Loaded,
            (_, Some(why)) => Self::CutShort { why: why.to_owned() },
            // An unknown value must not count as `loaded`.
            (other, None) => Self::CutShort { why: format!("the authority says \"{other}\"") },
        }
    }
}

/// Reads the version of the founder's last progress report, and the number of rows loaded by then.
fn progress(authority: &dyn Authority) -> Result<(Version, u64), AuthorityError> {
    let Some(found) = authority.read(PROGRESS_KEY)? else { return Ok((Version::ABSENT, 0)) };
    let rows = found.value.try_into().map_or(0, u64::from_le_bytes);
    Ok((found.version, rows))
}

/// Declares the load cut short, unless the load has ended; returns the final state.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub(crate) fn cut_short(authority: &dyn Authority, why: &str) -> Result<Data, AuthorityError> {
    let value = format!("{CUT_SHORT}{why}");
    write_once(authority, KEY, value.as_bytes()).map(|stands| Data::decode(&stands))
}

/// Waits for the founder to load all data. Each check cuts the load short if the founder's life is
/// over or the founder has been silent for too long.
#[derive(Clone, Debug)]
pub struct LoadWatch {
    patience: Duration,
    /// Time of the authority's last answer, or of the first question.
    answered: Option<Nanos>,
    /// Version of the founder's last report, and the time when this process first saw it.
    said: Option<(Version, Nanos)>,
}

impl LoadWatch {
    /// Creates a watch that lets the founder, and the authority, be silent for up to `patience`.
    pub const fn new(patience: Duration) -> Self {
        Self { patience, answered: None, said: None }
    }

    /// Returns the current state of the data.
    ///
    /// # Errors
    /// `Authority`, if the authority has been silent for the patience of this watch.
    pub fn look(&mut self, cluster: &Cluster) -> Result<Data, ClusterError> {
        let shared = &cluster.shared;
        if cluster.is_alone() {
            return Ok(Data::Loaded);
        }
        self.ask(shared.control.now(), shared.peers[0].id, shared.async_authority.authority())
    }

    /// As [`Self::look`], at time `now`, for a cluster founded by `founder`.
    pub(crate) fn ask(
        &mut self,
        now: Nanos,
        founder: NodeId,
        authority: &dyn Authority,
    ) -> Result<Data, ClusterError> {
        let before = *self.answered.get_or_insert(now);
        match Data::read(authority).and_then(|data| self.judge(now, data, founder, authority)) {
            Ok(data) => {
                self.answered = Some(now);
                Ok(data)
            }
            Err(error) if now.since(before) >= self.patience => Err(error.into()),
            Err(_) => {
                // The founder could not report either.
                self.said = None;
                Ok(Data::Loading { rows: 0, said: Version::ABSENT })
            }
        }
    }

    fn judge(
        &mut self,
        now: Nanos,
        data: Data,
        founder: NodeId,
        authority: &dyn Authority,
    ) -> Result<Data, AuthorityError> {
        let Data::Loading { said: version, .. } = data else { return Ok(data) };
        // A later life of the founder's node has not founded the cluster.
        let founds = |members: &Membership| {
            let member = members.member(founder);
            member.is_some_and(|one| members.is_live(founder) && one.joined == FIRST_EPOCH)
        };
        if membership::read(authority).is_ok_and(|members| !founds(&members)) {
            return cut_short(authority, "compute node 0 was lost while it loaded");
        }
        match self.said {
            Some((said, since)) if said == version => {
                let silence = now.since(since);
                if silence >= self.patience {
                    let why = format!("compute node 0 has said nothing for {silence:.0?}");
                    return cut_short(authority, &why);
                }
            }
            _ => self.said = Some((version, now)),
        }
        Ok(data)
    }
}

/// Reports the progress of a load from a separate thread, until dropped.
struct Ticking {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticking {
    fn start(shared: &Arc<Shared>, env: &Env) -> Result<Self, ClusterError> {
        let over = Arc::new(AtomicBool::new(false));
        let (shared, ended, clock) = (Arc::clone(shared), Arc::clone(&over), env.clone());
        let tick = move || {
            let mut executor = Executor::new(clock);
            let handle = executor.handle().clone();
            executor.run(async move {
                let mut next = handle.now();
                while !ended.load(Ordering::Relaxed) {
                    if handle.now() >= next {
                        next = handle.now().after(PROGRESS_INTERVAL);
                        // Without an answer, the next report will do.
                        let _ = say_progress(&shared);
                    }
                    handle.sleep(PAUSE).await;
                }
            });
        };
        Ok(Self { over, thread: Some(env.spawn("lotus-loading", tick)?) })
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of this thread does not matter: the load has ended.
            let _ = thread.join();
        }
    }
}

fn say_progress(shared: &Shared) -> Result<Version, AuthorityError> {
    let authority = shared.async_authority.authority();
    let rows = shared.rows_loaded.load(Ordering::Relaxed);
    let (version, _) = progress(authority)?;
    authority.compare_and_swap(PROGRESS_KEY, version, &rows.to_le_bytes())
}

impl Cluster {
    /// Loads all data: runs `fill`, in the founder's process, and tells all processes that the data
    /// is complete, or, if `fill` fails, will never be.
    ///
    /// # Errors
    /// `CutShort`: `fill` has failed, or another process took this process for dead meanwhile. The
    /// cluster is unusable then. `Authority`, if the authority does not answer: then [`LoadWatch`]
    /// tells the outcome.
    pub fn fill<T>(&self, fill: impl FnOnce() -> Result<T, String>) -> Result<T, ClusterError> {
        let refused = |why| ClusterError::CutShort { why };
        if self.is_alone() {
            return fill().map_err(refused);
        }
        let shared = &self.shared;
        // If no time passes, no process can tell how long the founder was silent.
        let ticks = shared.control.is_in_time();
        let ticking = ticks.then(|| Ticking::start(shared, &self.machines().outside()));
        let ticking = ticking.transpose()?;
        let filled = fill();
        drop(ticking);
        let authority = shared.async_authority.authority();
        let last_word = |word: &str| {
            let write = || write_once(authority, KEY, word.as_bytes());
            shared.ask(write).map(|stands| Data::decode(&stands))
        };
        let filled = match filled {
            Ok(filled) => filled,
            Err(why) => {
                // Without an answer, the other processes notice the end of this process.
                let _ = last_word(&format!("{CUT_SHORT}{why}"));
                return Err(refused(why));
            }
        };
        point_here!(shared.peers[0].id.0, Filled);
        match last_word(LOADED)? {
            Data::CutShort { why } => Err(refused(why)),
            _ => {
                point_here!(shared.peers[0].id.0, DataAgreed);
                Ok(filled)
            }
        }
    }

    /// Returns the state of the data, as known to the authority.
    ///
    /// # Errors
    /// The authority does not answer.
    pub fn data(&self) -> Result<Data, ClusterError> {
        match self.is_alone() {
            true => Ok(Data::Loaded),
            false => Ok(Data::read(self.shared.async_authority.authority())?),
        }
    }
}

#[cfg(test)]
mod tests;
