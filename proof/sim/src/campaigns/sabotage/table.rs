//! Scenarios that provoke each rule, and the checkers that must notice the broken rule.

use lotus_checker::Anomaly;
use lotus_sabotage::Rule;

use crate::drive::lives::{GROWS, KEPT, TURNS};
use crate::drive::starts::STARTED;
use crate::properties::balance::{RESTS, SHARED};
use crate::properties::copies::OF_ONE_TIME;
use crate::properties::cuts::GAVE_WAY;
use crate::properties::drops::OWN_ROWS;
use crate::properties::durability::DURABLE;
use crate::properties::endless::IN_TIME;
use crate::properties::isolation::CHECKED;
use crate::properties::losses::MISSED;
use crate::properties::progress::{PROGRESS, WAITS};
use crate::properties::returns::RETURNED;
use crate::scenario::bins::{COUNTED as INSERTED, WITHIN_LIMIT};
use crate::scenario::pairs::{AT_MOST_ONE, COUNTED};
use crate::verdict::{ENDS, LOCKS, NO_PANIC, READS};

/// One rule of the table.
pub(super) struct RuleScenarios {
    rule: Rule,
    /// Named scenarios, the most promising first.
    pub(super) scenarios: &'static [&'static str],
    /// Checkers that must notice; one is enough.
    meant: &'static [Noticed],
}

impl RuleScenarios {
    /// Whether this property is expected to fail.
    pub(super) fn is_meant(&self, property: &str) -> bool {
        self.meant.iter().any(|watch| match watch {
            Noticed::Isolation => Anomaly::ALL.iter().any(|anomaly| anomaly.name() == property),
            Noticed::Property(name) => *name == property,
        })
    }
}

const fn hunted(
    rule: Rule,
    scenarios: &'static [&'static str],
    meant: &'static [Noticed],
) -> RuleScenarios {
    RuleScenarios { rule, scenarios, meant }
}

/// The row of a rule.
///
/// # Panics
/// Never: a test checks that every rule has a row.
pub(super) fn row_of(rule: Rule) -> &'static RuleScenarios {
    TABLE.iter().find(|row| row.rule == rule).expect("every rule has a row")
}

