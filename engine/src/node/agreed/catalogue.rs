//! The catalogue of the cluster's tables, common to all processes.
//!
//! # What it is
//! A single value at the authority: every table's specification, [`TableState`], and the place of
//! its index in each group. A table's number is its place in the list. The list only grows, and a
//! table only goes from serving to dropped to gone, by compare-and-swap; so a process's copy of the
//! list is never wrong, only behind. A process reads the value again when asked for an unknown
//! table by name, and before recovering another node's transactions.
//!
//! # The secret
//! The value also holds the secret of the rows' names ([`lotus_mvcc::naming`]). Each process draws
//! a secret; the secret of the process that enters the first table becomes the cluster's, for all
//! tables, even after that table is dropped. Tables and secret are a single value, so a process
//! that knows a table knows the naming of its rows.
//!
//! # If it stops anywhere
//! Memory is taken before the table is entered here. A process that dies in between leaks the
//! slabs; a process that finds its table's name taken keeps the slabs for its next table
//! (`crate::cluster::tables`). A table dropped here keeps its memory until a member has given the
//! memory back (`crate::memory_nodes::clearing`), whichever node asked for the drop.

use std::sync::Arc;

use lotus_authority::Version;
use lotus_authority::{Authority, AuthorityError};
use lotus_fabric::ids::TableId;
use lotus_mvcc::layout::LINE_BYTES;
use lotus_mvcc::{CriticalField, Inline, Naming, Secret, TableDef, TableSpec};

use crate::api::error::ClusterError;
use crate::node::shared::Shared;

const KEY: &str = "tables";
/// Version of the encoding read and written by this module.
const FORMAT: u8 = 4;
const HAS_FIELD: u8 = 1;
const NEVER_INLINE: u8 = 2;
const ORDERED: u8 = 4;

/// Stage in the life of a table, with the data known about the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TableState<T> {
    /// In use.
    Serving(T),
    /// No transaction begins on the table, and its name is free. The table still has its memory.
    Dropped(T),
    /// The table's memory is free, or belongs to another table.
    Gone,
}

impl<T> TableState<T> {
    /// The table, if in use.
    pub(crate) fn serving(&self) -> Option<&T> {
        match self {
            Self::Serving(table) => Some(table),
            Self::Dropped(_) | Self::Gone => None,
        }
    }

    /// The table, while it still has its memory.
    pub(crate) fn with_memory(&self) -> Option<&T> {
        match self {
            Self::Serving(table) | Self::Dropped(table) => Some(table),
            Self::Gone => None,
        }
    }

    /// Number of the stage; only grows.
    pub(crate) fn stage(&self) -> u8 {
        match self {
            Self::Serving(_) => 0,
            Self::Dropped(_) => 1,
            Self::Gone => 2,
        }
    }
}

/// The list of tables, and the version of the value at the authority.
pub(crate) struct Catalogue {
    version: Version,
    /// Naming of the rows of all tables; before the first table, the proposed naming.
    pub(crate) naming: Naming,
    pub(crate) tables: Vec<TableState<TableDef>>,
}

/// Change of a table's state in the catalogue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Demotion {
    /// From serving to dropped.
    Drop,
    /// From dropped to gone.
    Clear,
}

impl Catalogue {
    /// Reads the catalogue; a catalogue that does not exist yet has the naming `proposed`.
    ///
    /// # Errors
    /// The authority does not answer, or the stored value is no catalogue of `groups` groups.
    pub(crate) fn read(
        authority: &dyn Authority,
        groups: usize,
        proposed: Naming,
    ) -> Result<Self, ClusterError> {
        let Some(found) = authority.read(KEY)? else {
            return Ok(Self { version: Version::ABSENT, naming: proposed, tables: Vec::new() });
        };
        let decoded = decode(&found.value, groups, proposed).ok_or(ClusterError::Damaged)?;
        let (naming, tables) = decoded;
        Ok(Self { version: found.version, naming, tables })
    }

