//! Whether all data of a cluster of several processes is there.
//!
//! # What it is
//! The charter says that a cluster is made, with empty memory. Its founder then makes tables and
//! fills them, without locks, from a snapshot or otherwise. That all of it is done, or never will
//! be, is agreed on by one value at the authority that is written once:
//!
//! | `loaded` | means | is written by |
//! |---|---|---|
//! | nothing yet | the founder loads, or is dead | |
//! | `loaded` | the cluster may serve | the founder, when every row has landed |
//! | `cut short: …` | the data will never be whole | the founder, or whoever finds it gone |
//!
//! All processes wait for it before they serve, however they have come to their part. No snapshot
//! is taken without it. While the founder loads it counts up a second value, `loading`, so that the
//! others know for how long waiting makes sense.
//!
//! # If it stops anywhere
//! A founder that dies, is expelled, or says nothing for as long as the others are patient has its
//! load cut short by whichever process notices first. If it only stood still it finds that value
//! when it has come to its end: of the two one is written. What a paused founder writes meanwhile
//! lands where no one looks.
//!
//! # What it is not
//! A way to go on with half a load. Memory of a cluster that was cut short is of no use: end all
//! its nodes and start it again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lotus_fabric::env::{Env, Nanos};
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::Machines;
use lotus_points::point_here;
use lotus_recovery::Membership;
use lotus_recovery::membership::{self, FIRST_EPOCH};
use lotus_router::authority::Version;
use lotus_router::{Authority, AuthorityError};

use crate::cluster::Cluster;
use crate::error::ClusterError;
use crate::once::write_once;
use crate::shared::Shared;

const KEY: &str = "loaded";
const PROGRESS_KEY: &str = "loading";
const LOADED: &str = "loaded";
const CUT_SHORT: &str = "cut short: ";
/// How often the founder says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two looks at whether the founder has come to an end.
const PAUSE: Duration = Duration::from_millis(20);

/// What is known of a cluster's data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Data {
    /// The founder fills tables, or has not begun to.
    Loading {
        /// So many so far, as the founder has said last.
        rows: u64,
        /// When it said so: another version each time.
        said: Version,
    },
    /// All of it is there.
    Loaded,
    /// It never will be: the sentence says why.
    CutShort {
        /// Without a full stop.
        why: String,
    },
}

impl Data {
    /// What the authority says of it.
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
            // Whatever it is, it does not say that the data is whole.
            (other, None) => Self::CutShort { why: format!("the authority says \"{other}\"") },
        }
    }
}

/// The version of what the founder has said of its load, and how many rows it has filled in.
fn progress(authority: &dyn Authority) -> Result<(Version, u64), AuthorityError> {
    let Some(found) = authority.read(PROGRESS_KEY)? else { return Ok((Version::ABSENT, 0)) };
    let rows = found.value.try_into().map_or(0, u64::from_le_bytes);
    Ok((found.version, rows))
}

/// Says that the load is over before it was done, unless it was done.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub(crate) fn cut_short(authority: &dyn Authority, why: &str) -> Result<Data, AuthorityError> {
    let value = format!("{CUT_SHORT}{why}");
    write_once(authority, KEY, value.as_bytes()).map(|stands| Data::decode(&stands))
}

/// Waits for the founder to have loaded all data. Looks again and again, and cuts the load short
/// once the founder's life is over or it says nothing any more.
#[derive(Clone, Debug)]
pub struct LoadWatch {
    patience: Duration,
    /// When the authority answered last, or was first asked.
    answered: Option<Nanos>,
    /// The version of what the founder has said last, and since when that is known.
    said: Option<(Version, Nanos)>,
}

impl LoadWatch {
    /// For a founder, and an authority, that may be silent for `patience`.
    pub const fn new(patience: Duration) -> Self {
        Self { patience, answered: None, said: None }
    }

    /// What is known of the data now.
    ///
    /// # Errors
    /// `Authority`, if it has not answered for as long as it may be silent.
    pub fn look<M: Machines>(&mut self, cluster: &Cluster<M>) -> Result<Data, ClusterError> {
        let shared = &cluster.shared;
        if cluster.is_alone() {
            return Ok(Data::Loaded);
        }
        self.ask(shared.control.now(), shared.peers[0].id, shared.council.authority())
    }

    /// As [`Self::look`], at this time, of the cluster that `founder` has made.
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
                // The founder could not say anything either.
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
        // A life that has been taken in later has not founded the cluster.
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

/// Says again and again how far the load is, until it is dropped.
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
                        // Unanswered, it is said again with the next one.
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
            // Its panics are nobody's concern: the load has ended.
            let _ = thread.join();
        }
    }
}

fn say_progress(shared: &Shared) -> Result<Version, AuthorityError> {
    let authority = shared.council.authority();
    let rows = shared.rows_loaded.load(Ordering::Relaxed);
    let (version, _) = progress(authority)?;
    authority.compare_and_swap(PROGRESS_KEY, version, &rows.to_le_bytes())
}

impl<M: Machines> Cluster<M> {
    /// Has all data made: carries out `fill`, in the process that has founded the cluster, and lets
    /// all processes know that the data is there, or, if `fill` fails, that it never will be.
    ///
    /// # Errors
    /// `CutShort`: `fill` has failed, or another process took this one for dead meanwhile. The
    /// cluster is then of no use. `Authority`, if it does not answer: then [`LoadWatch`] tells.
    pub fn fill<T>(&self, fill: impl FnOnce() -> Result<T, String>) -> Result<T, ClusterError> {
        let refused = |why| ClusterError::CutShort { why };
        if self.is_alone() {
            return fill().map_err(refused);
        }
        let shared = &self.shared;
        // Outside of time nobody can tell how long nothing was said.
        let ticks = shared.control.is_in_time();
        let ticking = ticks.then(|| Ticking::start(shared, &self.machines().outside()));
        let ticking = ticking.transpose()?;
        let filled = fill();
        drop(ticking);
        let authority = shared.council.authority();
        let last_word = |word: &str| {
            let write = || write_once(authority, KEY, word.as_bytes());
            shared.ask(write).map(|stands| Data::decode(&stands))
        };
        let filled = match filled {
            Ok(filled) => filled,
            Err(why) => {
                // Unanswered, the others find out when this process has ended.
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

    /// Whether all data is there, as far as the authority says.
    ///
    /// # Errors
    /// It does not answer.
    pub fn data(&self) -> Result<Data, ClusterError> {
        match self.is_alone() {
            true => Ok(Data::Loaded),
            false => Ok(Data::read(self.shared.council.authority())?),
        }
    }
}

#[cfg(test)]
mod tests;
