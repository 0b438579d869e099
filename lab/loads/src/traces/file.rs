//! Traces from text: one transaction a line, given by its type and its locks.
//!
//! ```text
//! # a comment
//! NEW r12 w77 w78
//! ```
//!
//! The type is any word of up to 16 letters, digits, `-` and `_`; `r12` reads under lock 12, and
//! `w77` writes under lock 77. Empty lines, and text after a `#`, are ignored.

use lotus_locks::Mode;

use super::{MAX_LOCKS, Transaction, WantedLock};

/// Largest number of bytes of a line.
pub const MAX_LINE_BYTES: usize = 16 << 10;
/// Largest number of types of transactions.
const MAX_KINDS: usize = 32;
/// Largest number of letters of a type.
const MAX_KIND_LETTERS: usize = 16;

/// A trace that cannot be read. Correct the line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A line is wrong.
    #[error("line {line}: {why}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// The reason.
        why: String,
    },
    /// The text has no transaction to run.
    #[error("it has no transaction")]
    Empty,
}

/// A trace from text.
#[derive(Clone, Debug)]
pub struct FileTrace {
    kinds: Vec<String>,
    transactions: Vec<Transaction>,
    locks: u64,
}

impl FileTrace {
    /// Reads a trace. There are as many locks as the largest number requires.
    ///
    /// # Errors
    /// [`TraceError`]: the first line that is wrong.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut trace = Self { kinds: Vec::new(), transactions: Vec::new(), locks: 0 };
        for (line, content) in (1..).zip(text.lines()) {
            trace.add(content).map_err(|why| TraceError::Line { line, why })?;
        }
        if trace.transactions.is_empty() { Err(TraceError::Empty) } else { Ok(trace) }
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        if line.len() > MAX_LINE_BYTES {
            let bytes = line.len();
            return Err(format!("{bytes} bytes are too long a line: at most {MAX_LINE_BYTES}"));
        }
        let (content, _) = line.split_once('#').unwrap_or((line, ""));
        let mut words = content.split_whitespace();
        let Some(kind) = words.next() else { return Ok(()) };
        let kind = self.kind(kind)?;
        let wants = words.map(want).collect::<Result<Vec<_>, _>>()?;
        let Some(most) = wants.iter().map(|want| want.lock).max() else {
            return Err(format!("{} takes no lock", self.kinds[kind]));
        };
        self.locks = self.locks.max(most + 1);
        self.transactions.push(Transaction::new(kind, wants));
        Ok(())
    }

    /// Number of a type.
    fn kind(&mut self, name: &str) -> Result<usize, String> {
        let is_letter =
            |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
        if name.len() > MAX_KIND_LETTERS || !name.chars().all(is_letter) {
            let shown: String = name.chars().take(MAX_KIND_LETTERS).collect();
            let rule = format!("up to {MAX_KIND_LETTERS} letters, digits, - and _");
            return Err(format!("{shown:?} is not a type of transactions: {rule}"));
        }
        if let Some(known) = self.kinds.iter().position(|kind| kind == name) {
            return Ok(known);
        }
        if self.kinds.len() == MAX_KINDS {
            return Err(format!("{name} is one type too many: at most {MAX_KINDS}"));
        }
        self.kinds.push(name.to_owned());
        Ok(self.kinds.len() - 1)
    }

    /// See [`super::Trace::locks`].
    pub const fn locks(&self) -> u64 {
        self.locks
    }

    /// Names of the types, in the order of [`Transaction::kind`].
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.kinds.iter().map(String::as_str)
    }

    /// The transaction number `turn`; the last transaction is followed by the first.
    pub(super) fn nth(&self, turn: u64) -> Transaction {
        let at = turn % self.transactions.len() as u64;
        self.transactions[at as usize].clone()
    }
}

/// Parses a lock of a line.
fn want(word: &str) -> Result<WantedLock, String> {
    let known = word.split_at_checked(1).and_then(|(operation, number)| match operation {
        "r" => Some((Mode::Shared, number)),
        "w" => Some((Mode::Exclusive, number)),
        _ => None,
    });
    let shown = || word.chars().take(24).collect::<String>();
    let Some((mode, number)) = known else {
        return Err(format!("{:?} is not an operation: r12 reads, w12 writes", shown()));
    };
    let lock = number.parse().ok().filter(|lock| *lock < MAX_LOCKS);
    let most = MAX_LOCKS - 1;
    let lock = lock.ok_or_else(|| format!("{:?} names no lock: 0 to {most}", shown()))?;
    Ok(WantedLock { lock, mode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_transactions() {
        let text = "# two types\nNEW r12 w77 w78\n\nPAY w3 # pays\n  NEW w3 r3\n";
        let trace = FileTrace::parse(text).expect("a trace");
        assert_eq!(trace.locks(), 79);
        assert!(trace.kinds().eq(["NEW", "PAY"]));
        let read = vec![WantedLock::read(12), WantedLock::write(77), WantedLock::write(78)];
        assert_eq!(trace.nth(0), Transaction { kind: 0, wants: read });
        assert_eq!(trace.nth(1), Transaction { kind: 1, wants: vec![WantedLock::write(3)] });
        assert_eq!(trace.nth(2), Transaction { kind: 0, wants: vec![WantedLock::write(3)] });
        assert_eq!(trace.nth(3), trace.nth(0), "it begins again");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let long = format!("A r1\nB {}", "r1 ".repeat(MAX_LINE_BYTES));
        let kinds: String = (0..=MAX_KINDS).map(|kind| format!("K{kind} r1\n")).collect();
        for (text, expected) in [
            ("A r1\nB x12", "line 2: \"x12\" is not an operation: r12 reads, w12 writes"),
            ("A 12", "line 1: \"12\" is not an operation: r12 reads, w12 writes"),
            ("A ü12", "line 1: \"ü12\" is not an operation: r12 reads, w12 writes"),
            ("A r", "line 1: \"r\" names no lock: 0 to 134217727"),
            ("A w-1", "line 1: \"w-1\" names no lock: 0 to 134217727"),
            ("A w134217728", "line 1: \"w134217728\" names no lock: 0 to 134217727"),
            ("\nA", "line 2: A takes no lock"),
            (
                "a/b r1",
                "line 1: \"a/b\" is not a type of transactions: up to 16 letters, digits, - and _",
            ),
            (&long, "line 2: 49154 bytes are too long a line: at most 16384"),
            (&kinds, "line 33: K32 is one type too many: at most 32"),
            ("# nothing\n", "it has no transaction"),
        ] {
            let why = FileTrace::parse(text).expect_err(expected).to_string();
            assert_eq!(why, expected);
        }
    }
}
