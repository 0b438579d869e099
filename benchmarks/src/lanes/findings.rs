//! What an audit finds: some of it one by one, the rest counted.

/// Findings that are told one by one.
const MAX_TOLD: usize = 10;

/// What is wrong, of which the first is told.
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

    /// Sentences for a person; none if all is well.
    pub(crate) fn told(self) -> Vec<String> {
        let Self { mut told, more } = self;
        told.extend((more > 0).then(|| format!("and {more} more")));
        told
    }
}
