//! Keys and names as people read them, in errors and logs.

use std::fmt;

/// Displays a key in the format of `lotus get`: text if every character is visible, eight bytes
/// that are not text as a big-endian number, and other keys in hex. Text that looks like a number
/// or like hex is shown in hex as well.
///
/// ```
/// use lotus_mvcc::shown::ShownKey;
///
/// assert_eq!(ShownKey(b"alice").to_string(), "alice");
/// assert_eq!(ShownKey(&61_u64.to_be_bytes()).to_string(), "61");
/// assert_eq!(ShownKey(b"a\n").to_string(), "0x610a");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShownKey<'a>(pub &'a [u8]);

impl fmt::Display for ShownKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.chars().all(is_seen));
        let is_other = |text: &str| {
            text.starts_with("0x") || text.bytes().all(|letter| letter.is_ascii_digit())
        };
        match (text, bytes.try_into()) {
            (Some(text), _) if !is_other(text) => f.write_str(text),
            (None, Ok(number)) => write!(f, "{}", u64::from_be_bytes(number)),
            _ => {
                f.write_str("0x")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// Displays a table's name, with an escape for each invisible character.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShownName<'a>(pub &'a str);

impl fmt::Display for ShownName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.chars().all(is_seen) {
            true => f.write_str(self.0),
            false => write!(f, "{}", self.0.escape_debug()),
        }
    }
}

/// Whether a terminal merely displays the character.
fn is_seen(letter: char) -> bool {
    matches!(letter, '"' | '\'' | '\\') || letter.escape_debug().count() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_acts_on_is_shown() {
        let long = [b'k'; 255];
        let all = "k".repeat(255);
        let cases: [(&[u8], &str); 10] = [
            (b"a b", "a b"),
            (b"it's \"so\"", "it's \"so\""),
            ("Zürich".as_bytes(), "Zürich"),
            (b"61", "0x3631"),
            (b"0xyz", "0x3078797a"),
            (b"\x1b[2J", "0x1b5b324a"),
            (b"\xff\xfe", "0xfffe"),
            (b"", "0x"),
            (b"abcdefgh", "abcdefgh"),
            (&long, &all),
        ];
        for (bytes, expected) in cases {
            assert_eq!(ShownKey(bytes).to_string(), expected);
        }
        assert_eq!(ShownKey(&u64::MAX.to_be_bytes()).to_string(), u64::MAX.to_string());
        assert_eq!(ShownName("a\"b").to_string(), "a\"b");
        assert_eq!(ShownName("a\nb").to_string(), "a\\nb");
    }
}
