//! Specification of a table, as a client sends it.

use lotus_mvcc::{CriticalField, Inline, TableSpec};
use serde::{Deserialize, Serialize};

/// A [`TableSpec`] on the wire, possibly invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TableShape<'a> {
    name: &'a str,
    record_bytes: u32,
    key_bytes: u32,
    capacity: u64,
    versions: u32,
    /// First byte and length of the critical field; `None` if the whole key's hash decides.
    critical_field: Option<(u8, u8)>,
    shards: u32,
    /// Whether small records may lie in their cells.
    inline: bool,
    ordered: bool,
}

impl<'a> TableShape<'a> {
    /// Returns the wire form of a specification.
    pub fn of(spec: &'a TableSpec) -> Self {
        Self {
            name: &spec.name,
            record_bytes: spec.record_bytes,
            key_bytes: spec.key_bytes,
            capacity: spec.capacity,
            versions: spec.versions,
            critical_field: pair(spec.critical_field),
            shards: spec.shards,
            inline: spec.inline == Inline::Auto,
            ordered: spec.ordered,
        }
    }

    /// Returns the specification.
    pub fn spec(&self) -> TableSpec {
        let spec = TableSpec::named(self.name.to_owned())
            .record_bytes(self.record_bytes)
            .key_bytes(self.key_bytes)
            .capacity(self.capacity)
            .versions(self.versions)
            .critical_field(field(self.critical_field))
            .shards(self.shards)
            .inline(if self.inline { Inline::Auto } else { Inline::Never });
        if self.ordered { spec.ordered() } else { spec }
    }
}

/// Returns the first byte and length of a critical field; `None` if the whole key's hash decides.
pub(crate) const fn pair(field: CriticalField) -> Option<(u8, u8)> {
    match field {
        CriticalField::Hashed => None,
        CriticalField::Bytes { start, len } => Some((start, len)),
    }
}

/// Returns the critical field with this first byte and length.
pub(crate) const fn field(pair: Option<(u8, u8)>) -> CriticalField {
    match pair {
        Some((start, len)) => CriticalField::Bytes { start, len },
        None => CriticalField::Hashed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_survives_the_wire() {
        let plain = TableSpec::new("orders").record_bytes(16).capacity(100);
        let field = CriticalField::Bytes { start: 2, len: 4 };
        let other = TableSpec::new("stock")
            .record_bytes(320)
            .key_bytes(12)
            .capacity(1 << 20)
            .versions(3)
            .critical_field(field)
            .shards(5)
            .inline(Inline::Never);
        let ordered = TableSpec::new("names").record_bytes(8).key_bytes(200).ordered();
        for spec in [plain, other, ordered, TableSpec::new("")] {
            let bytes = postcard::to_stdvec(&TableShape::of(&spec)).expect("it encodes");
            let shape: TableShape<'_> = postcard::from_bytes(&bytes).expect("it was encoded");
            assert_eq!(shape.spec(), spec);
        }
    }
}
