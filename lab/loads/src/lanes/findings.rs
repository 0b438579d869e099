//! Findings of an audit: the first findings in full, the rest only counted.

/// Largest number of findings that are reported in full.
const MAX_TOLD: usize = 10;

/// Defects found, of which the first are reported in full.
#[derive(Default)]
pub(crate) struct Findings {
    told: Vec<String>,
    more: usize,
}

impl Findings {
    pub(crate) fn add(&mut self, finding: impl FnOnce() -> String) {
        match self.told.len() < MAX_TOLD {
            true => self.told.push(finding()),
            false => self.more += 1,
        }
    }

    /// Sentences for a person; empty if there were no findings.
    pub(crate) fn told(self) -> Vec<String> {
        let Self { mut told, more } = self;
        told.extend((more > 0).then(|| format!("and {more} more")));
        told
    }
}
