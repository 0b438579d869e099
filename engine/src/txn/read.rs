//! The execution phase: lock, find, read (LOTUS §5.1, phase 1).
//!
//! Every row advances by one READ per round: its CVT (at the cached address) or index bucket, then
//! the record that the CVT leads to, unless the record lies beside its cell and has come with the
//! CVT. One batch carries the READs of all rows, so a transaction takes as many round trips as its
//! slowest row. Pure functions of `lotus_mvcc` interpret a READ; this module calls them and carries
//! out the answers.

use lotus_fabric::lane::{Batch, Completed};
use lotus_locktable::{LockError, LockKey, LockRequest, LockService};
use lotus_mvcc::Timestamp;
use lotus_mvcc::acceptance::{Reject, accept_record};
use lotus_mvcc::index::{FreeSlot, Read, SearchStep};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::cvt::{Cvt, HEADER_WORDS};
use lotus_mvcc::layout::record::Record;
use lotus_mvcc::layout::region::PURGE_TIME_OFFSET;
use lotus_mvcc::visibility::{
    Candidate, LockedRow, Newest, Victim, Visible, locked, may_be_outdated, spare, visible_at,
};
use lotus_points::point;
use lotus_sabotage::{Rule, broken};
use zerocopy::IntoBytes;

use crate::api::config::ReadRule;
use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::txn::body::{Access, Body, Mode, Row, Target};
use crate::txn::fetch::{Fetch, Next, NextRead};
use crate::txn::retry::merge;
use crate::txn::slot::Slot;

#[cfg(feature = "sabotage")]
mod beside;
mod cached;

/// Limit of rereads of a row because of a concurrent writer; beyond it the attempt aborts as
/// retryable (H1).
const MAX_REREADS: u32 = 64;

/// Version of a row that a transaction reads.
#[derive(Clone, Copy)]
enum View {
    /// The newest version of a locked row; a version newer than the limit is a conflict (I10).
    Locked { limit: Timestamp },
    /// The newest version up to this timestamp; the row is not locked.
    Snapshot(Timestamp),
}

impl View {
    fn of(mode: Mode, access: Access, rule: ReadRule, snapshot: Option<Timestamp>) -> Self {
        let latest = Self::Locked { limit: Timestamp::MAX };
        let Some(snapshot) = snapshot else { return latest };
        match mode {
            Mode::Serializable if rule == ReadRule::Latest => latest,
            Mode::Serializable => Self::Locked { limit: snapshot },
            Mode::Snapshot if access != Access::Read => Self::Locked { limit: snapshot },
            Mode::Snapshot | Mode::ReadOnly => Self::Snapshot(snapshot),
        }
    }
}

