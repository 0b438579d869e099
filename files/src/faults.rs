//! Fault injection for tests: operations that fail on demand, and disks that lose unsynced data.
//!
//! [`Faulty`] carries out every operation on [`Disk`] and records it. One operation meets a
//! [`Fault`]; a run without a fault shows the operations of a piece of work ([`Faulty::done`]).

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskPart};
use crate::{Existing, Files, Readers, Unfinished};

/// An operation on files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// [`Files::make_directory`].
    MakeDirectory,
    /// [`Files::create`].
    Create,
    /// Writing to a file.
    Write,
    /// [`Unfinished::sync`].
    Sync,
    /// [`Unfinished::rename`].
    Rename,
    /// [`Files::sync_directory`].
    SyncDirectory,
    /// [`Files::remove`].
    Remove,
}

impl Op {
    /// The operations, in the order of writing a file.
    pub const ALL: [Self; 7] = [
        Self::MakeDirectory,
        Self::Create,
        Self::Write,
        Self::Sync,
        Self::Rename,
        Self::SyncDirectory,
        Self::Remove,
    ];
}

/// A fault of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The operation is refused, for lack of space or with an input/output error. A refused sync
    /// loses the unsynced data, and the next sync succeeds, as on Linux.
    Refused,
    /// A write takes half of its bytes, and the next operation is refused. Like [`Fault::Refused`]
    /// for operations that do not write.
    HalfRefused,
    /// A write takes half of its bytes, without further effect. Operations that do not write
    /// succeed.
    Half,
    /// The process dies before the operation.
    Killed,
    /// The machine loses power before the operation.
    PowerLost(Names),
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 6] = [
        Self::Refused,
        Self::HalfRefused,
        Self::Half,
        Self::Killed,
        Self::PowerLost(Names::Kept),
        Self::PowerLost(Names::Lost),
    ];
}

/// Fate of unsynced names in a power failure: a disk may keep or lose them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Names {
    /// The names are on the disk, regardless of the contents of the files.
    Kept,
    /// The directory is in the state of its last sync.
    Lost,
}

/// Files with a fault at one operation.
#[derive(Clone, Default)]
pub struct Faulty {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    done: Vec<Op>,
    /// Index of the faulty operation, from 0, and the fault.
    fault: Option<(usize, Fault)>,
    dead: bool,
    /// Files with unsynced bytes, and the number of their bytes on the disk.
    unsynced: BTreeMap<PathBuf, u64>,
    renamed: Vec<Renamed>,
    /// New directories with unsynced names.
    made: Vec<PathBuf>,
}

/// An unsynced rename.
struct Renamed {
    from: PathBuf,
    to: PathBuf,
    /// Contents of the replaced file `to`; `None` if there was no file.
    before: Option<Vec<u8>>,
}

/// Result of an operation without a refusal.
enum Verdict {
    Go,
    /// A write takes half of its bytes.
    Half,
}

impl Faulty {
    /// Files without a fault.
    pub fn sound() -> Self {
        Self::default()
    }

