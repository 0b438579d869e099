//! Tables `[[table]]` of a cluster's file.

use std::ops::Range;

use lotus::{CriticalField, Inline, SpecError, TableSpec};
use serde::Deserialize;
use toml::Spanned;

/// A section `[[table]]`, before the checks. A missing field has the default of [`TableSpec`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenTable {
    name: Spanned<String>,
    record_bytes: Spanned<u32>,
    capacity: Spanned<u64>,
    key_bytes: Option<Spanned<u32>>,
    versions: Option<Spanned<u32>>,
    critical_field: Option<Spanned<WrittenField>>,
    shards: Option<Spanned<u32>>,
    inline: Option<WrittenInline>,
    ordered: Option<Spanned<bool>>,
}

/// A critical field: bytes of the key.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenField {
    start: u8,
    len: u8,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WrittenInline {
    Auto,
    Never,
}

/// An invalid table: its place in the file, and a sentence.
pub(super) type Wrong = (Range<usize>, String);

/// Specifications of the tables in the file.
///
/// # Errors
/// The first invalid table, or the first table with the name of an earlier table.
pub(super) fn specs(written: &[Spanned<WrittenTable>]) -> Result<Vec<TableSpec>, Wrong> {
    let mut specs: Vec<TableSpec> = Vec::new();
    for table in written {
        let spec = table.as_ref().spec();
        table.as_ref().check(&spec).map_err(|(at, why)| (at.unwrap_or(table.span()), why))?;
        if specs.iter().any(|other| other.name == spec.name) {
            return Err((table.as_ref().name.span(), format!("{} is named twice", spec.name)));
        }
        specs.push(spec);
    }
    Ok(specs)
}

impl WrittenTable {
    fn spec(&self) -> TableSpec {
        let mut spec = TableSpec::named(self.name.as_ref().clone())
            .record_bytes(*self.record_bytes.as_ref())
            .capacity(*self.capacity.as_ref());
        if let Some(bytes) = &self.key_bytes {
            spec = spec.key_bytes(*bytes.as_ref());
        }
        if let Some(versions) = &self.versions {
            spec = spec.versions(*versions.as_ref());
        }
        if let Some(field) = &self.critical_field {
            let WrittenField { start, len } = *field.as_ref();
            spec = spec.critical_field(CriticalField::Bytes { start, len });
        }
        if let Some(shards) = &self.shards {
            spec = spec.shards(*shards.as_ref());
        }
        if self.ordered.as_ref().is_some_and(|ordered| *ordered.as_ref()) {
            spec = spec.ordered();
        }
        match self.inline {
            Some(WrittenInline::Never) => spec.inline(Inline::Never),
            Some(WrittenInline::Auto) => spec.inline(Inline::Auto),
            None => spec,
        }
    }

    /// Checks the specification; an error has the position of the wrong key, if the key is written.
    fn check(&self, spec: &TableSpec) -> Result<(), (Option<Range<usize>>, String)> {
        if spec.is_internal() {
            let why = "names that begin with \"lotus.\" are kept for tables of the system";
            return Err((Some(self.name.span()), format!("{}: {why}", spec.name)));
        }
        let wrong = match spec.validate() {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let place = match &wrong {
            SpecError::NameEmpty | SpecError::NameTooLong { .. } => Some(self.name.span()),
            SpecError::RecordBytes { .. } => Some(self.record_bytes.span()),
            SpecError::Capacity { .. } => Some(self.capacity.span()),
            SpecError::KeyBytes { .. } => self.key_bytes.as_ref().map(Spanned::span),
            SpecError::Versions { .. } => self.versions.as_ref().map(Spanned::span),
            SpecError::CriticalField { .. } | SpecError::OrderedCriticalField => {
                self.critical_field.as_ref().map(Spanned::span)
            }
            SpecError::OrderedRowBytes { .. } => self.ordered.as_ref().map(Spanned::span),
            SpecError::Shards { .. } => self.shards.as_ref().map(Spanned::span),
            _ => None,
        };
        Err((place, wrong.to_string()))
    }
}