impl Body {
    /// Locks and reads every row that is not yet executed.
    pub(crate) async fn execute(&mut self, slot: &Slot, mode: Mode) -> Result<(), TxnError> {
        let coordinator = &*slot.coordinator;
        for row in self.rows.iter().filter(|row| !row.executed) {
            if self.table(row.table).may_be_cached() {
                coordinator.node.versions.prefetch_row(row.table, row.key);
            }
        }
        self.list_locks(mode);
        if mode != Mode::ReadOnly {
            match self.rounds {
                0 => slot.refused.recall(&mut self.held, &mut self.wanted),
                _ => slot.refused.pass_over(&self.held, &mut self.wanted),
            }
        }
        if !self.wanted.is_empty() {
            let too_many =
                || TxnError::Misuse("a transaction takes locks in at most 65,535 rounds");
            self.rounds = self.rounds.checked_add(1).ok_or_else(too_many)?;
            let timeout = coordinator.shared.config.lock_timeout;
            let locks = &coordinator.locks;
            let granted = locks.acquire(&mut self.held, self.rounds, &self.wanted, timeout).await;
            granted.map_err(|error| self.refuse(slot, error))?;
            debug_assert!(!self.held.is_empty(), "I39: locks that were granted are held");
            point!(coordinator.node.id.0, LocksGranted);
            #[cfg(feature = "sabotage")]
            self.go_beside(coordinator)?;
            let mut caches = coordinator.caches.get();
            let all = self.wanted.len();
            caches.locks.count_all(all, locks.count_own(&self.held, all));
            coordinator.caches.set(caches);
        }
        self.start_fetches(coordinator, mode)?;
        if broken(Rule::SnapshotsComeFirst) && mode == Mode::ReadOnly {
            self.snapshot = Some(Box::pin(coordinator.timestamps.snapshot()).await?);
        }
        while !self.fetches.is_empty() {
            let mut batch = coordinator.lane.batch();
            self.post_reads(coordinator, mode, &mut batch);
            let posted = batch.post().await;
            slot.step();
            let done = match posted {
                Ok(done) => done,
                // Boxed, like all rare paths, to keep the future of the common path small.
                Err(error) => return Err(Box::pin(coordinator.after_failure(error)).await),
            };
            coordinator.configuration.check_epoch(self.epoch)?;
            let again = self.absorb(coordinator, mode, &done)?;
            drop(done);
            if again {
                // Let the writer proceed.
                coordinator.executor.yield_now().await;
                slot.step();
            }
            if self.fetches.iter().any(|fetch| matches!(fetch.wants, NextRead::Overflow { .. })) {
                self.grow_chains(&slot.coordinator).await?;
            }
        }
        debug_assert!(
            self.rows.iter().all(|row| row.executed),
            "I104: every row is read before the commit"
        );
        point!(coordinator.node.id.0, Read);
        Ok(())
    }

    /// Lists the locks that the rows to execute need. A serializable transaction also locks
    /// rows that are only read, among them absent rows (I25) and leaves of ranges (I282).
    fn list_locks(&mut self, mode: Mode) {
        self.wanted.clear();
        if mode == Mode::ReadOnly {
            return;
        }
        for row in self.rows.iter().filter(|row| !row.executed) {
            let name = LockKey::row(row.table, row.key);
            match row.access {
                Access::Read if mode == Mode::Snapshot || broken(Rule::ReadLocks) => {}
                Access::Read
                    if broken(Rule::RangesLockLeaves) && self.table(row.table).def.is_ordered() => {
                }
                Access::Read => self.wanted.push(LockRequest::read(name)),
                Access::Write | Access::Trim => self.wanted.push(LockRequest::write(name)),
                Access::Insert | Access::Purge => {
                    let tables = self.tables.as_ref().expect("a row was added");
                    let table = &tables[usize::from(row.table.0)].def;
                    let bucket = table.geometry().shape().bucket_key(row.key);
                    if !broken(Rule::AbsentRowsAreLocked) {
                        self.wanted.push(LockRequest::write(name));
                    }
                    let purge = row.access == Access::Purge;
                    let alone =
                        if purge { Rule::PurgesLockBuckets } else { Rule::BucketsAreLocked };
                    if !broken(alone) {
                        self.wanted.push(LockRequest::write(LockKey::bucket(row.table, bucket)));
                    }
                }
            }
        }
        if self.has_twins {
            merge(&self.held, &mut self.wanted);
        }
    }

    /// Remembers the attempt's locks for a retry, and returns its error.
    #[cold]
    fn refuse(&self, slot: &Slot, error: LockError) -> TxnError {
        if slot.coordinator.waits_for_locks() {
            let now = slot.coordinator.executor.recent();
            slot.refused.note(&self.held, &self.wanted, &error, now);
        }
        self.lock_error(error)
    }

