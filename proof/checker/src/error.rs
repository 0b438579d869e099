//! Errors of malformed histories.
//!
//! An error is a fault of the file or of the program that recorded it. A fault of the database is
//! never an error but a [`Violation`](crate::Violation).

use std::error::Error;
use std::fmt;
use std::io;

/// Reason why a history could not be read or built.
#[derive(Debug)]
#[non_exhaustive]
pub enum HistoryError {
    /// Reading failed; the lines read so far are lost. The caller may try again.
    Io(io::Error),
    /// A line is not a valid attempt of a transaction. The caller must correct the history.
    Line {
        /// Line from 1; for a built history, the number of the attempt.
        line: usize,
        /// Fault of the line.
        problem: Problem,
    },
}

/// Fault of a line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Problem {
    /// A different token was expected at this byte.
    Syntax {
        /// Byte of the line, from 1.
        column: usize,
        /// Description of the expected token.
        expected: &'static str,
    },
    /// A number above 2^64 - 1.
    NumberTooLarge {
        /// First byte of the number, from 1.
        column: usize,
    },
    /// A field that the format does not have.
    UnknownField(String),
    /// A field given twice on a line.
    RepeatedField(&'static str),
    /// A missing field, or a `null` where a value is required.
    MissingField(&'static str),
    /// An earlier attempt has the same id.
    DuplicateId {
        /// The id.
        id: u64,
        /// Line of the earlier attempt.
        first: usize,
    },
    /// The attempt ended before it started.
    EndsBeforeStart,
    /// The session's previous attempt had not ended.
    SessionOverlap {
        /// Line of the previous attempt.
        with: usize,
    },
    /// More than 16 MiB without a line break.
    LineTooLong,
    /// More attempts, rows or operations than 32-bit indexes can name.
    TooLarge,
}

impl fmt::Display for HistoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the history cannot be read: {error}"),
            Self::Line { line, problem } => write!(f, "line {line}: {problem}"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { column, expected } => write!(f, "expected {expected} at byte {column}"),
            Self::NumberTooLarge { column } => {
                write!(f, "the number at byte {column} does not fit in 64 bits")
            }
            Self::UnknownField(name) => write!(f, "there is no field {name:?}"),
            Self::RepeatedField(name) => write!(f, "the field {name:?} is given twice"),
            Self::MissingField(name) => write!(f, "the field {name:?} is missing"),
            Self::DuplicateId { id, first } => write!(f, "id {id} was used on line {first}"),
            Self::EndsBeforeStart => f.write_str("the attempt ends before it starts"),
            Self::SessionOverlap { with } => {
                write!(f, "the attempt overlaps with line {with} of the same session")
            }
            Self::LineTooLong => f.write_str("longer than 16 MiB"),
            Self::TooLarge => f.write_str("the history is too large to be numbered in 32 bits"),
        }
    }
}

impl Error for HistoryError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Line { .. } => None,
        }
    }
}

impl From<io::Error> for HistoryError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