    /// The naming of rows, if decided by a stored catalogue.
    pub(crate) fn decided(&self) -> Option<Naming> {
        (self.version != Version::ABSENT).then_some(self.naming)
    }

    /// Number of the table in use with the name `name`.
    pub(crate) fn find(&self, name: &str) -> Option<TableId> {
        let mut serving = self.tables.iter().filter_map(TableState::serving);
        serving.find(|table| table.spec().name == name).map(TableDef::id)
    }

    /// Whether the table with this number is in use under this name, or was dropped. A repeated
    /// request to drop the table affects no later table of the name (I335).
    pub(crate) fn finds_or_had(&self, name: &str, table: TableId) -> bool {
        self.tables.get(usize::from(table.0)).is_some_and(|state| match state {
            TableState::Serving(table) | TableState::Dropped(table) => table.spec().name == name,
            // Only the table's number is left, and no other table gets this number.
            TableState::Gone => true,
        })
    }

    /// Number of tables that are not gone.
    pub(crate) fn count(&self) -> usize {
        self.tables.iter().filter(|table| table.stage() < TableState::<()>::Gone.stage()).count()
    }

    /// Enters `table`, unless the catalogue has changed since the read.
    ///
    /// # Errors
    /// [`AuthorityError`]; `Conflict` if the catalogue has changed.
    pub(crate) fn enter(
        &mut self,
        table: TableDef,
        authority: &dyn Authority,
    ) -> Result<(), AuthorityError> {
        self.tables.push(TableState::Serving(table));
        self.store(authority)
    }

    fn store(&mut self, authority: &dyn Authority) -> Result<(), AuthorityError> {
        let value = encode(self.naming, &self.tables);
        self.version = authority.compare_and_swap(KEY, self.version, &value)?;
        Ok(())
    }

    /// Adds gone tables until the catalogue has `target` tables, unless the catalogue has changed
    /// since the read.
    ///
    /// # Errors
    /// As [`Self::enter`].
    pub(crate) fn skip_to(
        &mut self,
        target: usize,
        authority: &dyn Authority,
    ) -> Result<(), AuthorityError> {
        self.tables.resize(target, TableState::Gone);
        self.store(authority)
    }