    #[cold]
    fn lock_error(&self, error: LockError) -> TxnError {
        match error {
            LockError::Conflict(name) | LockError::WaitedTooLong(name) | LockError::Moved(name) => {
                self.conflict(&name)
            }
            LockError::Unowned(name) => self.unavailable(&name),
            LockError::Suspected(name) => self.suspected(&name),
            LockError::Full(_) => TxnError::LockTableFull,
            LockError::OwnBucketFull(_) => TxnError::TooManyLocks,
            LockError::Expelled => TxnError::Fenced,
            _ => TxnError::Timeout,
        }
    }

    fn start_fetches(&mut self, coordinator: &Coordinator, mode: Mode) -> Result<(), TxnError> {
        let mut fetches = std::mem::take(&mut self.fetches);
        // Remains of an earlier execution that was abandoned half-way.
        fetches.clear();
        self.lookups.clear();
        let mut caches = coordinator.caches.get();
        for index in 0..self.rows.len() {
            if self.rows[index].executed {
                continue;
            }
            let access = self.rows[index].access;
            let insert = access == Access::Insert;
            fetches.push(Fetch::of(index, insert));
            let fetch = fetches.last_mut().expect("one was added");
            // An insert must read the whole chain; purges and trims believe only memory.
            let may_be_cached = matches!(access, Access::Read | Access::Write)
                && self.table(self.rows[index].table).may_be_cached();
            let cached =
                may_be_cached && self.consult_cache(coordinator, mode, fetch, &mut caches)?;
            if !cached {
                let row = &self.rows[index];
                let tables = self.tables.as_ref().expect("a row was added");
                let table = &tables[usize::from(row.table.0)];
                let address = || table.addresses.lookup(row.table, row.key);
                fetch.cvt = if insert { None } else { address() }.unwrap_or(0);
                if !insert {
                    caches.addresses.count(fetch.cvt != 0);
                }
                if fetch.cvt == 0 {
                    fetch.search(table, row, &mut self.lookups);
                }
            }
        }
        debug_assert!(
            fetches.iter().all(|fetch| fetch.cvt != 0 || fetch.lookup.is_some()),
            "I9: each READ has an address, or a search for it"
        );
        self.fetches = fetches;
        coordinator.caches.set(caches);
        Ok(())
    }

    fn post_reads(&mut self, coordinator: &Coordinator, mode: Mode, batch: &mut Batch) {
        let tables = self.tables.as_ref().expect("a row was added");
        let placement = coordinator.placement();
        let stable = coordinator.lane.capabilities().stable_reads;
        for fetch in &mut self.fetches {
            let row = &self.rows[fetch.row];
            let primary = placement.replicas(row.group).primary();
            let unlocked = mode != Mode::Serializable && row.access == Access::Read;
            let may_be_cached = tables[usize::from(row.table.0)].may_be_cached();
            let table = &tables[usize::from(row.table.0)].def;
            fetch.before = match &fetch.wants {
                NextRead::Cvt | NextRead::Bucket(_) if may_be_cached => {
                    coordinator.node.versions.before(row.table, row.key)
                }
                _ => None,
            };
            fetch.buffer = match &fetch.wants {
                NextRead::Cvt => {
                    let (at, bytes) = (primary.at(fetch.cvt), table.cvt_words() * WORD_BYTES);
                    if unlocked && !stable && table.spec().is_inline() {
                        // On one connection: after the first READ.
                        fetch.second = Some(batch.read(at, bytes));
                    }
                    // No other transaction writes a locked row.
                    let read = if unlocked { Batch::read_stable } else { Batch::read };
                    Some(read(batch, at, bytes))
                }
                NextRead::Bucket(Read { offset, words }) => {
                    Some(batch.read_stable(primary.at(*offset), words * WORD_BYTES))
                }
                NextRead::Record(version) | NextRead::Successor(version) => {
                    let bytes = table.record_words(version.contents) * WORD_BYTES;
                    Some(batch.read(primary.at(version.record), bytes))
                }
                NextRead::Older(link) => {
                    Some(batch.read(primary.at(link.record), table.whole_record_bytes()))
                }
                NextRead::Overflow { .. } => None,
            };
            if let (NextRead::Record(_), Some(_)) = (&fetch.wants, &fetch.unconfirmed) {
                // On one connection: after the record.
                let bytes = table.cvt_words() * WORD_BYTES;
                fetch.second = Some(batch.read(primary.at(fetch.cvt), bytes));
            }
            let searching = matches!(fetch.wants, NextRead::Bucket(_));
            if fetch.wants_purge_time || (unlocked && searching) {
                fetch.purge_time = Some(batch.read(primary.at(PURGE_TIME_OFFSET), WORD_BYTES));
            }
        }
    }

