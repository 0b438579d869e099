//! Conversion of keys and values between bytes and text, in the forms described by `lotus get
//! --help`. Pure.
//!
//! Every form but `text` can be parsed back, and the output has no character that a terminal would
//! act on.

use std::fmt::Write as _;

use lotus_security::{is_plain, printable};

use crate::args::Format;

/// Part of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Key,
    Value,
}

/// Bytes of a key or value given on the command line.
///
/// # Errors
/// The second half of a sentence that says why the text is invalid.
pub fn parse(text: &str, format: Format, part: Part) -> Result<Vec<u8>, String> {
    let hex = text.strip_prefix("0x");
    match (format, hex) {
        (Format::Text, _) => Ok(text.into()),
        (_, Some(digits)) => parse_hex(digits),
        (Format::Hex, None) => parse_hex(text),
        (Format::U64, None) => Ok(parse_number(text)?.to_be_bytes().into()),
        (Format::U64Le, None) => Ok(parse_number(text)?.to_le_bytes().into()),
        (Format::Auto, None) if part == Part::Key && is_number(text) => {
            Ok(parse_number(text)?.to_be_bytes().into())
        }
        (Format::Auto, None) => Ok(text.into()),
    }
}

/// Text for a key or value.
pub fn show(bytes: &[u8], format: Format, part: Part) -> String {
    let number = <[u8; 8]>::try_from(bytes).ok();
    let text = plain(bytes);
    let shown = match format {
        Format::Text => text.map(str::to_owned),
        Format::Hex => None,
        Format::U64 => number.map(|bytes| u64::from_be_bytes(bytes).to_string()),
        Format::U64Le => number.map(|bytes| u64::from_le_bytes(bytes).to_string()),
        Format::Auto => match (text, number) {
            (Some(text), _) => {
                let other = text.starts_with("0x") || part == Part::Key && is_number(text);
                (!other).then(|| text.to_owned())
            }
            (None, Some(bytes)) if part == Part::Key => Some(u64::from_be_bytes(bytes).to_string()),
            (None, _) => None,
        },
    };
    shown.unwrap_or_else(|| hex(bytes))
}

/// Bytes in hex, with `0x`.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = "0x".to_owned();
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A name as written, with an escape for each invisible character.
pub fn written(name: &str) -> String {
    printable(name).into_owned()
}

/// The bytes as text, if every character is visible or a space.
fn plain(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| text.chars().all(is_plain))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn parse_number(text: &str) -> Result<u64, String> {
    if !is_number(text) {
        return Err("it is not a number".to_owned());
    }
    text.parse().map_err(|_| "it is more than 64 bits have room for".to_owned())
}

fn parse_hex(digits: &str) -> Result<Vec<u8>, String> {
    let why = "it is not hex: two digits for each byte";
    if !digits.is_ascii() || !digits.len().is_multiple_of(2) {
        return Err(why.to_owned());
    }
    let byte = |at| match &digits[at..at + 2] {
        signed if signed.starts_with('+') => Err(why.to_owned()),
        pair => u8::from_str_radix(pair, 16).map_err(|_| why.to_owned()),
    };
    (0..digits.len()).step_by(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [Part; 2] = [Part::Key, Part::Value];

    #[test]
    fn keys_and_values_are_what_they_look_like() {
        let seven = 7_u64.to_be_bytes();
        let cases: [(&str, Format, &[u8], &[u8]); 8] = [
            ("7", Format::Auto, &seven, b"7"),
            ("0x0aFF", Format::Auto, &[10, 255], &[10, 255]),
            ("alice", Format::Auto, b"alice", b"alice"),
            ("-1", Format::Auto, b"-1", b"-1"),
            ("0x61", Format::Text, b"0x61", b"0x61"),
            ("61", Format::Hex, b"a", b"a"),
            ("7", Format::U64, &seven, &seven),
            ("7", Format::U64Le, &[7, 0, 0, 0, 0, 0, 0, 0], &[7, 0, 0, 0, 0, 0, 0, 0]),
        ];
        for (text, format, key, value) in cases {
            assert_eq!(parse(text, format, Part::Key).as_deref(), Ok(key), "{text}");
            assert_eq!(parse(text, format, Part::Value).as_deref(), Ok(value), "{text}");
        }
        for (text, format) in [
            ("0x0", Format::Auto),
            ("0xzz", Format::Auto),
            ("0x+1", Format::Auto),
            ("0xä", Format::Auto),
            ("99999999999999999999", Format::Auto),
            ("", Format::U64),
            ("-1", Format::U64),
            ("abc", Format::Hex),
        ] {
            assert!(parse(text, format, Part::Key).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_are_shown_as_what_they_look_like() {
        let seven = 7_u64.to_be_bytes();
        let cases: [(&[u8], Format, &str, &str); 9] = [
            (&seven, Format::Auto, "7", "0x0000000000000007"),
            (b"customer", Format::Auto, "customer", "customer"),
            (b"7", Format::Auto, "0x37", "7"),
            (b"0x", Format::Auto, "0x3078", "0x3078"),
            (b"two words", Format::Auto, "two words", "two words"),
            (b"a\tb\x1b[31m", Format::Text, "0x6109621b5b33316d", "0x6109621b5b33316d"),
            ("\u{202e}".as_bytes(), Format::Auto, "0xe280ae", "0xe280ae"),
            (&[0xff], Format::U64, "0xff", "0xff"),
            (b"", Format::Auto, "", ""),
        ];
        for (bytes, format, key, value) in cases {
            assert_eq!(show(bytes, format, Part::Key), key);
            assert_eq!(show(bytes, format, Part::Value), value);
        }
    }

    #[test]
    fn names_are_written_as_they_are_unless_a_terminal_would_act_on_them() {
        for (name, expected) in [("it's", "it's"), ("a\\b", "a\\b"), ("\x1b[2J", "\\u{1b}[2J")] {
            assert_eq!(written(name), expected);
        }
    }

    /// All strings of up to three bytes that mean something, and eight bytes that begin with them.
    #[test]
    fn what_is_shown_can_be_given_back_and_is_safe_to_show() {
        let bytes = [0, b'\t', 0x1b, b' ', b'0', b'7', b'x', b'a', b'\\', 0xc3, 0xa9, 0xff];
        let mut all: Vec<Vec<u8>> = vec![Vec::new()];
        for length in 0..3 {
            let longest: Vec<_> = all.iter().filter(|one| one.len() == length).cloned().collect();
            let longer = |one: Vec<u8>| bytes.map(|byte| [&one[..], &[byte]].concat());
            all.extend(longest.into_iter().flat_map(longer));
        }
        let padded = all.iter().map(|one| [&one[..], &b"00000000"[one.len()..]].concat());
        let padded: Vec<Vec<u8>> = padded.collect();
        for bytes in all.into_iter().chain(padded) {
            for part in PARTS {
                for format in [Format::Auto, Format::Hex, Format::U64, Format::U64Le] {
                    let shown = show(&bytes, format, part);
                    assert!(!shown.chars().any(char::is_control), "{shown:?}");
                    assert_eq!(parse(&shown, format, part), Ok(bytes.clone()), "{shown}");
                }
            }
        }
    }
}
