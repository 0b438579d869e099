//! The subset of JSON for histories: objects and arrays of known shape, strings, whole numbers,
//! `null`.
//!
//! No function is recursive and no value is skipped: an unexpected value is an error where it
//! begins, however deeply nested.

use std::borrow::Cow;

use crate::error::Problem;

/// A position in a line.
pub(crate) struct Cursor<'l> {
    bytes: &'l [u8],
    at: usize,
}

impl<'l> Cursor<'l> {
    pub(crate) fn new(bytes: &'l [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The error that `expected` is missing at this position.
    pub(crate) fn expected(&self, expected: &'static str) -> Problem {
        Problem::Syntax { column: self.at + 1, expected }
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    /// The next byte that is not white space.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        self.skip_space();
        self.bytes.get(self.at).copied()
    }

    /// Skips `byte` if it is next, and returns whether it is.
    pub(crate) fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Skips `byte`; errors call it `name`.
    pub(crate) fn expect(&mut self, byte: u8, name: &'static str) -> Result<(), Problem> {
        if self.eat(byte) { Ok(()) } else { Err(self.expected(name)) }
    }

    /// Skips the separator of members: returns true after a comma, false after `close`.
    pub(crate) fn next_member(&mut self, close: u8, name: &'static str) -> Result<bool, Problem> {
        if self.eat(b',') {
            return Ok(true);
        }
        self.expect(close, name).map(|()| false)
    }

    /// Checks that only white space is left.
    pub(crate) fn end(&mut self) -> Result<(), Problem> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.expected("the end of the line")),
        }
    }

    /// A whole number below 2^64.
    pub(crate) fn number(&mut self) -> Result<u64, Problem> {
        self.skip_space();
        let start = self.at;
        let mut number = 0u64;
        while let Some(digit @ b'0'..=b'9') = self.bytes.get(self.at) {
            let grown = number.checked_mul(10);
            number = grown
                .and_then(|grown| grown.checked_add(u64::from(digit - b'0')))
                .ok_or(Problem::NumberTooLarge { column: start + 1 })?;
            self.at += 1;
        }
        let zero_padded = self.at - start > 1 && self.bytes[start] == b'0';
        let goes_on = matches!(self.bytes.get(self.at), Some(b'.' | b'e' | b'E'));
        if self.at == start || zero_padded || goes_on {
            self.at = start;
            return Err(self.expected("a whole number from 0 to 2^64 - 1"));
        }
        Ok(number)
    }

    /// A whole number, or `null`.
    pub(crate) fn optional_number(&mut self) -> Result<Option<u64>, Problem> {
        self.skip_space();
        if self.bytes[self.at..].starts_with(b"null") {
            self.at += 4;
            return Ok(None);
        }
        self.number().map(Some)
    }

    /// A string. Borrows from the line unless it contains an escape.
    pub(crate) fn string(&mut self) -> Result<Cow<'l, str>, Problem> {
        self.expect(b'"', "a string")?;
        let start = self.at;
        let bytes = self.bytes;
        let mut unescaped: Option<Vec<u8>> = None;
        loop {
            let plain = self.at;
            while let Some(0x20..=0x21 | 0x23..=0x5B | 0x5D..) = bytes.get(self.at) {
                self.at += 1;
            }
            if let Some(unescaped) = &mut unescaped {
                unescaped.extend_from_slice(&bytes[plain..self.at]);
            }
            match bytes.get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    let text = unescaped.get_or_insert_with(|| bytes[start..self.at].to_owned());
                    self.at += 1;
                    let character = self.escape()?;
                    text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                _ => return Err(self.expected("the rest of a string")),
            }
        }
        let raw = &bytes[start..self.at];
        self.at += 1;
        let text = match unescaped {
            None => std::str::from_utf8(raw).ok().map(Cow::Borrowed),
            Some(text) => String::from_utf8(text).ok().map(Cow::Owned),
        };
        text.ok_or(Problem::Syntax { column: start + 1, expected: "UTF-8" })
    }

    /// The character after a backslash.
    fn escape(&mut self) -> Result<char, Problem> {
        let problem = self.expected("an escaped character");
        let Some(&byte) = self.bytes.get(self.at) else { return Err(problem) };
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.code_point().ok_or(problem),
            _ => return Err(problem),
        })
    }

    /// Four hexadecimal digits, or a surrogate pair of two times four with `\u` between.
    fn code_point(&mut self) -> Option<char> {
        let high = self.four_digits()?;
        if !(0xD800..0xDC00).contains(&high) {
            return char::from_u32(high);
        }
        if self.bytes.get(self.at..self.at + 2)? != br"\u" {
            return None;
        }
        self.at += 2;
        let low = self.four_digits()?.checked_sub(0xDC00).filter(|low| *low < 0x400)?;
        char::from_u32(0x10000 + ((high - 0xD800) << 10 | low))
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits = self.bytes.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |value, digit| {
            char::from(*digit).to_digit(16).map(|digit| value << 4 | digit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let number = |text: &str| Cursor::new(text.as_bytes()).number().ok();
        for (text, expected) in [
            ("0", Some(0)),
            (" 42,", Some(42)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("99999999999999999999999999999999999999", None),
            ("-1", None),
            ("007", None),
            ("1.5", None),
            ("1e3", None),
            ("", None),
            ("null", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
    }

    #[test]
    fn strings() {
        let string = |text: &[u8]| Cursor::new(text).string().ok().map(Cow::into_owned);
        let cases: &[(&[u8], Option<&str>)] = &[
            (br#""""#, Some("")),
            (br#" "acct" "#, Some("acct")),
            ("\"größe\"".as_bytes(), Some("größe")),
            (br#""a\"\\\/\n\u0041b""#, Some("a\"\\/\nAb")),
            (br#""\ud83e\udeb7""#, Some("\u{1FAB7}")),
            (br#""\ud83e""#, None),
            (br#""\ud83e\u0041""#, None),
            (br#""\udc00""#, None),
            (br#""\u00"#, None),
            (br#""\x""#, None),
            (br#""open"#, None),
            (b"\"tab\there\"", None),
            (b"\"\xFF\xFE\"", None),
            (br#""\"#, None),
        ];
        for (text, expected) in cases {
            assert_eq!(string(text).as_deref(), *expected, "{}", text.escape_ascii());
        }
    }
}