    /// Absorbs one round of READs; returns whether a row must be read again because of a writer.
    fn absorb(
        &mut self,
        coordinator: &Coordinator,
        mode: Mode,
        done: &Completed,
    ) -> Result<bool, TxnError> {
        let mut fetches = std::mem::take(&mut self.fetches);
        let (mut again, mut left) = (false, 0);
        for index in 0..fetches.len() {
            match self.absorb_fetch(coordinator, mode, &mut fetches[index], done)? {
                Next::Done => {
                    self.rows[fetches[index].row].executed = true;
                    continue;
                }
                Next::Reread => again = true,
                Next::Read => {}
            }
            if left < index {
                fetches.swap(left, index);
            }
            left += 1;
        }
        fetches.truncate(left);
        self.fetches = fetches;
        Ok(again)
    }

    /// Absorbs one READ of the round.
    #[inline]
    fn absorb_fetch(
        &mut self,
        coordinator: &Coordinator,
        mode: Mode,
        fetch: &mut Fetch,
        done: &Completed,
    ) -> Result<Next, TxnError> {
        let Some(buffer) = fetch.buffer.take() else { return Ok(Next::Read) };
        let words = done.words(buffer);
        let purge_time = fetch.purge_time.take().map(|buffer| done.words(buffer)[0]);
        fetch.absent_since = purge_time.and_then(Timestamp::new);
        // Two equal READs of a CVT vouch for the words returned, and for nothing read later.
        let mut confirmed = false;
        let changed = match fetch.second.take().map(|second| done.words(second)) {
            Some(second) if matches!(fetch.wants, NextRead::Cvt) => {
                confirmed = second == words;
                !confirmed && !broken(Rule::HomesAreConfirmed)
            }
            second => second.is_some_and(|second| fetch.has_changed(second)),
        };
        let next = match fetch.wants {
            _ if changed => Next::Reread,
            NextRead::Record(version) => self.absorb_record(fetch, version, words)?,
            NextRead::Successor(version) => self.absorb_successor(fetch, version, words)?,
            NextRead::Older(link) => self.absorb_older(fetch, link, words)?,
            _ => self.absorb_index(coordinator, mode, fetch, words, confirmed)?,
        };
        if matches!(next, Next::Reread) {
            fetch.rereads += 1;
            if fetch.rereads > MAX_REREADS {
                let row = &self.rows[fetch.row];
                return Err(TxnError::InDoubt { table: row.table, key: row.primary_key.into() });
            }
        }
        Ok(next)
    }

