//! Creates tables, and finds tables that other processes have created.
//!
//! # If it stops anywhere
//! Memory for the index is taken first, then the table is entered in the catalogue. Memory of a
//! table that was not entered is given back, and lost if the process ends before. If the outcome of
//! the entry is unknown, the memory is never used for another table.

use std::time::Duration;

use lotus_authority::AuthorityError;
use lotus_fabric::env::Nanos;
use lotus_fabric::ids::TableId;
use lotus_mvcc::index::IndexShape;
use lotus_mvcc::layout::region::{SlabEntry, SlabKind};
use lotus_mvcc::table::{MAX_TABLE_IDS, MAX_TABLES, SpecError};
use lotus_mvcc::{Naming, TableDef, TableSpec};
use lotus_router::Placement;

use crate::api::error::{ClusterError, leaving, unreachable_nodes};
use crate::cluster::handle::Cluster;
use crate::cluster::once::{self, Unanswered, until_answered};
use crate::node::agreed::catalogue::{Catalogue, TableState};
use crate::node::shared::Shared;
use crate::space::slabs::{self, SlabError};

fn refused(spec: &TableSpec, error: SpecError) -> ClusterError {
    ClusterError::Spec { table: spec.name.clone().into_owned(), error }
}

/// Creation of a table in progress.
struct Creation<'a> {
    shared: &'a Shared,
    placement: &'a Placement,
    spec: TableSpec,
    shape: IndexShape,
    deadline: Nanos,
    /// Places of the index, for the groups whose memory is already taken.
    bases: Vec<u64>,
    /// Directory entry of the index memory.
    entry: Option<SlabEntry>,
    /// Last definition sent to the catalogue without an answer.
    in_doubt: Option<TableDef>,
}

impl Cluster {
    /// Creates a table. Other processes find the table by its name. Waits while a memory node is
    /// being lost or filled, unless called in a transaction's code or in simulation: then the call
    /// fails at once.
    ///
    /// # Errors
    /// An invalid specification, a name in use, too many tables, no room under the memory limit, a
    /// memory node that does not answer, a memory node that is being lost or filled for a minute,
    /// or an authority that has not answered for a minute: no table was created. `MayExist` if the
    /// authority has not answered since the request to enter the table: then [`Self::open_table`]
    /// tells whether the table was created.
    pub fn create_table(&self, spec: TableSpec) -> Result<TableId, ClusterError> {
        self.create_table_within(spec, once::PATIENCE)
    }

    /// Like [`Self::create_table`], but waits, and retries while the authority does not answer, for
    /// at most `patience`.
    ///
    /// # Errors
    /// As [`Self::create_table`].
    pub fn create_table_within(
        &self,
        spec: TableSpec,
        patience: Duration,
    ) -> Result<TableId, ClusterError> {
        let shared = &self.shared;
        let shape = IndexShape::of(&spec, shared.placement.group_count());
        let shape = shape.map_err(|error| refused(&spec, error))?;
        let deadline = shared.control.now().after(patience);
        // A coordinator waiting in this loop would not notice the awaited change, and in a
        // simulation nothing happens meanwhile.
        let may_wait = shared.has_threads && self.name().coordinator_here().is_none();
        let taking = loop {
            match shared.take_by_control() {
                Some(taking) => break taking,
                None if may_wait && shared.control.now() < deadline => {
                    shared.control.pause(once::PAUSE);
                }
                None => return Err(leaving()),
            }
        };
        let mut creation = Creation {
            shared,
            placement: &taking.placement,
            spec,
            shape,
            deadline,
            bases: Vec::new(),
            entry: None,
            in_doubt: None,
        };
        creation.carry_out().inspect_err(|_| creation.give_memory_back())
    }

    /// Returns the naming of the rows of all tables, which tells the shard of a row's key, and also
    /// which keys share a name. `None` before the first table.
    pub fn naming(&self) -> Option<Naming> {
        self.shared.names.decided()
    }

    /// Returns the number of the table `name`, if this process knows the table.
    pub fn table(&self, name: &str) -> Option<TableId> {
        let known = self.shared.known_tables();
        known.serving().find(|table| table.spec().name == name).map(|table| table.id())
    }

