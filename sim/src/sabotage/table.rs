//! Which scenarios provoke what happens once a rule is broken, and who is meant to notice.

use lotus_checker::Anomaly;
use lotus_sabotage::Rule;

use crate::pairs::{AT_MOST_ONE, COUNTED};
use crate::properties::durability::DURABLE;
use crate::properties::progress::PROGRESS;
use crate::run::{ENDS, READS};

/// One rule of the table.
pub(super) struct Hunted {
    /// Named scenarios, the most promising one first.
    pub(super) scenarios: &'static [&'static str],
    /// Who is meant to notice.
    meant: &'static [Watch],
}

impl Hunted {
    /// Whether this property is meant to fall.
    pub(super) fn is_meant(&self, property: &str) -> bool {
        self.meant.iter().any(|watch| match watch {
            Watch::Isolation => Anomaly::ALL.iter().any(|anomaly| anomaly.name() == property),
            Watch::Property(name) => *name == property,
        })
    }
}

/// Who may notice.
enum Watch {
    /// The isolation checker, whichever anomaly it finds.
    Isolation,
    /// The property of this name.
    Property(&'static str),
}

use Watch::{Isolation, Property};

const LOGGED: Watch = Property(lotus::inspect::LOGGED);
const BACKED: Watch = Property(lotus::inspect::BACKED);
const LOCKED: Watch = Property(lotus::inspect::LOCKED);
const REPLICATED: Watch = Property("every replica is byte for byte the same");
const RECORDED: Watch = Property("every version has its record, whole and its own");
const UNLOCKED: Watch = Property("no lock is left held");

/// What is known of a rule.
pub(super) const fn row_of(rule: Rule) -> Hunted {
    let (scenarios, meant): (&[&str], &[Watch]) = match rule {
        Rule::ReadLocks => (&["h20-rows-that-come-and-go"], &[Isolation, Property(READS)]),
        Rule::FirstCommitterWins => (&["h18-writers-behind"], &[Isolation]),
        Rule::SnapshotsWait => (&["h1-snapshots-meet-commits"], &[Isolation]),
        Rule::TimestampAfterCells => (&["h18-fresh-snapshots"], &[Isolation]),
        Rule::BackupsFirst => (&["h3-primaries-come-last"], &[BACKED]),
        Rule::UnlockLast => (&["h3-primaries-come-last"], &[LOCKED]),
        Rule::LocksCoverCommit => (&["h3-primaries-come-last"], &[LOCKED]),
        Rule::OneSlotPerName => (&["h5-one-name-one-slot"], &[Isolation]),
        Rule::WritersExcludeReaders => (
            &["h6-readers-beside-writers", "h20-rows-that-come-and-go"],
            &[Isolation, Property(READS)],
        ),
        Rule::FreeSlotsAreZero => {
            (&["h7-full-lock-buckets"], &[Property(ENDS), Property(PROGRESS)])
        }
        Rule::UpgradesAreExplicit => (&["h7-read-then-write"], &[LOCKED, Isolation]),
        Rule::StaleRequestsAreRefused => {
            (&["h9-late-lock-requests"], &[UNLOCKED, Property(ENDS), Property(PROGRESS)])
        }
        Rule::RepliesNameTheirCall => (&["h18-delayed-timestamps"], &[Isolation, Property(ENDS)]),
        Rule::EndsAreRepeated => (&["h10-lost-ends"], &[UNLOCKED]),
        Rule::EndsReachAllAsked => (
            &["h10-owners-out-of-reach", "h10-lost-ends"],
            &[UNLOCKED, Property(PROGRESS), Property(ENDS)],
        ),
        Rule::EndsNameTheirAttempt => (&["h9-late-lock-requests"], &[Isolation, LOCKED]),
        Rule::AcksNameTheirAttempt => (
            &["h9-late-lock-requests", "h10-lost-ends"],
            &[UNLOCKED, Property(ENDS), Property(PROGRESS)],
        ),
        Rule::LogBeforeCells => (&["h12-half-written"], &[LOGGED]),
        Rule::LogNamesAll => (&["h12-half-written"], &[LOGGED]),
        Rule::AbsenceIsNotEviction => (&["h13-overwritten-versions"], &[Property(READS)]),
        Rule::OldestVersionFirst => (&["h13-overwritten-versions"], &[Property(READS)]),
        Rule::RecordsAreNotNewer => (&["h13-overwritten-versions"], &[Isolation]),
        Rule::SlabsAreTakenOnce => (&["h13-first-slabs", "h16-many-log-slots"], &[RECORDED]),
        Rule::RecordChecksums => (&["h14-torn-words"], &[Property(READS)]),
        Rule::LogSlotsAreOwn => (&["h16-many-log-slots"], &[LOGGED]),
        Rule::SnapshotsAreFresh => (&["h18-fresh-snapshots"], &[Isolation]),
        Rule::RequestsAreNotJoined => (&["h18-delayed-timestamps"], &[Isolation]),
        Rule::AbsentRowsAreLocked => {
            (&["h20-rows-that-come-and-go"], &[Isolation, Property(READS), Property(AT_MOST_ONE)])
        }
        Rule::BucketsAreLocked => (
            &["h20-crowded-index-buckets"],
            &[Isolation, Property(READS), Property(COUNTED), Property(DURABLE), REPLICATED],
        ),
        Rule::ClaimsAreRemembered => (
            &["h20-crowded-index-buckets"],
            &[Isolation, Property(READS), Property(COUNTED), Property(DURABLE)],
        ),
        Rule::UnknownIsNotAborted => (&["h21-memory-out-of-reach"], &[Isolation]),
        Rule::AbandonedAttemptsEnd => (&["h21-callers-go-away"], &[Property(READS)]),
        Rule::CommitsOutliveCallers => (&["h21-callers-go-away"], &[LOCKED]),
        Rule::FailedWritesAreRepeated => (&["h22-stragglers"], &[LOGGED, LOCKED, REPLICATED]),
        Rule::OldConnectionsAreClosed => {
            (&["h22-stragglers"], &[Isolation, LOGGED, LOCKED, REPLICATED])
        }
        _ => (&[], &[]),
    };
    Hunted { scenarios, meant }
}