    /// Absorbs the words of a CVT or bucket; `confirmed` as for [`Self::absorb_cvt`].
    #[inline]
    fn absorb_index(
        &mut self,
        coordinator: &Coordinator,
        mode: Mode,
        fetch: &mut Fetch,
        words: &[u64],
        confirmed: bool,
    ) -> Result<Next, TxnError> {
        let row = &self.rows[fetch.row];
        let tables = self.tables.as_ref().expect("a row was added");
        let table = &tables[usize::from(row.table.0)];
        let Some(lookup) = fetch.lookup.map(|index| &mut self.lookups[index]) else {
            // Read at a remembered address, which may by now contain another row's CVT or none.
            if words[..HEADER_WORDS] != table.def.header(row.name()).encode() {
                fetch.search(table, row, &mut self.lookups);
                return Ok(Next::Read);
            }
            let cvt = Cvt::new(words, table.def.cvt());
            self.keep_cached(coordinator, mode, fetch, cvt);
            return self.absorb_cvt(coordinator, mode, fetch, cvt, confirmed);
        };
        let claimed = |offset| !broken(Rule::ClaimsAreRemembered) && self.claims.contains(&offset);
        match lookup.absorb_except(words, claimed) {
            SearchStep::Read(read) => {
                fetch.wants = NextRead::Bucket(read);
                Ok(Next::Read)
            }
            SearchStep::Found { offset, words: range } => {
                if table.addresses.insert(row.table, row.key, offset) && lookup.is_in_fan() {
                    table.addresses.note_lost();
                }
                (fetch.cvt, fetch.lookup, fetch.wants) = (offset, None, NextRead::Cvt);
                let cvt = Cvt::new(&words[range], table.def.cvt());
                self.keep_cached(coordinator, mode, fetch, cvt);
                self.absorb_cvt(coordinator, mode, fetch, cvt, false)
            }
            SearchStep::Torn => {
                fetch.wants = NextRead::Bucket(lookup.restart());
                Ok(Next::Reread)
            }
            SearchStep::Absent { free, tail } if row.access == Access::Insert => match free {
                None => {
                    fetch.wants = NextRead::Overflow { tail, behind: lookup.behind() };
                    Ok(Next::Read)
                }
                // Noted as free before another insert of this transaction claimed it: search again.
                Some(free) if claimed(free.offset) => {
                    fetch.wants = NextRead::Bucket(lookup.restart());
                    Ok(Next::Read)
                }
                Some(free) => {
                    let absent_since = fetch.absent_since.unwrap_or_default();
                    if self.snapshot.is_some_and(|s| mode == Mode::Snapshot && s < absent_since) {
                        // The row was deleted and purged after the snapshot.
                        let (table, key) = (row.table, row.primary_key.into());
                        return Err(TxnError::Conflict { table, key });
                    }
                    let FreeSlot { offset, first_cell } = free;
                    let shape = table.def.cvt();
                    let target = Target::new_cvt(shape, offset, first_cell, absent_since);
                    self.claim(fetch.row, target)?;
                    Ok(Next::Done)
                }
            },
            SearchStep::Absent { .. } => {
                fetch.wants = NextRead::Bucket(lookup.restart());
                self.absent(coordinator, mode, fetch, words, false)
            }
        }
    }

    /// Claims the place of an insert's CVT. Fails with `KeyCollision` if another insert of this
    /// transaction has the same name and mark.
    pub(super) fn claim(&mut self, row: usize, target: Target) -> Result<(), TxnError> {
        debug_assert!(self.rows[row].access == Access::Insert, "I24: only an insert takes a CVT");
        let Row { table, key, mark, primary_key, .. } = self.rows[row];
        let same = |other: &Row| {
            let is_other = other.mark == mark && other.primary_key != primary_key;
            is_other && other.target.is_some_and(|target| target.new_cvt)
        };
        if self.index.find(&self.rows, table, key, same).is_some() {
            return Err(TxnError::KeyCollision { table, key: primary_key.into() });
        }
        self.claims.push(target.cvt);
        self.rows[row].target = Some(target);
        Ok(())
    }

    /// Version of the row that this transaction reads.
    #[inline]
    fn view(&self, coordinator: &Coordinator, mode: Mode, row: &Row) -> View {
        View::of(mode, row.access, coordinator.shared.config.read_rule, self.snapshot)
    }