    /// Changes the state of a table, unless the table is already in that state or a later one. May
    /// be repeated, whatever answers are lost.
    ///
    /// # Errors
    /// As [`Self::read`]; the authority does not answer.
    pub(crate) fn demote(
        authority: &dyn Authority,
        (groups, proposed): (usize, Naming),
        table: TableId,
        how: Demotion,
    ) -> Result<Self, ClusterError> {
        loop {
            let mut now = Self::read(authority, groups, proposed)?;
            let Some(entry) = now.tables.get_mut(usize::from(table.0)) else { return Ok(now) };
            *entry = match (entry.clone(), how) {
                (TableState::Serving(def), Demotion::Drop) => TableState::Dropped(def),
                (TableState::Dropped(_), Demotion::Clear) => TableState::Gone,
                _ => return Ok(now),
            };
            match now.store(authority) {
                Ok(()) => return Ok(now),
                Err(AuthorityError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Shared {
    /// Reads the catalogue and adds the tables to this process's nodes.
    ///
    /// # Errors
    /// As [`Catalogue::read`], or there is no memory for a table's addresses.
    pub(crate) fn learn_tables(&self) -> Result<Catalogue, ClusterError> {
        let groups = self.placement.group_count();
        let catalogue =
            Catalogue::read(self.async_authority.authority(), groups, self.names.proposed())?;
        self.install(&catalogue)?;
        Ok(catalogue)
    }

    /// As [`Self::learn_tables`], for coordinators, which must not block. Returns whether the
    /// catalogue was read.
    pub(crate) async fn learn_tables_apart(self: &Arc<Self>) -> bool {
        let shared = Arc::clone(self);
        let learned = self.async_authority.apart(move || shared.learn_tables().is_ok()).await;
        learned.unwrap_or(false)
    }
}

/// Encodes the tables and the secret of their rows' names. Little-endian: `format:8 secret:128`,
/// then for each table `standing:8`, which is 2 for a gone table, with nothing behind it; for every
/// other table `name_bytes:8 name record_bytes:32 key_bytes:32 capacity:64 versions:32 shards:32
/// flags:8 field_start:8 field_len:8 groups:8` and a base of 64 bits for each group. Flags: 1, a
/// critical field; 2, records never lie in their cells; 4, the table is ordered.
pub(crate) fn encode(naming: Naming, tables: &[TableState<TableDef>]) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    bytes.extend(naming.secret().to_bytes());
    for table in tables {
        bytes.push(table.stage());
        let Some(table) = table.with_memory() else { continue };
        encode_spec(table.spec(), &mut bytes);
        let bases = table.geometry().bases();
        debug_assert!(u8::try_from(bases.len()).is_ok(), "I87: a table has a place in every group");
        bytes.push(bases.len() as u8);
        bases.iter().for_each(|base| bytes.extend(base.to_le_bytes()));
    }
    bytes
}

/// Appends the encoding of one specification.
pub(crate) fn encode_spec(spec: &TableSpec, bytes: &mut Vec<u8>) {
    debug_assert!(u8::try_from(spec.name.len()).is_ok(), "I87: a table's name is kept whole");
    bytes.push(spec.name.len() as u8);
    bytes.extend(spec.name.as_bytes());
    bytes.extend(spec.record_bytes.to_le_bytes());
    bytes.extend(spec.key_bytes.to_le_bytes());
    bytes.extend(spec.capacity.to_le_bytes());
    bytes.extend(spec.versions.to_le_bytes());
    bytes.extend(spec.shards.to_le_bytes());
    let (has_field, start, len) = match spec.critical_field {
        CriticalField::Hashed => (0, 0, 0),
        CriticalField::Bytes { start, len } => (HAS_FIELD, start, len),
    };
    let inline = match spec.inline {
        Inline::Auto => 0,
        Inline::Never => NEVER_INLINE,
    };
    let ordered = if spec.ordered { ORDERED } else { 0 };
    bytes.extend([has_field | inline | ordered, start, len]);
}

/// Decodes the specification at the front of `bytes`; also returns the rest. `None` if invalid.
pub(crate) fn decode_spec(bytes: &[u8]) -> Option<(TableSpec, &[u8])> {
    let mut rest = Reader(bytes);
    let spec = rest.spec()?;
    Some((spec, rest.0))
}

/// Decodes a catalogue of `groups` groups, and the naming of its rows, which equals `proposed`
/// except for the secret; `None` if invalid.
pub(crate) fn decode(
    bytes: &[u8],
    groups: usize,
    proposed: Naming,
) -> Option<(Naming, Vec<TableState<TableDef>>)> {
    let (&FORMAT, body) = bytes.split_first()? else { return None };
    let mut rest = Reader(body);
    let naming = proposed.with_secret(Secret::from_bytes(rest.take()?));
    let mut tables = Vec::new();
    while !rest.0.is_empty() {
        let id = TableId(u16::try_from(tables.len()).ok()?);
        tables.push(match rest.take()? {
            [0] => TableState::Serving(rest.table(id, groups, naming)?),
            [1] => TableState::Dropped(rest.table(id, groups, naming)?),
            [2] => TableState::Gone,
            _ => return None,
        });
    }
    Some((naming, tables))
}

/// Five tables of two groups, for tests.
pub(crate) fn sample() -> Vec<TableState<TableDef>> {
    let field = CriticalField::Bytes { start: 2, len: 4 };
    let specs = [
        TableSpec::new("checking").record_bytes(16).capacity(1000),
        TableSpec::new("stock").record_bytes(320).key_bytes(12).capacity(1 << 20).versions(3),
        TableSpec::new("orders")
            .record_bytes(8)
            .capacity(9)
            .shards(5)
            .critical_field(field)
            .inline(Inline::Never),
        TableSpec::new("by name").record_bytes(8).key_bytes(40).capacity(100).ordered(),
    ];
    let numbered = specs.into_iter().zip(0..);
    let table =
        |(spec, id)| TableDef::new(TableId(id), spec, vec![1 << 20, 3 << 20], Naming::KNOWN);
    let mut tables: Vec<_> =
        numbered.map(|numbered| TableState::Serving(table(numbered).expect("valid"))).collect();
    if let TableState::Serving(stock) = tables[1].clone() {
        tables[1] = TableState::Dropped(stock);
    }
    tables.push(TableState::Gone);
    tables
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn name(&mut self) -> Option<String> {
        let [length] = self.take()?;
        let (name, rest) = self.0.split_at_checked(usize::from(length))?;
        self.0 = rest;
        String::from_utf8(name.to_vec()).ok()
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn spec(&mut self) -> Option<TableSpec> {
        let mut spec = TableSpec::named(self.name()?)
            .record_bytes(self.word()?)
            .key_bytes(self.word()?)
            .capacity(self.long()?)
            .versions(self.word()?)
            .shards(self.word()?);
        let [flags, start, len] = self.take()?;
        spec.critical_field = match (flags & !(NEVER_INLINE | ORDERED), start, len) {
            (0, 0, 0) => CriticalField::Hashed,
            (HAS_FIELD, start, len) => CriticalField::Bytes { start, len },
            _ => return None,
        };
        spec.inline = match flags & NEVER_INLINE {
            0 => Inline::Auto,
            _ => Inline::Never,
        };
        spec.ordered = flags & ORDERED != 0;
        Some(spec)
    }

    fn table(&mut self, id: TableId, groups: usize, naming: Naming) -> Option<TableDef> {
        let spec = self.spec()?;
        let [count] = self.take()?;
        if usize::from(count) != groups {
            return None;
        }
        let bases = (0..count).map(|_| self.long()).collect::<Option<Vec<u64>>>()?;
        let placed = |base: &u64| *base != 0 && base.is_multiple_of(LINE_BYTES as u64);
        if !bases.iter().all(placed) {
            return None;
        }
        TableDef::new(id, spec, bases, naming).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_authority::EmbeddedAuthority;
    use lotus_mvcc::table::{MAX_NAME_BYTES, MAX_TABLE_IDS, MAX_TABLES};

    const NAMED: (usize, Naming) = (2, Naming::KNOWN);

    #[test]
    fn what_is_stored_is_read_back_and_every_cut_is_refused() {
        let (tables, bytes) = (sample(), encode(Naming::KNOWN, &sample()));
        assert_eq!(decode(&bytes, 2, Naming::KNOWN), Some((Naming::KNOWN, tables)));
        let other = Naming::by(Secret::from_seed(4));
        let (naming, _) = decode(&encode(other, &[]), 2, Naming::KNOWN).expect("it is sound");
        assert_eq!(naming, other);
        assert_eq!(decode(&bytes, 3, Naming::KNOWN), None);
        let one = encode(Naming::KNOWN, &sample()[..1]);
        let gone = encode(Naming::KNOWN, &[TableState::Gone]);
        assert_eq!(gone.len(), 2 + Secret::BYTES, "a table that is gone takes a byte");
        for end in (0..one.len()).filter(|end| *end != 1 + Secret::BYTES) {
            assert_eq!(decode(&one[..end], 2, Naming::KNOWN), None, "cut at {end}");
        }
        // A standing that there is not; after the name: a field out of range, one of no known kind.
        for (at, byte) in [(1, 3), (2, 0), (11, 255), (11 + 24, 4)] {
            let mut bytes = one.clone();
            bytes[Secret::BYTES + at] = byte;
            let decoded = decode(&bytes, 2, Naming::KNOWN).map(|(_, tables)| tables);
            assert_ne!(decoded, Some(sample()[..1].to_vec()), "byte {at}");
        }
    }

    #[test]
    fn as_many_tables_as_a_cluster_may_have_fit_in_one_value() {
        const VALUE_BYTES: usize = 1 << 20;
        const MAX_GROUPS: usize = 64;
        let spec = TableSpec::named("x".repeat(MAX_NAME_BYTES)).record_bytes(8).capacity(9);
        let table = TableDef::new(TableId(0), spec, vec![1 << 20; MAX_GROUPS], Naming::KNOWN)
            .expect("valid");
        let mut tables = vec![TableState::Serving(table); MAX_TABLES];
        tables.resize(MAX_TABLE_IDS, TableState::Gone);
        assert!(encode(Naming::KNOWN, &tables).len() <= VALUE_BYTES);
    }

    #[test]
    fn whoever_is_late_reads_again() {
        let authority = EmbeddedAuthority::new();
        let read = || Catalogue::read(&authority, 2, Naming::KNOWN).expect("sound");
        let [first, second] = [0, 1].map(|index| sample()[index].with_memory().cloned());
        let [first, second] = [first, second].map(|table| table.expect("it has memory"));
        let (mut fast, mut late) = (read(), read());
        fast.enter(first, &authority).expect("nobody else");
        let refused = late.enter(second.clone(), &authority);
        assert!(matches!(refused, Err(AuthorityError::Conflict { .. })));
        let mut late = read();
        assert_eq!((late.find("checking"), late.find("stock")), (Some(TableId(0)), None));
        late.enter(second, &authority).expect("nobody else");
        assert_eq!(read().find("stock"), Some(TableId(1)));
    }

    #[test]
    fn a_table_is_dropped_then_gone_and_its_name_is_free() {
        let authority = EmbeddedAuthority::new();
        let read = || Catalogue::read(&authority, 2, Naming::KNOWN).expect("sound");
        let demote = |table, how| {
            let now =
                Catalogue::demote(&authority, NAMED, TableId(table), how).expect("it answers");
            now.tables.iter().map(TableState::stage).collect::<Vec<_>>()
        };
        let checking = sample()[0].serving().expect("it serves").clone();
        read().enter(checking.clone(), &authority).expect("nobody else");
        assert_eq!(demote(0, Demotion::Clear), [0], "it is in use");
        assert_eq!(demote(9, Demotion::Drop), [0], "there is no such table");
        assert_eq!([demote(0, Demotion::Drop), demote(0, Demotion::Drop)], [[1], [1]]);
        assert_eq!((read().find("checking"), read().count()), (None, 1));
        let spec = checking.spec().clone();
        let again =
            TableDef::new(TableId(1), spec, vec![1 << 20, 3 << 20], Naming::KNOWN).expect("valid");
        read().enter(again, &authority).expect("nobody else");
        assert_eq!(demote(0, Demotion::Clear), [2, 0]);
        assert_eq!(demote(0, Demotion::Drop), [2, 0], "it stays gone");
        assert_eq!((read().find("checking"), read().count()), (Some(TableId(1)), 1));
    }

    #[test]
    fn a_number_stands_for_one_table_whatever_table_has_its_name_since() {
        let tables = sample();
        let now = Catalogue { version: Version::ABSENT, naming: Naming::KNOWN, tables };
        for (name, number, expected) in [
            ("checking", 0, true),
            ("stock", 0, false),
            ("stock", 1, true),
            ("checking", 1, false),
            ("checking", 4, true),
            ("checking", 5, false),
        ] {
            assert_eq!(now.finds_or_had(name, TableId(number)), expected, "{name}, {number}");
        }
    }
}
