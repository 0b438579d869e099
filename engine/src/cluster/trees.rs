//! Builds the nodes of an ordered table from the rows of a load.

use lotus_mvcc::{PrimaryKey, TableDef};
use lotus_tree::whole;

use crate::api::error::ClusterError;
use crate::cluster::load::RowSource;
use crate::node::agreed::node_numbers::LOADED;

/// Nodes of a tree, with their numbers.
pub(crate) type Nodes = Vec<(u64, Vec<u8>)>;

/// Returns the nodes of a tree with the rows `0..rows`.
///
/// # Errors
/// A key or value is too long, or two rows have the same key.
pub(crate) fn nodes(
    table: &TableDef,
    rows: u64,
    source: &RowSource<'_>,
) -> Result<Nodes, ClusterError> {
    let spec = table.spec();
    let (key_limit, value_limit) = (spec.key_bytes as usize, spec.record_bytes as usize);
    // Values lie in a single buffer: the memory of ten million rows is allocated in few pieces.
    let (mut values, mut sorted) = (Vec::new(), Vec::with_capacity(rows as usize));
    let mut value = Vec::new();
    for row in 0..rows {
        value.clear();
        let key: PrimaryKey = source(row, &mut value);
        let refused = |reason: String| ClusterError::Row { row, reason };
        if key.byte_count() > key_limit || value.len() > value_limit {
            return Err(refused(format!(
                "a key of this table has at most {key_limit} bytes, a value {value_limit}"
            )));
        }
        sorted.push((key, row, values.len()..values.len() + value.len()));
        values.extend_from_slice(&value);
    }
    sorted.sort_unstable_by_key(|(key, row, _)| (*key, *row));
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let reason = format!("row {} has the same primary key", pair[0].1);
        return Err(ClusterError::Row { row: pair[1].1, reason });
    }
    // Node numbers drawn by transactions are greater.
    let mut numbers = 1..LOADED;
    let number = || numbers.next().expect("there are fewer nodes");
    debug_assert!(
        sorted.is_sorted_by(|(one, ..), (next, ..)| one < next),
        "I280: the keys of a tree ascend"
    );
    let mut entries = Vec::with_capacity(sorted.len());
    entries.extend(sorted.iter().map(|(key, _, at)| (key.as_bytes(), &values[at.clone()])));
    Ok(whole::build(&entries, table.stored().value_bytes as usize, number))
}