    /// Absorbs the row's CVT. `confirmed`: two READs, one after the other, returned equal words, so
    /// all words stood side by side at one moment.
    #[inline]
    fn absorb_cvt(
        &mut self,
        coordinator: &Coordinator,
        mode: Mode,
        fetch: &mut Fetch,
        cvt: Cvt<'_>,
        confirmed: bool,
    ) -> Result<Next, TxnError> {
        let row = &self.rows[fetch.row];
        let snapshot = match self.view(coordinator, mode, row) {
            View::Locked { limit } => return self.absorb_locked(fetch, cvt, limit),
            View::Snapshot(snapshot) => snapshot,
        };
        match visible_at(cvt, snapshot) {
            // A deletion without a record: only the CVT attests it (I6).
            Visible::Version(version) if version.record == 0 => {
                self.absent(coordinator, mode, fetch, cvt.words(), confirmed)
            }
            Visible::Version(version) => {
                let stable = coordinator.lane.capabilities().stable_reads || confirmed;
                let certain = stable || !may_be_outdated(cvt, snapshot);
                match cvt.home_words(fetch.cvt, version.index, version.record) {
                    Some(words) if certain || broken(Rule::HomesAreConfirmed) => {
                        debug_assert!(fetch.cvt != 0, "I260: a home slot is part of its CVT");
                        return self.absorb_record(fetch, version, words);
                    }
                    Some(_) => {
                        // Reads the CVT twice in the next round.
                        fetch.wants = NextRead::Cvt;
                        return Ok(Next::Read);
                    }
                    None => {}
                }
                fetch.unconfirmed = (!certain).then(|| cvt.words().to_vec());
                fetch.wants = NextRead::Record(version);
                Ok(Next::Read)
            }
            Visible::Displaced(successor) => {
                fetch.wants = NextRead::Successor(successor);
                Ok(Next::Read)
            }
            Visible::NotFound => self.absent(coordinator, mode, fetch, cvt.words(), confirmed),
            Visible::TooOld => Err(row.too_old()),
            Visible::Undecided { .. } | Visible::Torn => Ok(Next::Reread),
        }
    }

    /// Absorbs the CVT of a locked row.
    #[inline]
    fn absorb_locked(
        &mut self,
        fetch: &mut Fetch,
        cvt: Cvt<'_>,
        limit: Timestamp,
    ) -> Result<Next, TxnError> {
        let shape = self.table(self.rows[fetch.row].table).def.cvt();
        let home = |index| shape.home(fetch.cvt, index);
        let row = &mut self.rows[fetch.row];
        let (table, key) = (row.table, &row.primary_key);
        let LockedRow { newest: found, victim } = locked(cvt);
        let Some(mut previous) = found.version() else {
            #[cfg(feature = "sabotage")]
            if self.is_beside {
                return self.absorb_beside(fetch, cvt, limit);
            }
            return row.undecided(found);
        };
        if previous > limit && !broken(Rule::FirstCommitterWins) {
            return Err(TxnError::Conflict { table, key: (*key).into() });
        }
        if previous == Timestamp::ZERO {
            previous = fetch.absent_since.unwrap_or_default();
        }
        if row.access == Access::Purge {
            self.freed.retain(|(index, _)| *index != fetch.row);
            let records = cvt.cells().flatten().map(|cell| cell.record).enumerate();
            let stays = |index| !broken(Rule::HomesStay) && home(index) != 0;
            let own = |(index, slot): &(usize, u64)| {
                *slot != 0 && !(stays(*index) && *slot == home(*index))
            };
            self.freed.extend(records.filter(own).map(|(_, slot)| (fetch.row, slot)));
        }
        if row.access != Access::Read {
            let taken = match row.access {
                Access::Trim => {
                    spare(cvt).and_then(|spare| Some((spare, cvt.cell(spare.index).ok()?)))
                }
                _ => victim,
            };
            let Some((Victim { index, successor }, cell)) = taken else {
                // Nothing to trim, or a torn CVT.
                let trims = row.access == Access::Trim;
                return Ok(if trims { Next::Done } else { Next::Reread });
            };
            if row.access == Access::Trim && cell.record == home(index) {
                // A home slot never becomes free memory.
                return Ok(Next::Done);
            }
            debug_assert!(fetch.cvt != 0, "I9: a row that was read has an address");
            row.target = Some(Target {
                cvt: fetch.cvt,
                cell_index: index,
                cell,
                home: home(index),
                slot: cell.record,
                successor,
                previous,
                predecessor: found.record(),
                new_cvt: false,
            });
        }
        match found {
            Newest::Version(_) if row.access == Access::Trim => Ok(Next::Done),
            // An insert reads the record too: only the record contains the whole primary key.
            Newest::Version(version) => {
                match cvt.home_words(fetch.cvt, version.index, version.record) {
                    Some(words) => self.absorb_record(fetch, version, words),
                    None => {
                        fetch.wants = NextRead::Record(version);
                        Ok(Next::Read)
                    }
                }
            }
            _ => {
                (row.value, row.writer) = (None, None);
                Ok(Next::Done)
            }
        }
    }