    /// Learns the tables that other processes have created. Asks the authority once.
    ///
    /// # Errors
    /// The authority does not answer, or no memory is left for a table's addresses.
    pub fn look_for_tables(&self) -> Result<(), ClusterError> {
        self.shared.learn_tables().map(drop)
    }

    /// Returns the number of the table `name`, which another process may have created.
    ///
    /// # Errors
    /// The table does not exist, or the authority has not answered for a minute.
    pub fn open_table(&self, name: &str) -> Result<TableId, ClusterError> {
        let missing = || ClusterError::NoSuchTable(name.to_owned());
        match self.table(name) {
            Some(id) => Ok(id),
            None => {
                let catalogue = self.shared.ask(|| self.shared.learn_tables())?;
                catalogue.find(name).ok_or_else(missing)
            }
        }
    }
}

impl Creation<'_> {
    fn carry_out(&mut self) -> Result<TableId, ClusterError> {
        let shared = self.shared;
        loop {
            let mut catalogue = self.learn_tables()?;
            if let Some(id) = self.had(&catalogue)? {
                return Ok(id);
            }
            if let Some(id) = catalogue.find(&self.spec.name) {
                // Only this call has the memory in `bases`: an equal entry was made by this call,
                // answered or not.
                let entered = catalogue.tables.get(usize::from(id.0)).and_then(TableState::serving);
                let ours = self.in_doubt.take();
                if entered.is_some() && entered == ours.as_ref() {
                    return Ok(id);
                }
                return Err(ClusterError::TableExists(self.spec.name.clone().into_owned()));
            }
            if catalogue.count() >= MAX_TABLES || catalogue.tables.len() >= MAX_TABLE_IDS {
                return Err(ClusterError::TooManyTables);
            }
            let id = TableId(catalogue.tables.len() as u16);
            self.take_index(id)?;
            debug_assert_eq!(
                self.bases.len(),
                shared.placement.group_count(),
                "I87: a table has a place in every group"
            );
            let table = TableDef::new(id, self.spec.clone(), self.bases.clone(), catalogue.naming);
            let table = table.map_err(|error| refused(&self.spec, error))?;
            let before = self.in_doubt.replace(table.clone());
            match catalogue.enter(table, shared.async_authority.authority()) {
                Ok(()) => {
                    shared.install(&catalogue)?;
                    return Ok(id);
                }
                // Another process has entered a table meanwhile; this table gets the next number.
                Err(AuthorityError::Conflict { .. }) => self.in_doubt = before,
                // The entry may have been made.
                Err(error) if error.is_unanswered() && shared.control.now() < self.deadline => {
                    shared.control.pause(once::PAUSE);
                }
                Err(_) => return Err(self.unanswered()),
            }
        }
    }

    /// Returns the number of the table that this call has entered, without an answer, if the table
    /// was dropped since. The drop gives its memory back, so this call forgets the memory.
    ///
    /// # Errors
    /// [`ClusterError::MayExist`]: the table with this number is gone, so its creator is not known.
    fn had(&mut self, catalogue: &Catalogue) -> Result<Option<TableId>, ClusterError> {
        let Some(ours) = self.in_doubt.as_ref() else { return Ok(None) };
        let id = ours.id();
        match catalogue.tables.get(usize::from(id.0)) {
            Some(TableState::Dropped(table)) if table == ours => {}
            Some(TableState::Gone) => return Err(self.unanswered()),
            _ => return Ok(None),
        }
        self.bases.clear();
        (self.entry, self.in_doubt) = (None, None);
        Ok(Some(id))
    }

    /// Reads the catalogue, and retries until the deadline while no answer comes.
    fn learn_tables(&self) -> Result<Catalogue, ClusterError> {
        let shared = self.shared;
        let patience = self.deadline.since(shared.control.now());
        let learned =
            until_answered(&shared.control, patience, || Ok(()), || shared.learn_tables());
        learned.map_err(|error| match error.is_unanswered() {
            true => self.unanswered(),
            false => error,
        })
    }

    /// Returns the error for an authority that does not answer any more.
    fn unanswered(&self) -> ClusterError {
        match self.in_doubt {
            Some(_) => ClusterError::MayExist(self.spec.name.clone().into_owned()),
            None => AuthorityError::Unavailable.into(),
        }
    }

    /// Takes the memory of the index in every group, and enters the memory in the directories under
    /// the table's present number.
    fn take_index(&mut self, id: TableId) -> Result<(), ClusterError> {
        let shared = self.shared;
        let node = shared.nodes.first();
        let (kind, owner) = (SlabKind::Index, node.incarnation);
        let entry = SlabEntry { kind, table: id, owner, take: node.slots.next_take() };
        self.entry = Some(entry);
        for (group, replicas) in self.placement.groups() {
            let place = usize::from(group.0);
            let needed = self.shape.index_bytes(place);
            if let Some(base) = self.bases.get(place).copied() {
                let named = shared.control.with_lane(|lane| async move {
                    slabs::enter_with_retries(&lane, replicas, base, needed, entry).await
                })?;
                named.map_err(unreachable_nodes)?;
                continue;
            }
            if needed == 0 {
                self.bases.push(shared.region.first_slab());
                continue;
            }
            let fresh = shared.control.with_lane(|lane| async move {
                slabs::take_slabs(&lane, replicas, &shared.region, needed, entry).await
            })?;
            self.bases.push(fresh.map_err(|error| match error {
                SlabError::Full if shared.is_clearing() => ClusterError::Clearing,
                SlabError::Full => ClusterError::OutOfMemory { table: id, needed },
                SlabError::Fabric(error) => unreachable_nodes(error),
            })?);
        }
        Ok(())
    }

    /// Gives back the memory of a table that was not created. The memory is all zeroes: no process
    /// has known of the table.
    fn give_memory_back(&mut self) {
        let Some(entry) = self.entry.filter(|_| self.in_doubt.is_none()) else { return };
        debug_assert!(
            self.bases.len() <= self.placement.group_count(),
            "I87: a table has a place in every group"
        );
        for ((group, replicas), base) in self.placement.groups().zip(self.bases.drain(..)) {
            let bytes = self.shape.index_bytes(usize::from(group.0));
            // Memory that cannot be given back is lost.
            let _ = self.shared.control.with_lane(|lane| async move {
                slabs::give_back(&lane, replicas, base, bytes, entry).await
            });
        }
        self.shared.nodes.iter().for_each(|node| node.slots.search_again());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::agreed::catalogue::Demotion;
    use std::sync::Arc;

    use lotus_authority::EmbeddedAuthority;
    use lotus_authority::testing::{Question, QuestionOutcome, TestAuthority};
    use lotus_fabric::env::Env;
    use lotus_fabric::local::LocalFabric;
    use lotus_fabric::machines::Threads;
    use lotus_mvcc::Inline;
    use lotus_mvcc::layout::region::SLAB_BYTES;

    use crate::api::config::TimestampKind;
    use crate::api::error::TxnError;
    use crate::api::isolation::Isolation;
    use crate::txn::transaction::Transaction;

    /// Regression: a table that fitted in some groups and not in all took their memory for good.
    #[test]
    fn a_table_that_does_not_fit_takes_no_memory_however_often_it_is_asked_for() {
        let builder = Cluster::embedded().memory_nodes(2).replicas(1).memory_limit(16 << 20);
        let cluster = builder.start().expect("it starts");
        let (shared, region) = (&cluster.shared, &cluster.shared.region);
        // The second group has room for one slab of an index.
        let owner = shared.nodes.first().incarnation;
        let entry = SlabEntry { kind: SlabKind::Index, table: TableId(0), owner, take: 0 };
        let full = shared.placement.groups().last().expect("there are two").1;
        let bytes = region.end_for(SlabKind::Index) - region.first_slab() - SLAB_BYTES;
        let taken = shared.control.with_lane(|lane| async move {
            slabs::take_slabs(&lane, full, region, bytes, entry).await
        });
        assert!(matches!(taken, Ok(Ok(_))));
        let table = TableSpec::new("large").record_bytes(200);
        let shape = |rows| IndexShape::of(&table.clone().capacity(rows), 2).expect("valid");
        let sizes = (12..30).map(|bits| 1_u64 << bits);
        let is_too_large = |rows: &u64| shape(*rows).index_bytes(1) > SLAB_BYTES;
        let rows = sizes.into_iter().find(is_too_large).expect("memory is limited");

        let before = cluster.memory_figures(0).wait().expect("it answers");
        for _ in 0..20 {
            let refused = cluster.create_table(table.clone().capacity(rows));
            let refused = refused.expect_err("it does not fit");
            assert!(matches!(refused, ClusterError::OutOfMemory { .. }), "{refused}");
        }
        let after = cluster.memory_figures(0).wait().expect("it answers");
        let groups = before.groups.iter().zip(&after.groups);
        let grown: Vec<u64> =
            groups.map(|(before, after)| after.allocated_bytes - before.allocated_bytes).collect();
        assert_eq!(grown, [0, 0]);
    }

    /// Inserts a large row at a coordinator; whether that has found memory.
    fn insert(cluster: &Cluster, table: TableId, row: u64) -> bool {
        let body = async move |txn: &mut Transaction| -> Result<(), TxnError> {
            txn.insert(table, row, &[7; 4000]).map(drop)
        };
        match cluster.run(Isolation::Serializable, body).wait() {
            Ok(_) => true,
            Err(TxnError::TableFull { .. }) => false,
            Err(error) => panic!("row {row}: {error}"),
        }
    }

    /// Regression: memory was full for ever at other processes, which had looked for some while a
    /// table was about to be made that was not made after all; and at all that those asked for
    /// slots. Slabs that are free again were counted as used.
    #[test]
    fn every_process_finds_the_memory_of_a_table_that_was_not_made() {
        let authority = Arc::new(EmbeddedAuthority::new());
        let fabric = LocalFabric::new(1 + 2);
        let builder = Cluster::embedded().memory_nodes(1).replicas(1).compute_nodes(2);
        let builder = builder.timestamps(TimestampKind::Oracle);
        let start = |node: usize| {
            let (shared, limit) = (Arc::clone(&authority) as _, 16 << 20);
            let part = builder.clone().memory_limit(limit).coroutines(4);
            let part = part.part([node], shared, Duration::from_secs(30));
            part.start_on(Threads::over(fabric.clone(), Env::real(0))).expect("it starts")
        };
        let parts = [start(0), start(1)];
        let spec = TableSpec::new("rows").record_bytes(4000).capacity(100);
        let table = parts[0].create_table(spec.inline(Inline::Never)).expect("there is room");
        parts[1].open_table("rows").expect("it was made");
        assert!(insert(&parts[0], table, 0) && insert(&parts[1], table, 1));

        // Another table is about to be made, with all slabs that are left for indexes.
        let before = parts[0].memory_in_use().expect("memory answers");
        let (shared, region) = (&parts[0].shared, &parts[0].shared.region);
        let (owner, take) = (shared.nodes.first().incarnation, 999);
        let entry = SlabEntry { kind: SlabKind::Index, table: TableId(1), owner, take };
        let replicas = shared.placement.groups().next().expect("there is one").1;
        let (base, bytes) = shared
            .control
            .with_lane(|lane| async move {
                let end = slabs::allocated_end(&lane, replicas.primary(), region).await.unwrap();
                let bytes = region.end_for(SlabKind::Index) - end;
                (slabs::take_slabs(&lane, replicas, region, bytes, entry).await.unwrap(), bytes)
            })
            .expect("memory answers");
        for (part, first) in parts.iter().zip([1_000, 2_000]) {
            let full = (first..first + 900).find(|row| !insert(part, table, *row));
            assert!(full.is_some(), "there is no slab left");
        }
        let full = parts[0].memory_in_use().expect("memory answers");
        assert!(full[0] > before[0] + bytes / 2, "{full:?}, {before:?} before");
        let given_back = shared.control.with_lane(|lane| async move {
            slabs::give_back(&lane, replicas, base, bytes, entry).await
        });
        given_back.expect("memory answers").expect("memory answers");
        shared.nodes.iter().for_each(|node| node.slots.search_again());
        let after = parts[0].memory_in_use().expect("memory answers");
        assert!(after[0] + bytes / 2 < full[0], "{after:?}, {full:?} before");

        let deadline = shared.control.now().after(Duration::from_secs(30));
        for (part, first) in parts.iter().zip([5_000, 10_000]).rev() {
            let mut rows = 0;
            while rows < 300 {
                if insert(part, table, first + rows) {
                    rows += 1;
                } else {
                    assert!(shared.control.now() < deadline, "full for ever after {rows} rows");
                    shared.control.pause(once::PAUSE);
                }
            }
        }
    }

    #[test]
    fn a_cluster_has_so_many_tables_and_no_more() {
        let cluster = Cluster::embedded().start().expect("it starts");
        let shared = &cluster.shared;
        let base = shared.region.first_slab();
        let table = |number: usize| {
            let spec = TableSpec::named(format!("t{number}")).record_bytes(8).capacity(1);
            let bases = vec![base; shared.placement.group_count()];
            TableDef::new(TableId(number as u16), spec, bases, shared.names.proposed())
                .expect("valid")
        };
        let mut catalogue = shared.learn_tables().expect("it answers");
        catalogue.tables = (0..MAX_TABLES - 1).map(table).map(TableState::Serving).collect();
        catalogue
            .enter(table(MAX_TABLES - 1), shared.async_authority.authority())
            .expect("no rival");
        let further = cluster.create_table(TableSpec::new("further").record_bytes(8).capacity(1));
        assert!(matches!(further, Err(ClusterError::TooManyTables)), "{further:?}");
        assert_eq!(cluster.tables().len(), MAX_TABLES);
    }

    /// The dropped table's index went to another table, with whatever was in it.
    #[test]
    fn a_table_that_was_dropped_before_its_creation_was_answered_keeps_its_memory() {
        let authority = Arc::<TestAuthority>::default();
        let builder = Cluster::embedded().memory_nodes(1).replicas(1).compute_nodes(1);
        let part = builder.part([0], Arc::clone(&authority) as _, Duration::from_secs(30));
        let cluster = part.start_on(Threads::over(LocalFabric::new(2), Env::real(0)));
        let cluster = cluster.expect("it starts");
        let shape = (cluster.shared.placement.group_count(), cluster.shared.names.proposed());
        let mut was_entered = false;
        authority.follow(move |question, values| match question {
            Question::Swap { key: "tables", .. } if !was_entered => {
                was_entered = true;
                QuestionOutcome::AnswerLost
            }
            Question::Read { key: "tables" } if was_entered => {
                // Somebody else has found it, and drops it.
                let dropped = Catalogue::demote(values, shape, TableId(0), Demotion::Drop);
                dropped.expect("it answers");
                QuestionOutcome::Answered
            }
            _ => QuestionOutcome::Answered,
        });
        let spec = TableSpec::new("first").record_bytes(8).capacity(100);
        let created = cluster.create_table(spec).expect("it was created");
        assert_eq!(created, TableId(0));
        assert!(cluster.open_table("first").is_err(), "it was dropped");
    }

    /// The catalogue has the memory of one of the two tables only if their indexes lie apart.
    #[test]
    fn memory_of_a_table_that_may_exist_is_given_to_no_other() {
        for is_entered in [false, true] {
            let authority = Arc::<TestAuthority>::default();
            let builder = Cluster::embedded().memory_nodes(1).replicas(1).compute_nodes(1);
            let part = builder.part([0], Arc::clone(&authority) as _, Duration::from_secs(30));
            let cluster = part.start_on(Threads::over(LocalFabric::new(2), Env::real(0)));
            let cluster = cluster.expect("it starts");
            let create = |name: &'static str| {
                let spec = TableSpec::new(name).record_bytes(8).capacity(100);
                cluster.create_table_within(spec, Duration::from_millis(100))
            };
            // Nothing is answered any more once the entry was sent.
            let mut is_silent = false;
            authority.follow(move |question, _| match question {
                _ if is_silent => QuestionOutcome::QuestionLost,
                Question::Swap { key: "tables", .. } => {
                    is_silent = true;
                    if is_entered {
                        QuestionOutcome::AnswerLost
                    } else {
                        QuestionOutcome::QuestionLost
                    }
                }
                _ => QuestionOutcome::Answered,
            });
            assert!(matches!(create("first"), Err(ClusterError::MayExist(_))));
            assert!(matches!(create("first"), Err(ClusterError::Authority(_))));
            authority.turn(QuestionOutcome::Answered);
            let second = create("second").expect("there is room");
            match create("first") {
                Err(ClusterError::TableExists(_)) => assert!(is_entered),
                created => assert!(created.is_ok() && !is_entered, "{created:?}"),
            }
            let first = cluster.open_table("first").expect("it exists by now");
            let bases = [first, second].map(|table| {
                let table = cluster.shared.table(table).expect("it is known");
                table.geometry().bases().to_vec()
            });
            assert_ne!(bases[0], bases[1]);
        }
    }
}
