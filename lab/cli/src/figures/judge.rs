//! Judging: the deviation of our ratios from the published ratios, and whether the deviation is
//! within a band.
//!
//! Pure. Products of published factors differ from other published factors of the same paper by up
//! to 7 %, so a band of 15 % is a fair tolerance.

use serde::{Deserialize, Serialize};

/// Permitted deviation of a ratio, unless the figure sets another.
pub(super) const WITHIN: f64 = 0.15;

/// Range in which a ratio counts as equal to the published ratio, ends included.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
pub(super) struct Band {
    pub low: f64,
    pub high: f64,
}

impl Band {
    /// The band around a published ratio.
    pub(super) fn around(published: f64, within: f64) -> Self {
        Self { low: published * (1.0 - within), high: published * (1.0 + within) }
    }

    pub(super) fn has(self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// A published ratio beside our ratio.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Judged {
    pub ours: f64,
    pub published: f64,
    pub band: Band,
    pub in_band: bool,
}

impl Judged {
    pub(super) fn new(ours: f64, published: f64, band: Band) -> Self {
        Self { ours, published, band, in_band: band.has(ours) }
    }

    /// Deviation of our ratio in percent; empty if the published value is zero.
    pub(super) fn off(&self) -> String {
        off(self.ours, self.published)
    }
}

/// Deviation of our value from the published value, in percent; empty if the published value is
/// zero.
pub(super) fn off(ours: f64, published: f64) -> String {
    match published {
        0.0 => String::new(),
        _ => format!("{:+.1}", (ours / published - 1.0) * 100.0),
    }
}

/// Whether two ratios are on the same side of 1, so that both mean an increase, or both a decrease.
pub(super) fn same_sign(ours: f64, published: f64) -> bool {
    (ours - 1.0) * (published - 1.0) > 0.0 || ours == published
}

/// Returns the word for a table cell.
pub(super) const fn yes_no(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_band_reaches_as_far_up_as_down() {
        let cases = [(2.1, 1.79, true), (2.1, 2.41, true), (2.1, 1.78, false), (2.1, 2.42, false)];
        for (published, ours, in_band) in cases {
            let judged = Judged::new(ours, published, Band::around(published, WITHIN));
            assert_eq!(judged.in_band, in_band, "{judged:?}");
        }
        assert!(!Band::around(1.0, WITHIN).has(f64::NAN));
    }

    #[test]
    fn a_deviation_is_told_with_its_sign() {
        assert_eq!(
            (off(1.1, 1.0), off(0.5, 1.0), off(1.0, 0.0)),
            ("+10.0".into(), "-50.0".into(), String::new())
        );
    }

    #[test]
    fn signs_are_those_of_changes() {
        for (ours, published, same) in [
            (0.9, 0.6, true),
            (1.1, 1.4, true),
            (1.1, 0.9, false),
            (1.0, 1.0, true),
            (1.0, 0.9, false),
        ] {
            assert_eq!(same_sign(ours, published), same, "{ours}, {published}");
        }
    }
}