/// Checker that must notice.
enum Noticed {
    /// The isolation checker, with any anomaly.
    Isolation,
    /// The check of the property with this name.
    Property(&'static str),
}

use Noticed::{Isolation, Property};

const LOGGED: Noticed = Property(lotus::inspect::LOGGED);
const BACKED: Noticed = Property(lotus::inspect::BACKED);
const CACHED: Noticed = Property(lotus::inspect::CACHED);
const FLOORED: Noticed = Property(lotus::inspect::FLOORED);
const FENCED: Noticed = Property(lotus::inspect::FENCED);
const OWNED: Noticed = Property(lotus::inspect::OWNED);
const LOCKED: Noticed = Property(lotus::inspect::LOCKED);
const REPLICATED: Noticed = Property("every replica is byte for byte the same");
const RECORDED: Noticed = Property("every version has its record, whole and its own");
const SETTLED: Noticed = Property("no cell is left INVISIBLE or torn");
const CONSISTENT: Noticed = Property("recovery has met nothing that cannot be");
const ZERO: Noticed = Property("a slab that is free is all zeroes");
const UNLOCKED: Noticed = Property("no lock is left held");
const TREES: Noticed = Property("every key of an ordered table is in one leaf, in order");
const ZEROED: Noticed = Property("a lock slot without a holder is all zeroes");

const CACHES: &str = "h11-caches-beside-writers";

/// All rules, in the order of [`Rule::ALL`].
const TABLE: &[RuleScenarios] = &[
    hunted(Rule::CommitsAreLogged, &["h12-half-written"], &[LOGGED]),
    hunted(
        Rule::CellsBeginInvisible,
        &["h3-primaries-come-last", "h1-snapshots-meet-commits"],
        &[BACKED, Isolation],
    ),
    hunted(Rule::ReadLocks, &["h20-rows-that-come-and-go"], &[Isolation, Property(READS)]),
    hunted(Rule::FirstCommitterWins, &["h18-writers-behind"], &[Isolation]),
    hunted(Rule::GiftsHelp, &["h19-one-shard-too-hot"], &[Property(RESTS)]),
    hunted(Rule::TheLostReceiveNothing, &["h19-hot-shards-are-shared"], &[Property(SHARED)]),
    hunted(Rule::SnapshotsWait, &["h1-snapshots-meet-commits"], &[Isolation]),
    hunted(Rule::TimestampAfterCells, &["h18-fresh-snapshots"], &[Isolation]),
    hunted(
        Rule::NodesAreFenced,
        &["h2-nodes-return"],
        &[Isolation, BACKED, LOCKED, LOGGED, REPLICATED, Property(READS)],
    ),
    hunted(Rule::ReadyNodesFence, &["h2-made-ready-while-somebody-is-out"], &[FENCED]),
    hunted(Rule::JoiningNodesFence, &["h2-expelled-before-a-memory-node-joins"], &[FENCED]),
    hunted(
        Rule::FencesComeFirst,
        &["h2-nodes-return-at-once"],
        &[
            Isolation,
            BACKED,
            LOCKED,
            LOGGED,
            REPLICATED,
            SETTLED,
            CONSISTENT,
            Property(READS),
            Property(DURABLE),
        ],
    ),
    hunted(Rule::SuspicionsNameALife, &["h2-restarts"], &[Property(RETURNED)]),
    hunted(Rule::BackupsFirst, &["h3-primaries-come-last"], &[BACKED]),
    hunted(Rule::UnlockLast, &["h3-primaries-come-last"], &[LOCKED]),
    hunted(
        Rule::RepliesComeLast,
        &["h23-told-by-one-who-is-out"],
        &[Isolation, Property(DURABLE), Property(READS)],
    ),
    hunted(
        Rule::TimestampsDecide,
        &["h3-half-visible"],
        &[Isolation, Property(DURABLE), Property(READS), BACKED, REPLICATED],
    ),
    hunted(
        Rule::ResumptionWaits,
        &["h23-some-still-read-it", "h3-primary-and-coordinator-die"],
        &[Isolation, Property(DURABLE), Property(READS), BACKED, REPLICATED, LOCKED],
    ),
    hunted(Rule::LocksCoverCommit, &["h3-primaries-come-last"], &[LOCKED]),
    hunted(Rule::LocksOutlastRecovery, &["h3-half-visible", "h4-locks-of-the-dead"], &[LOCKED]),
    hunted(
        Rule::AdoptionWaits,
        &["h4-locks-of-the-dead", "h3-half-visible"],
        &[Isolation, LOCKED, BACKED, REPLICATED],
    ),
    hunted(
        Rule::ReturnsWait,
        &["h2-restarts"],
        &[Isolation, LOCKED, BACKED, REPLICATED, LOGGED, OWNED],
    ),
    hunted(Rule::TheAbsentAreExpelled, &["h4-nodes-start"], &[Property(STARTED)]),
    hunted(Rule::TheCutOffGiveWay, &["h10-a-path-is-cut"], &[Property(GAVE_WAY)]),
    hunted(Rule::LostLocksEndAttempts, &["h4-locks-are-lost"], &[Isolation, LOCKED, CACHED]),
    hunted(Rule::OneSlotPerName, &["h5-one-name-one-slot"], &[Isolation]),
    hunted(
        Rule::WritersExcludeReaders,
        &["h6-readers-beside-writers"],
        &[Isolation, Property(READS)],
    ),
    hunted(Rule::FreeSlotsAreZero, &["h7-full-lock-buckets"], &[ZEROED]),
    hunted(Rule::UpgradesAreExplicit, &["h7-read-then-write"], &[LOCKED, Isolation]),
    hunted(Rule::WaitsGoUp, &["h7-locks-that-wait"], &[Property(WAITS)]),
    hunted(
        Rule::NodesAreOpenedAtOnce,
        &["h7-writers-of-one-leaf"],
        &[Property(TURNS), Property(GROWS)],
    ),
    hunted(Rule::QueuesGoByAge, &["h7-locks-that-wait"], &[Property(WAITS)]),
    hunted(
        Rule::TheExpelledAreRefused,
        &["h8-late-requests-of-the-dead"],
        &[UNLOCKED, Property(ENDS), Property(PROGRESS)],
    ),
    hunted(Rule::LivesDiffer, &["h2-restarts"], &[Property(CHECKED), Property(RETURNED)]),
    hunted(
        Rule::NodeNumbersAreNew,
        &["h9-trees-of-former-lives"],
        &[Property(GROWS), Property(KEPT)],
    ),
    hunted(
        Rule::StaleRequestsAreRefused,
        &["h9-late-lock-requests"],
        &[UNLOCKED, Property(ENDS), Property(PROGRESS)],
    ),
    hunted(Rule::RepliesNameTheirCall, &["h18-delayed-timestamps"], &[Isolation, Property(ENDS)]),
    hunted(Rule::EndsAreRepeated, &["h10-lost-ends"], &[UNLOCKED]),
    hunted(
        Rule::EndsReachAllAsked,
        &["h10-lost-ends", "h10-owners-out-of-reach"],
        &[UNLOCKED, Property(PROGRESS), Property(ENDS)],
    ),
    hunted(
        Rule::EndsRemoveTheParked,
        &["h10-waits-of-callers-that-go-away"],
        &[UNLOCKED, Property(PROGRESS), Property(ENDS)],
    ),
    hunted(Rule::EndsNameTheirAttempt, &["h9-late-lock-requests"], &[Isolation, LOCKED]),
    hunted(
        Rule::AcksNameTheirAttempt,
        &["h10-lost-ends"],
        &[UNLOCKED, Property(ENDS), Property(PROGRESS)],
    ),
    hunted(Rule::RemoteWritersAreNoticed, &[CACHES], &[CACHED, Isolation]),
    hunted(Rule::CachesAreRenewed, &[CACHES], &[CACHED, Isolation]),
    hunted(Rule::CachesYieldToWriters, &[CACHES], &[Isolation]),
    hunted(Rule::FillsYieldToWriters, &[CACHES], &[CACHED, Isolation]),
    hunted(Rule::FillsNoticeWriters, &[CACHES], &[CACHED, Isolation]),
    hunted(Rule::SnapshotsComeFirst, &[CACHES], &[Isolation]),
    hunted(
        Rule::FencesAreChecked,
        &["h11-remembered-nodes-of-trees"],
        &[Property(READS), TREES, Property(INSERTED)],
    ),
    hunted(Rule::LogBeforeCells, &["h12-half-written"], &[LOGGED]),
    hunted(Rule::LogNamesAll, &["h12-half-written"], &[LOGGED]),
    hunted(Rule::AbsenceIsNotEviction, &["h13-overwritten-versions"], &[Property(READS)]),
    hunted(Rule::OldestVersionFirst, &["h13-overwritten-versions"], &[Property(READS)]),
    hunted(Rule::RecordsAreNotNewer, &["h13-overwritten-versions"], &[Isolation]),
    hunted(Rule::LinksAreExact, &["h13-overwritten-versions"], &[Isolation]),
    hunted(Rule::SlabsAreTakenOnce, &["h13-first-slabs", "h16-many-log-slots"], &[RECORDED]),
    hunted(Rule::GivenSlotsAreGone, &["h13-full-memory"], &[RECORDED, Property(READS)]),
    hunted(Rule::TrimsReachAllCopies, &["h13-full-memory"], &[REPLICATED, BACKED, RECORDED]),
    hunted(
        Rule::AllLetGoFirst,
        &["h13-tables-come-and-go", "h13-tables-of-the-dead"],
        &[Isolation, BACKED, LOGGED, REPLICATED, RECORDED, ZERO, Property(OWN_ROWS)],
    ),
    hunted(
        Rule::FreeSlabsAreZero,
        &["h13-tables-come-and-go"],
        &[Isolation, BACKED, LOGGED, RECORDED, ZERO, Property(OWN_ROWS), Property(NO_PANIC)],
    ),
    hunted(Rule::OwnTakesAreKnown, &["h13-slabs-without-an-answer"], &[REPLICATED]),
    hunted(Rule::CopiesAreOfOneTime, &["h13-snapshot-files"], &[Property(OF_ONE_TIME)]),
    hunted(Rule::FloorsAreCarried, &["h13-floors-of-the-returned"], &[FLOORED]),
    hunted(Rule::RecordChecksums, &["h14-torn-words"], &[Property(READS)]),
    hunted(Rule::HomesAreConfirmed, &["h14-torn-cells-and-records"], &[Isolation]),
    hunted(Rule::HomesStay, &["h13-rows-beside-their-cells"], &[RECORDED, Property(READS)]),
    hunted(Rule::AllReplicasAreRepaired, &["h15-some-replicas"], &[REPLICATED, BACKED]),
    hunted(Rule::LogSlotsAreOwn, &["h16-many-log-slots"], &[LOGGED]),
    hunted(Rule::SnapshotsAreFresh, &["h18-fresh-snapshots"], &[Isolation]),
    hunted(Rule::RequestsAreNotJoined, &["h18-delayed-timestamps"], &[Isolation]),
    hunted(Rule::SuccessorsWait, &["h18-oracles-return"], &[Isolation, Property(READS)]),
    hunted(Rule::BoundsOutlastOracles, &["h18-oracles-die"], &[Isolation, Property(READS)]),
    hunted(Rule::OwnersStopFirst, &["h19-shards-move"], &[Isolation, OWNED, LOCKED, CACHED]),
    hunted(
        Rule::HandOversAnswerTheParked,
        &["h19-shards-move-from-those-that-wait"],
        &[Isolation, OWNED, LOCKED, CACHED, Property(WAITS)],
    ),
    hunted(Rule::HandOversDrain, &["h19-shards-move"], &[Isolation, OWNED, LOCKED, CACHED]),
    hunted(
        Rule::CommittersKeepTheirLocks,
        &["h19-stragglers-commit"],
        &[Isolation, OWNED, LOCKED, CACHED],
    ),
    hunted(Rule::YieldersDoNotCommit, &["h19-stragglers-commit"], &[Isolation, OWNED, LOCKED]),
    hunted(Rule::TheMovedAreForgotten, &["h19-shards-come-back"], &[Isolation, CACHED]),
    hunted(
        Rule::AbsentRowsAreLocked,
        &["h20-rows-that-come-and-go"],
        &[Isolation, Property(READS), Property(AT_MOST_ONE)],
    ),
    hunted(
        Rule::BucketsAreLocked,
        &["h20-crowded-index-buckets"],
        &[Isolation, Property(READS), Property(COUNTED), Property(DURABLE), REPLICATED],
    ),
    hunted(
        Rule::PurgesLockBuckets,
        &["h20-purged-rows"],
        &[Isolation, Property(READS), Property(COUNTED), Property(DURABLE), REPLICATED, BACKED],
    ),
    hunted(
        Rule::ClaimsAreRemembered,
        &["h20-crowded-index-buckets"],
        &[Isolation, Property(READS), Property(COUNTED), Property(DURABLE)],
    ),
    hunted(
        Rule::RangesLockLeaves,
        &["h20-ranges-beside-inserts"],
        &[Isolation, Property(READS), Property(WITHIN_LIMIT), Property(INSERTED)],
    ),
    hunted(Rule::UnknownIsNotAborted, &["h21-memory-out-of-reach"], &[Isolation]),
    hunted(Rule::AbandonedAttemptsEnd, &["h21-callers-go-away"], &[Property(READS)]),
    hunted(Rule::DeadlinesEndAttempts, &["h21-bodies-that-do-not-end"], &[Property(IN_TIME)]),
    hunted(Rule::CommitsOutliveCallers, &["h21-callers-go-away"], &[LOCKED]),
    hunted(Rule::FailedWritesAreRepeated, &["h22-stragglers"], &[LOGGED, LOCKED, REPLICATED]),
    hunted(
        Rule::OldConnectionsAreClosed,
        &["h22-stragglers"],
        &[Isolation, LOGGED, LOCKED, REPLICATED],
    ),
    hunted(Rule::AllStopFirst, &["h23-some-still-read-it"], &[Isolation, Property(READS)]),
    hunted(Rule::ComplaintsAreCounted, &["h23-one-way-is-cut"], &[Property(MISSED)]),
    hunted(
        Rule::PromotedCursorsAreRaised,
        &["h23-inserts-go-on"],
        &[RECORDED, Property(READS), Property(DURABLE), REPLICATED],
    ),
    hunted(
        Rule::JoiningGetsWrites,
        &["h23-memory-node-made-anew"],
        &[REPLICATED, BACKED, LOGGED, RECORDED],
    ),
    hunted(
        Rule::CopiesAreLocked,
        &["h23-filled-beside-writers"],
        &[REPLICATED, BACKED, LOGGED, RECORDED, Property(COUNTED), Property(DURABLE)],
    ),
    hunted(
        Rule::CopiesAreWhole,
        &["h23-memory-node-made-anew"],
        &[Isolation, BACKED, RECORDED, Property(READS), Property(DURABLE), REPLICATED],
    ),
    hunted(
        Rule::FormerPrimariesAreWritten,
        &["h23-memory-node-made-anew", "h23-filled-beside-writers"],
        &[REPLICATED, BACKED, LOGGED, RECORDED],
    ),
    hunted(Rule::ResetsQuiesce, &["cas-rw-resets", "dslr-resets"], &[Property(LOCKS)]),
    hunted(Rule::LostHoldersAreFenced, &["cas-rw-resets", "dslr-resets"], &[Property(LOCKS)]),
    hunted(Rule::DoubtsAreReset, &["cas-rw-lost-answer"], &[Property(LOCKS)]),
    hunted(Rule::GhostsTakeTheirTurns, &["dslr-impatient"], &[Property(LOCKS)]),
    hunted(Rule::ReadersIgnoreSiblings, &["dslr-siblings"], &[Property(LOCKS)]),
    hunted(Rule::NoticesAreRepeated, &["mcs-lost-notice"], &[Property(LOCKS)]),
    hunted(Rule::LossesEndUses, &["memory-lost"], &[Property(LOCKS)]),
    hunted(Rule::CountsPrecedeHandovers, &["shiftlock-late-count"], &[Property(LOCKS)]),
    hunted(Rule::OverflowWritesNothing, &["declock-overflow"], &[Property(LOCKS)]),
    hunted(Rule::LapsTellTenants, &["declock-laps", "declock-resets"], &[Property(LOCKS)]),
    hunted(Rule::TurnsNameGenerations, &["declock-late-notice"], &[Property(LOCKS)]),
    hunted(Rule::ElectsHoldRemotely, &["shared-by-writers"], &[Property(LOCKS)]),
    hunted(Rule::LastSiblingsRelease, &["shared-by-readers"], &[Property(LOCKS)]),
    hunted(Rule::SwitchesCountPackets, &["fisslock-repeated"], &[Property(LOCKS)]),
    hunted(Rule::GrantsEchoNonces, &["fisslock-late-grant"], &[Property(LOCKS)]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaigns::named;
    use crate::locks;

    #[test]
    fn every_rule_has_one_row_in_order_and_its_scenarios_exist() {
        assert!(TABLE.iter().map(|row| row.rule).eq(Rule::ALL.iter().copied()));
        for row in TABLE {
            let exist = row
                .scenarios
                .iter()
                .all(|name| named::find(name).is_some() || locks::find(name).is_some());
            assert!(exist && !row.scenarios.is_empty(), "{:?}", row.rule);
            assert!(!row.meant.is_empty(), "{:?}", row.rule);
        }
    }

    #[test]
    fn only_what_is_meant_to_fall_counts() {
        let row = row_of(Rule::ReadLocks);
        assert!(row.is_meant("G2") && row.is_meant(READS));
        assert!(!row.is_meant(PROGRESS) && !row.is_meant("G"));
        assert!(!row_of(Rule::BackupsFirst).is_meant("G2"));
    }
}
