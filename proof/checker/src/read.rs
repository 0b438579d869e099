//! Reader of histories in JSON Lines.
//!
//! One line is in memory at a time. Fields may come in any order, without repetition; unknown
//! fields are refused.

use std::io::{BufRead, Read};

use crate::error::{HistoryError, Problem};
use crate::history::{Access, Attempt, Builder, History, Isolation, Key, Operation, Status};
use crate::json::Cursor;

/// Limit of a line's length, so that a file without line breaks does not fill the memory.
const MAX_LINE_BYTES: u64 = 16 << 20;

impl History {
    /// Reads a history, one attempt a line.
    ///
    /// # Errors
    /// [`HistoryError::Line`] with the first line that is not an attempt; [`HistoryError::Io`] if
    /// the source fails.
    pub fn read(mut source: impl BufRead) -> Result<Self, HistoryError> {
        let mut builder = Self::builder();
        let mut bytes = Vec::new();
        for line in 1.. {
            bytes.clear();
            let read = source.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes)?;
            if read == 0 {
                break;
            }
            let text = bytes.strip_suffix(b"\n");
            let too_long = text.is_none() && read as u64 == MAX_LINE_BYTES;
            let parsed = if too_long {
                Err(Problem::LineTooLong)
            } else {
                parse(text.unwrap_or(&bytes), &mut builder)
            };
            parsed.map_err(|problem| HistoryError::Line { line, problem })?;
        }
        builder.finish()
    }
}

/// Fields of a line that have been parsed so far.
#[derive(Default)]
struct Fields {
    id: Option<u64>,
    session: Option<u64>,
    start: Option<u64>,
    /// The inner option is `None` for `null`.
    end: Option<Option<u64>>,
    isolation: Option<Isolation>,
    status: Option<Status>,
    commit_ts: Option<Option<u64>>,
    snapshot: Option<Option<u64>>,
    ops: Option<()>,
}

/// Adds the attempt on one line.
fn parse(line: &[u8], builder: &mut Builder) -> Result<(), Problem> {
    let mut cursor = Cursor::new(line);
    let mut fields = Fields::default();
    cursor.expect(b'{', "an object")?;
    loop {
        let name = cursor.string()?;
        cursor.expect(b':', "a colon")?;
        fields.take(&name, &mut cursor, builder)?;
        if !cursor.next_member(b'}', "a comma or the end of the object")? {
            break;
        }
    }
    cursor.end()?;
    builder.add_attempt(fields.attempt()?)
}

impl Fields {
    fn take(
        &mut self,
        name: &str,
        cursor: &mut Cursor<'_>,
        builder: &mut Builder,
    ) -> Result<(), Problem> {
        match name {
            "id" => once(&mut self.id, "id", || cursor.number()),
            "session" => once(&mut self.session, "session", || cursor.number()),
            "start" => once(&mut self.start, "start", || cursor.number()),
            "end" => once(&mut self.end, "end", || cursor.optional_number()),
            "iso" => once(&mut self.isolation, "iso", || isolation(cursor)),
            "status" => once(&mut self.status, "status", || status(cursor)),
            "cts" => once(&mut self.commit_ts, "cts", || cursor.optional_number()),
            "snap" => once(&mut self.snapshot, "snap", || cursor.optional_number()),
            "ops" => once(&mut self.ops, "ops", || operations(cursor, builder)),
            unknown => Err(Problem::UnknownField(unknown.chars().take(40).collect())),
        }
    }

    fn attempt(self) -> Result<Attempt, Problem> {
        self.ops.ok_or(Problem::MissingField("ops"))?;
        Ok(Attempt {
            id: self.id.ok_or(Problem::MissingField("id"))?,
            session: self.session.ok_or(Problem::MissingField("session"))?,
            start: self.start.ok_or(Problem::MissingField("start"))?,
            end: self.end.ok_or(Problem::MissingField("end"))?,
            isolation: self.isolation.ok_or(Problem::MissingField("iso"))?,
            status: self.status.ok_or(Problem::MissingField("status"))?,
            commit_ts: self.commit_ts.flatten(),
            snapshot: self.snapshot.flatten(),
        })
    }
}

/// Parses a field; an error if it was given before.
fn once<T>(
    field: &mut Option<T>,
    name: &'static str,
    parse: impl FnOnce() -> Result<T, Problem>,
) -> Result<(), Problem> {
    if field.is_some() {
        return Err(Problem::RepeatedField(name));
    }
    *field = Some(parse()?);
    Ok(())
}

fn isolation(cursor: &mut Cursor<'_>) -> Result<Isolation, Problem> {
    let problem = cursor.expected("\"sr\" or \"si\"");
    match &*cursor.string()? {
        "sr" => Ok(Isolation::Serializable),
        "si" => Ok(Isolation::Snapshot),
        _ => Err(problem),
    }
}

fn status(cursor: &mut Cursor<'_>) -> Result<Status, Problem> {
    let problem = cursor.expected("\"ok\", \"fail\" or \"info\"");
    match &*cursor.string()? {
        "ok" => Ok(Status::Committed),
        "fail" => Ok(Status::Aborted),
        "info" => Ok(Status::Unknown),
        _ => Err(problem),
    }
}

fn operations(cursor: &mut Cursor<'_>, builder: &mut Builder) -> Result<(), Problem> {
    cursor.expect(b'[', "an array of operations")?;
    if cursor.eat(b']') {
        return Ok(());
    }
    loop {
        operation(cursor, builder)?;
        if !cursor.next_member(b']', "a comma or the end of the operations")? {
            return Ok(());
        }
    }
}

/// `["r", table, key, version]`.
fn operation(cursor: &mut Cursor<'_>, builder: &mut Builder) -> Result<(), Problem> {
    cursor.expect(b'[', "an operation")?;
    let problem = cursor.expected("\"r\", \"w\" or \"d\"");
    let access = match &*cursor.string()? {
        "r" => Access::Read,
        "w" => Access::Write,
        "d" => Access::Delete,
        _ => return Err(problem),
    };
    cursor.expect(b',', "a comma")?;
    let table = cursor.string()?;
    cursor.expect(b',', "a comma")?;
    let text;
    let key = if cursor.peek() == Some(b'"') {
        text = cursor.string()?;
        Key::Text(&text)
    } else {
        Key::Number(cursor.number()?)
    };
    cursor.expect(b',', "a comma")?;
    let version = cursor.optional_number()?;
    cursor.expect(b']', "the end of the operation")?;
    builder.add_operation(Operation { access, table: &table, key, version })
}