    /// Treats the row as absent, as `words` show. An absence has no record to vouch for it. If
    /// READs may be torn and no lock keeps writers away, two equal readings are needed; `confirmed`
    /// means that two readings agreed.
    #[cold]
    fn absent(
        &mut self,
        coordinator: &Coordinator,
        mode: Mode,
        fetch: &mut Fetch,
        words: &[u64],
        confirmed: bool,
    ) -> Result<Next, TxnError> {
        let row = &mut self.rows[fetch.row];
        let locked = mode == Mode::Serializable || row.access != Access::Read;
        let stable = coordinator.lane.capabilities().stable_reads || confirmed;
        let certain = locked || stable;
        if !certain && fetch.unconfirmed.as_deref() != Some(words) {
            fetch.unconfirmed = Some(words.to_vec());
            fetch.wants_purge_time = true;
            return Ok(Next::Reread);
        }
        if !locked {
            match fetch.absent_since {
                // The purge time is read after the words that show the absence, or in an extra
                // round.
                None => {
                    fetch.wants_purge_time = true;
                    return Ok(Next::Read);
                }
                Some(since) if Some(since) > self.snapshot => return Err(row.too_old()),
                Some(_) => {}
            }
        }
        (row.value, row.writer) = (None, None);
        Ok(Next::Done)
    }

    /// Absorbs the words of a record.
    #[inline]
    fn absorb_record(
        &mut self,
        fetch: &mut Fetch,
        version: Candidate,
        words: &[u64],
    ) -> Result<Next, TxnError> {
        let row = &self.rows[fetch.row];
        match accept_record(&row.expected(), version, words) {
            Ok(_) if row.access == Access::Insert => {
                Err(TxnError::AlreadyExists { table: row.table, key: row.primary_key.into() })
            }
            Ok(record) => {
                self.keep_value(fetch.row, &record, words);
                Ok(Next::Done)
            }
            Err(why) => self.rejected(fetch, why, words),
        }
    }

    /// Reads the CVT again, because its record does not match the row at this moment.
    #[cold]
    pub(crate) fn rejected(
        &self,
        fetch: &mut Fetch,
        why: Reject,
        words: &[u64],
    ) -> Result<Next, TxnError> {
        let row = &self.rows[fetch.row];
        match row.collision(&self.table(row.table).def, why, words) {
            Some(collision) => Err(collision),
            None => {
                fetch.wants = NextRead::Cvt;
                Ok(Next::Reread)
            }
        }
    }

    /// Takes the row's value and writer from the record in `words`.
    #[inline]
    pub(crate) fn keep_value(&mut self, row: usize, record: &Record<'_>, words: &[u64]) {
        let row = &mut self.rows[row];
        debug_assert!(!row.executed, "I104: a row is read once under one placement");
        row.writer = record.header().writer;
        row.value = record.value_range().map(|range| {
            let start = self.values.len();
            self.values.extend_from_slice(&words.as_bytes()[range]);
            start..self.values.len()
        });
    }
}
