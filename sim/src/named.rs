//! Scenarios by name: each pins one hazard of DESIGN §7, which its name begins with.
//!
//! They are files beside the sources, and part of the program. Seeds vary what a scenario leaves
//! open; the conditions that its hazard needs are always there.

use crate::scenario::Scenario;

macro_rules! files {
    ($($name:literal)*) => {
        /// Names and files.
        const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../scenarios/", $name, ".toml"))),)*];
    };
}

files! {
    "h1-snapshots-meet-commits"
    "h3-primaries-come-last"
    "h5-one-name-one-slot"
    "h6-readers-beside-writers"
    "h7-full-lock-buckets"
    "h7-read-then-write"
    "h9-late-lock-requests"
    "h10-lost-ends"
    "h10-owners-out-of-reach"
    "h12-half-written"
    "h13-overwritten-versions"
    "h13-first-slabs"
    "h14-torn-words"
    "h16-many-log-slots"
    "h18-delayed-timestamps"
    "h18-fresh-snapshots"
    "h18-writers-behind"
    "h20-rows-that-come-and-go"
    "h20-crowded-index-buckets"
    "h21-memory-out-of-reach"
    "h21-callers-go-away"
    "h22-stragglers"
}

/// Their names, by hazard.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// All of them, by hazard.
pub fn all() -> impl Iterator<Item = Scenario> {
    FILES.iter().map(|(name, text)| parse(name, text))
}

/// The scenario of that name.
pub fn find(name: &str) -> Option<Scenario> {
    let (name, text) = FILES.iter().find(|(known, _)| *known == name)?;
    Some(parse(name, text))
}

/// # Panics
/// Never: a test reads them all.
fn parse(name: &str, text: &str) -> Scenario {
    Scenario::parse(name, text.as_bytes()).expect("the files are sound")
}
