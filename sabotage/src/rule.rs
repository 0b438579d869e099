//! The list of rules, with sources and the behaviour under a broken rule.

/// Makes the enum and the variants' properties from a single list: the rule, variant, name, source,
/// and the behaviour of a program without the rule.
macro_rules! rules {
    ($($rule:literal $variant:ident $name:literal $hazard:literal $broken:literal)*) => {
        /// A breakable rule. Every variant states the rule, and the behaviour once the rule is
        /// broken.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum Rule {
            $(#[doc = concat!($rule, ".\n\nBroken: ", $broken, ".")] $variant,)*
        }

        impl Rule {
            /// Every rule: the paper's rules, then rules by hazard, then rules of lock systems.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Name on the command line: the variant's name, in small letters and hyphens.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Hazard that the rule closes, H1 to H24 of `docs/fault-tolerance.md`, or the paper's
            /// section about the rule.
            pub const fn hazard(self) -> &'static str {
                match self { $(Self::$variant => $hazard,)* }
            }

            /// Behaviour once the rule is broken.
            pub const fn description(self) -> &'static str {
                match self { $(Self::$variant => $broken,)* }
            }
        }
    };
}

rules! {
    "A commit is logged"
    CommitsAreLogged "commits-are-logged" "LOTUS §5.1"
    "nothing is logged"

    "A commit's cells are INVISIBLE until its timestamp is drawn"
    CellsBeginInvisible "cells-begin-invisible" "LOTUS §5.1"
    "cells are written with a timestamp that was drawn before"

    "Serializable transactions lock what they read"
    ReadLocks "read-locks" "LOTUS §5.2"
    "serializable transactions lock only what they write"

    "A row written under snapshot isolation has not changed since the snapshot"
    FirstCommitterWins "first-committer-wins" "LOTUS §5.2"
    "a commit does not check whether a row was written since the snapshot"

    "A shard is given only to a node that will have clearly less load than the giver had"
    GiftsHelp "gifts-help" "LOTUS §4.3"
    "the hottest shard goes to the least loaded node, whether that helps or not"

    "An expelled node is given no shards"
    TheLostReceiveNothing "the-lost-receive-nothing" "LOTUS §4.3"
    "an expelled node counts as one with little load"

    "An INVISIBLE cell decides nothing for a snapshot"
    SnapshotsWait "snapshots-wait" "H1"
    "a snapshot takes the version beside an INVISIBLE cell"

    "The commit timestamp is drawn when every cell is INVISIBLE on every replica"
    TimestampAfterCells "timestamp-after-cells" "H1"
    "the commit timestamp is drawn while the cells are on their way"

    "A node is fenced at every memory node before it is recovered"
    NodesAreFenced "nodes-are-fenced" "H2"
    "a node is recovered without a fence"

    "A memory node is made ready once all expelled nodes are fenced there"
    ReadyNodesFence "ready-nodes-fence" "H2"
    "a memory node is made ready as soon as it answers"

    "A memory node is used once all expelled nodes are fenced there"
    JoiningNodesFence "joining-nodes-fence" "H2"
    "a memory node that joins fences the nodes that were expelled when it was made ready"

    "A dead node's log is read when the node is fenced"
    FencesComeFirst "fences-come-first" "H2"
    "a dead node is fenced when its log has been read and settled"

    "A suspicion names the life that was silent"
    SuspicionsNameALife "suspicions-name-a-life" "H2"
    "a node that has returned is expelled because its earlier life was silent"

    "Versions are visible on all backups before they are on a primary"
    BackupsFirst "backups-first" "H3"
    "versions turn visible on all replicas at once"

    "Locks are released when the versions are visible on the primaries"
    UnlockLast "unlock-last" "H3"
    "locks are released when the versions are visible on the backups"

    "A caller is told of a commit when every copy shows it"
    RepliesComeLast "replies-come-last" "H3"
    "a caller is told of a commit when its backups show it"

    "A timestamp on any cell sends an interrupted transaction forward"
    TimestampsDecide "timestamps-decide" "H3"
    "an interrupted transaction is undone, timestamp or not"

    "Transactions begin by a new placement once none by the old one is under way or in doubt"
    ResumptionWaits "resumption-waits" "H3"
    "transactions begin by a new placement as soon as a memory node is lost"

    "All locks are held until the commit timestamp is drawn"
    LocksCoverCommit "locks-cover-commit" "H4"
    "locks are released when the commit begins"

    "A dead node's locks are held until its transactions are settled"
    LocksOutlastRecovery "locks-outlast-recovery" "H4"
    "a dead node's locks are dropped as soon as it is expelled"

    "A shard is adopted once every holder of its locks has ended or is recovered"
    AdoptionWaits "adoption-waits" "H4"
    "a shard is adopted as soon as it has no owner"

    "A node returns once its earlier life is settled, and every member knows that"
    ReturnsWait "returns-wait" "H4"
    "a node returns as soon as it is expelled"

    "A node whose process has joined and never beats is expelled"
    TheAbsentAreExpelled "the-absent-are-expelled" "H4"
    "a node whose process has joined and never beats is waited for"

    "Of two nodes that do not reach each other one gives way"
    TheCutOffGiveWay "the-cut-off-give-way" "H10"
    "nodes that do not reach each other go on waiting for each other"

    "A commit begins only if its locks' shards have kept their owners"
    LostLocksEndAttempts "lost-locks-end-attempts" "H4"
    "a transaction commits although the owner of its locks was lost"

    "A name has one slot in its bucket"
    OneSlotPerName "one-slot-per-name" "H5"
    "a request takes the first free slot, also if the name has one further on"

    "Nobody reads beside a writer"
    WritersExcludeReaders "writers-exclude-readers" "H6"
    "a reader joins the writer that took the slot before it"

    "A lock slot without a holder is all zeroes"
    FreeSlotsAreZero "free-slots-are-zero" "H7"
    "a lock slot keeps the fingerprint of its last holder"

    "A lock held to read is upgraded to be written under"
    UpgradesAreExplicit "upgrades-are-explicit" "H7"
    "a reader of a lock is told that it may write"

    "A transaction waits only for a lock above the highest that it holds"
    WaitsGoUp "waits-go-up" "H7"
    "a transaction waits for whatever lock it meets, whatever it holds"

    "The node that a search looks for is opened with its final access at once"
    NodesAreOpenedAtOnce "nodes-are-opened-at-once" "H7"
    "a search reads the node that it looks for before it opens it to be written"

    "The oldest transaction that waits for a lock is served first"
    QueuesGoByAge "queues-go-by-age" "H7"
    "the last request that came is served first"

    "Who has been expelled is granted no lock"
    TheExpelledAreRefused "the-expelled-are-refused" "H8"
    "a lock request of a dead node that comes late is granted"

    "Whoever returns is another incarnation"
    LivesDiffer "lives-differ" "H9"
    "a node that returns has the incarnation of its life before"

    "A new node of a tree has a number that no row has had, in this life or a former one"
    NodeNumbersAreNew "node-numbers-are-new" "H9"
    "numbers of new nodes are drawn from a generator that each life seeds alike"

    "A lock request of an attempt that is over is stale"
    StaleRequestsAreRefused "stale-requests-are-refused" "H9"
    "a lock request that comes late is granted to an attempt that is over"

    "A reply answers the call whose number it bears"
    RepliesNameTheirCall "replies-name-their-call" "H9"
    "a reply answers whatever call uses its slot by now"

    "An end is repeated until it is acknowledged"
    EndsAreRepeated "ends-are-repeated" "H10"
    "an end is sent once"

    "An attempt ends at every owner that it asked, answered or not"
    EndsReachAllAsked "ends-reach-all-asked" "H10"
    "an attempt ends only at the owners that granted it something"

    "The end of an attempt ends its wait"
    EndsRemoveTheParked "ends-remove-the-parked" "H10"
    "a request stays in its queue when its attempt ends"

    "An end releases what its own attempt held"
    EndsNameTheirAttempt "ends-name-their-attempt" "H10"
    "an end releases what its slot holds by now"

    "An acknowledgement covers the ends up to its own attempt"
    AcksNameTheirAttempt "acks-name-their-attempt" "H10"
    "an acknowledgement covers whatever end its slot has by now"

    "A row that a remote transaction may write is not cached"
    RemoteWritersAreNoticed "remote-writers-are-noticed" "H11"
    "a row stays cached while another node writes it"

    "What a local transaction has written is replaced in the cache before its lock is released"
    CachesAreRenewed "caches-are-renewed" "H11"
    "a row stays cached as it was before it was written"

    "A row with a writer is not looked up in the cache without its lock"
    CachesYieldToWriters "caches-yield-to-writers" "H11"
    "a snapshot believes the cache about a row that is being written"

    "A row that was read without a lock is not cached while it has a writer"
    FillsYieldToWriters "fills-yield-to-writers" "H11"
    "what was read of a row that is locked to write is cached"

    "A row that was read without a lock is not cached if it was written meanwhile"
    FillsNoticeWriters "fills-notice-writers" "H11"
    "what was read is cached also if its row was written while it was on its way"

    "A snapshot is drawn before the cache is looked into"
    SnapshotsComeFirst "snapshots-come-first" "H11"
    "a snapshot is drawn when the cache has been looked into"

    "A leaf holds a key only if its fences cover it"
    FencesAreChecked "fences-are-checked" "H11"
    "a leaf is taken for the right one because a remembered node leads there"

    "On each connection the log entry is written before the cells"
    LogBeforeCells "log-before-cells" "H12"
    "the log entry is written behind the cells"

    "A log entry names the whole write set"
    LogNamesAll "log-names-all" "H12"
    "a log entry names the first row of the write set"

    "That no version is old enough means that the row was absent only if none was replaced"
    AbsenceIsNotEviction "absence-is-not-eviction" "H13"
    "a row whose old versions were replaced was absent for an old snapshot"

    "A writer replaces the oldest version"
    OldestVersionFirst "oldest-version-first" "H13"
    "a writer replaces the newest version"

    "A record is older than the version that led to it"
    RecordsAreNotNewer "records-are-not-newer" "H13"
    "a record is accepted also if a later writer has reused its slot"

    "A link is believed if the record there is older than what the link names"
    LinksAreExact "links-are-exact" "H13"
    "a link is believed whatever record of the row is there by now"

    "A slab belongs to the coordinator that advanced the cursor past it"
    SlabsAreTakenOnce "slabs-are-taken-once" "H13"
    "the cursor is advanced without a check whether it has moved"

    "A node that gives free slots to another has them no more"
    GivenSlotsAreGone "given-slots-are-gone" "H13"
    "a node that gives free slots to another keeps them as well"

    "A slot that a row can do without is free once no copy names it"
    TrimsReachAllCopies "trims-reach-all-copies" "H13"
    "a slot is taken from a row on the primary alone"

    "A snapshot file shows every row as it was at one time"
    CopiesAreOfOneTime "copies-are-of-one-time" "H13"
    "a snapshot file has of each row what is newest when it is read"

    "Each node's floor stands on a new primary before any transaction begins by it"
    FloorsAreCarried "floors-are-carried" "H13"
    "a floor is not written anew when another memory node becomes the primary"

    "A record counts only if its checksum does"
    RecordChecksums "record-checksums" "H14"
    "the checksum of a record is not looked at"

    "A record beside its cell, read without the lock, counts once the CVT is known to be whole"
    HomesAreConfirmed "homes-are-confirmed" "H14"
    "a record that came with its cell is believed although the CVT may have been read torn"

    "A home slot stays with its cell and is never free memory"
    HomesStay "homes-stay" "H13"
    "the home slots of a purged row are given to other rows"

    "An interrupted transaction is undone on all replicas, also where it never landed"
    AllReplicasAreRepaired "all-replicas-are-repaired" "H15"
    "an interrupted transaction is undone where it has left a tag"

    "Every coroutine slot has a log slot of its own"
    LogSlotsAreOwn "log-slots-are-own" "H16"
    "the coroutines of a node share one log slot"

    "A snapshot is at least every timestamp issued before it was drawn"
    SnapshotsAreFresh "snapshots-are-fresh" "H18"
    "snapshots lag some microseconds behind"

    "Nobody shares a request for a timestamp that was already sent"
    RequestsAreNotJoined "requests-are-not-joined" "H18"
    "a coordinator that needs a timestamp shares the request under way"

    "A new oracle issues nothing before all members use it and expelled nodes are fenced"
    SuccessorsWait "successors-wait" "H18"
    "a successor serves timestamps as soon as the oracle is expelled"

    "A successor of the oracle begins behind everything that was issued before"
    BoundsOutlastOracles "bounds-outlast-oracles" "H18"
    "a successor begins at what its own clock says"

    "An owner stops granting locks of a shard before it reads the list of holders"
    OwnersStopFirst "owners-stop-first" "H19"
    "an owner grants locks of a shard while it gives it away"

    "An owner that gives a shard away ends the waits for its locks"
    HandOversAnswerTheParked "hand-overs-answer-the-parked" "H19"
    "requests keep waiting for locks of a shard that has moved, and are granted them"

    "A shard changes hands when none of its locks is held"
    HandOversDrain "hand-overs-drain" "H19"
    "a shard changes hands while some of its locks are held"

    "Whoever is committing keeps its locks, however long that takes"
    CommittersKeepTheirLocks "committers-keep-their-locks" "H19"
    "an owner that has waited long takes back locks of transactions that are committing"

    "Whoever has given up its locks does not commit"
    YieldersDoNotCommit "yielders-do-not-commit" "H19"
    "a transaction commits on locks that it has given up"

    "An owner forgets what it has cached of a shard that it gives away"
    TheMovedAreForgotten "the-moved-are-forgotten" "H19"
    "an owner believes what it had cached when a shard comes back"

    "An insert locks the row besides the bucket"
    AbsentRowsAreLocked "absent-rows-are-locked" "H20"
    "an insert locks the bucket, unnoticed by transactions that have read that the row is absent"

    "An insert locks the bucket besides the row"
    BucketsAreLocked "buckets-are-locked" "H20"
    "an insert locks the row, and two rows take one slot of the bucket"

    "A purge locks the bucket besides the row"
    PurgesLockBuckets "purges-lock-buckets" "H20"
    "a purge locks the row, and an insert takes the slot while it is being zeroed"

    "A transaction remembers the slots that its inserts claimed"
    ClaimsAreRemembered "claims-are-remembered" "H20"
    "two inserts of one transaction take one slot of the bucket"

    "A serializable transaction locks the leaves in which it has read keys, present or not"
    RangesLockLeaves "ranges-lock-leaves" "H20"
    "ranges of an ordered table are read without locks"

    "An unknown outcome is reported as unknown"
    UnknownIsNotAborted "unknown-is-not-aborted" "H21"
    "a commit that takes too long is reported as aborted"

    "An abandoned execution ends with the release of its locks"
    AbandonedAttemptsEnd "abandoned-attempts-end" "H21"
    "an abandoned execution keeps its locks"

    "An attempt whose body does not end is ended when its time is up"
    DeadlinesEndAttempts "deadlines-end-attempts" "H21"
    "a body that does not end keeps its slot and its locks for ever"

    "A commit that has begun is carried through, whatever becomes of the caller"
    CommitsOutliveCallers "commits-outlive-callers" "H21"
    "a commit stops half-way when its caller is gone"

    "A WRITE that failed is repeated"
    FailedWritesAreRepeated "failed-writes-are-repeated" "H22"
    "a commit goes on once the connection works again"

    "A new connection is made when the old one is closed at its target"
    OldConnectionsAreClosed "old-connections-are-closed" "H22"
    "what was sent over the old connection still lands after the new one works"

    "Commits end without a lost memory node once no node reads from it"
    AllStopFirst "all-stop-first" "H23"
    "commits end without a lost memory node while others still read from it"

    "Memory of a dropped table is given back when no node uses the table any more"
    AllLetGoFirst "all-let-go-first" "H13"
    "memory of a dropped table is given back while transactions on it run"

    "Memory of a dropped table is zero before another table gets it"
    FreeSlabsAreZero "free-slabs-are-zero" "H20"
    "another table gets the memory of a dropped one with its old contents"

    "A coordinator that repeats a swap of a slab's word knows its own entry"
    OwnTakesAreKnown "own-takes-are-known" "H13"
    "a slab is lost whose taking took effect although the answer did not arrive"

    "A memory node is lost when half of the compute nodes complain of it"
    ComplaintsAreCounted "complaints-are-counted" "H23"
    "a memory node is lost as soon as one compute node complains of it"

    "A promoted replica hands out free slabs only"
    PromotedCursorsAreRaised "promoted-cursors-are-raised" "H23"
    "a promoted replica hands out slabs from the first one on"

    "A memory node that returns gets every write while it is filled"
    JoiningGetsWrites "joining-gets-writes" "H23"
    "a memory node is filled without the writes made meanwhile"

    "Rows that a memory node lacks are copied under locks that exclude their writers"
    CopiesAreLocked "copies-are-locked" "H23"
    "what a memory node lacks is copied without locks"

    "A copy that is being made is none before it is whole"
    CopiesAreWhole "copies-are-whole" "H23"
    "a copy that is being made takes its old place at once"

    "A commit is visible on its first primary, also if another copy becomes the primary"
    FormerPrimariesAreWritten "former-primaries-are-written" "H23"
    "a commit that ends by another placement than it began by leaves out the primary of before"

    "A lock is freed by a reset when each of its users has answered or is settled"
    ResetsQuiesce "resets-quiesce" "H4"
    "a lock is freed as soon as it is marked"

    "A node is fenced before its locks are reset"
    LostHoldersAreFenced "lost-holders-are-fenced" "H2"
    "a node that is expelled can still reach the memory"

    "An atomic without an answer is doubted until a reset is over of which its user was told"
    DoubtsAreReset "doubts-are-reset" "H22"
    "an atomic without an answer is posted again"

    "A waiter that gives up takes its turn and releases at once"
    GhostsTakeTheirTurns "ghosts-take-their-turns" "DSLR §4.5"
    "a waiter that gives up is forgotten"

    "A reader's ticket is skipped by writers only"
    ReadersIgnoreSiblings "readers-ignore-siblings" "DSLR §4.6"
    "a reader's ticket fails when a later reader has left"

    "A notice between users of a lock is repeated until it is acknowledged"
    NoticesAreRepeated "notices-are-repeated" "ShiftLock §3.2"
    "a notice is sent once"

    "A memory node returns when all uses of its locks have ended"
    LossesEndUses "losses-end-uses" "DecLock §B"
    "holders of locks whose memory is lost are not waited for"

    "A release is counted before the lock is handed over"
    CountsPrecedeHandovers "counts-precede-handovers" "ShiftLock §3.5"
    "a lock is handed over while the atomic that counts its release is under way"

    "Who finds a queue full writes no entry into it"
    OverflowWritesNothing "overflow-writes-nothing" "DecLock §4.4"
    "who finds a queue full writes its entry over that of another, and waits"

    "An entry of a queue is of the lap that is looked for"
    LapsTellTenants "laps-tell-tenants" "DecLock §4.3"
    "an entry counts whatever its version is"

    "A notice of a turn names the generation of the lock"
    TurnsNameGenerations "turns-name-generations" "DecLock §4.4"
    "a notice of an earlier generation is taken for one of the present one"

    "A client holds a lock once its node holds it at the memory node"
    ElectsHoldRemotely "elects-hold-remotely" "DecLock §5.2"
    "the first client of a node has a lock without asking the memory node"

    "A node gives a lock up when the last of its clients has left it"
    LastSiblingsRelease "last-siblings-release" "DecLock §5.2"
    "a node gives a lock up when one of its readers leaves, beside others that read on"

    "A switch decides once on a packet, by its number"
    SwitchesCountPackets "switches-count-packets" "FissLock §4.2"
    "a switch decides on a packet as often as it comes"

    "A grant is for the request whose nonce it echoes"
    GrantsEchoNonces "grants-echo-nonces" "FissLock §4.2"
    "a grant is for whatever its task asks for by now"
}

#[cfg(test)]
mod tests {
    use heck::ToKebabCase;

    use super::*;

    #[test]
    fn names_are_the_variants_names() {
        for rule in Rule::ALL {
            assert_eq!(rule.name(), format!("{rule:?}").to_kebab_case());
        }
    }

    #[test]
    fn every_source_is_a_hazard_or_a_section() {
        for rule in Rule::ALL {
            let hazard = rule.hazard();
            let number = hazard.strip_prefix('H').and_then(|number| number.parse::<u32>().ok());
            let known = number.is_some_and(|number| (1..=24).contains(&number));
            let cites = ["LOTUS §", "DSLR §", "ShiftLock §", "DecLock §", "FissLock §"]
                .iter()
                .any(|paper| hazard.starts_with(paper));
            assert!(known || cites, "{rule:?}: {hazard}");
        }
    }

    #[test]
    fn descriptions_are_parts_of_a_sentence() {
        for rule in Rule::ALL {
            let description = rule.description();
            let small = description.starts_with(|first: char| first.is_ascii_lowercase());
            assert!(small && !description.ends_with('.'), "{rule:?}: {description}");
        }
    }
}