    /// Files with `fault` at operation `at`, counted from 0.
    pub fn at(at: usize, fault: Fault) -> Self {
        let state = State { fault: Some((at, fault)), ..State::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Operations requested so far, failed ones included.
    pub fn done(&self) -> Vec<Op> {
        self.lock().done.clone()
    }

    /// Makes the machine lose power now.
    ///
    /// # Panics
    /// If the files cannot be changed accordingly.
    pub fn lose_power(&self, names: Names) {
        self.lock().lose_power(names).expect("the test's own files can be changed");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meet(&self, op: Op) -> io::Result<Verdict> {
        self.lock().meet(op)
    }
}

fn dead() -> io::Error {
    io::Error::other("this process is dead")
}

impl State {
    fn meet(&mut self, op: Op) -> io::Result<Verdict> {
        if self.dead {
            return Err(dead());
        }
        let at = self.done.len();
        self.done.push(op);
        let Some((_, fault)) = self.fault.filter(|(when, _)| *when == at) else {
            return Ok(Verdict::Go);
        };
        let refused = match op {
            Op::MakeDirectory | Op::Create | Op::Write | Op::Rename => {
                io::ErrorKind::StorageFull.into()
            }
            Op::Sync | Op::SyncDirectory | Op::Remove => io::Error::other("input/output error"),
        };
        match (fault, op) {
            (Fault::Half, Op::Write) => Ok(Verdict::Half),
            (Fault::Half, _) => Ok(Verdict::Go),
            (Fault::HalfRefused, Op::Write) => {
                self.fault = Some((at + 1, Fault::Refused));
                Ok(Verdict::Half)
            }
            (Fault::Refused | Fault::HalfRefused, _) => Err(refused),
            (Fault::Killed, _) => {
                self.dead = true;
                Err(dead())
            }
            (Fault::PowerLost(names), _) => {
                self.lose_power(names)?;
                Err(dead())
            }
        }
    }

    fn lose_power(&mut self, names: Names) -> io::Result<()> {
        self.dead = true;
        for (path, synced) in std::mem::take(&mut self.unsynced) {
            // A removed file needs no change.
            if let Ok(file) = OpenOptions::new().write(true).open(path) {
                file.set_len(synced)?;
            }
        }
        for Renamed { from, to, before } in self.renamed.drain(..).rev() {
            if names == Names::Lost {
                fs::rename(&to, from)?;
                before.map_or(Ok(()), |before| fs::write(to, before))?;
            }
        }
        for made in self.made.drain(..).rev() {
            if names == Names::Lost {
                fs::remove_dir_all(made)?;
            }
        }
        Ok(())
    }

    /// Records a rename.
    fn follow(&mut self, renamed: Renamed) {
        if let Some(synced) = self.unsynced.remove(&renamed.from) {
            self.unsynced.insert(renamed.to.clone(), synced);
        }
        self.renamed.push(renamed);
    }
}

/// An unfinished file of a process that may die.
struct FaultyPart {
    /// `None` after the rename to the final name.
    inner: Option<DiskPart>,
    files: Faulty,
    synced: u64,
}

impl FaultyPart {
    fn inner(&mut self) -> io::Result<&mut DiskPart> {
        self.inner.as_mut().ok_or_else(dead)
    }
}

impl Files for Faulty {
    fn create(
        &self,
        directory: &Path,
        prefix: &str,
        readers: Readers,
    ) -> io::Result<Box<dyn Unfinished>> {
        self.meet(Op::Create)?;
        let inner = Some(DiskPart::create(directory, prefix, readers)?);
        Ok(Box::new(FaultyPart { inner, files: self.clone(), synced: 0 }))
    }

    fn make_directory(&self, directory: &Path) -> io::Result<()> {
        self.meet(Op::MakeDirectory)?;
        Disk.make_directory(directory)?;
        self.lock().made.push(directory.to_owned());
        Ok(())
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        self.meet(Op::SyncDirectory)?;
        Disk.sync_directory(directory)?;
        let mut state = self.lock();
        state.renamed.retain(|renamed| renamed.to.parent() != Some(directory));
        state.made.retain(|made| made.parent() != Some(directory));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.meet(Op::Remove)?;
        Disk.remove(path)
    }
}

impl Write for FaultyPart {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let some = match self.files.meet(Op::Write)? {
            Verdict::Go => bytes,
            Verdict::Half => &bytes[..bytes.len().div_ceil(2)],
        };
        let synced = self.synced;
        let inner = self.inner()?;
        let (path, written) = (inner.path().to_owned(), inner.write(some)?);
        self.files.lock().unsynced.insert(path, synced);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner()?.flush()
    }
}

impl Unfinished for FaultyPart {
    fn sync(&mut self) -> io::Result<()> {
        let path = self.inner()?.path().to_owned();
        if let Err(refused) = self.files.meet(Op::Sync) {
            let mut state = self.files.lock();
            if !state.dead && state.unsynced.remove(&path).is_some() {
                OpenOptions::new().write(true).open(&path)?.set_len(self.synced)?;
            }
            return Err(refused);
        }
        self.inner()?.sync()?;
        self.synced = fs::metadata(&path)?.len();
        self.files.lock().unsynced.remove(&path);
        Ok(())
    }

    fn rename(mut self: Box<Self>, to: &Path, existing: Existing) -> io::Result<()> {
        self.files.meet(Op::Rename)?;
        let inner = self.inner.take().ok_or_else(dead)?;
        let (from, before) = (inner.path().to_owned(), fs::read(to).ok());
        Box::new(inner).rename(to, existing)?;
        self.files.lock().follow(Renamed { from, to: to.to_owned(), before });
        Ok(())
    }
}

impl Drop for FaultyPart {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        if self.files.lock().dead {
            inner.leave();
        } else {
            self.files.lock().unsynced.remove(inner.path());
        }
    }
}
