//! The list of points: the action just completed at each point, the sequence of the step, and
//! whether the step has several pieces.

/// Sequence of steps that a point belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Family {
    /// A read-write transaction.
    Transaction,
    /// One use of a lock on a memory node: acquisition and release.
    MemoryLock,
    /// Reset of a lock on a memory node.
    LockReset,
    /// Detection and expulsion of a silent compute node.
    Membership,
    /// Settlement of a dead compute node's transactions, locks and shards.
    Recovery,
    /// Removal of a lost memory node.
    MemoryLoss,
    /// Issue of timestamps, and takeover by another node.
    Oracle,
    /// Hand-over of a shard.
    HandOver,
    /// Return of memory from rows: a trim, and a purge.
    Upkeep,
    /// Return of the memory of a dropped table.
    Clearing,
    /// Start of a process in a cluster, and load of the cluster's data.
    Start,
    /// Writing of a snapshot to a file.
    Snapshot,
    /// End of a cluster: rest and stop.
    Rest,
}

impl Family {
    /// Whether the steps belong to processes, rather than to a cluster within a process.
    pub const fn is_of_processes(self) -> bool {
        matches!(self, Self::Start | Self::Snapshot | Self::Rest)
    }
}

/// Number of pieces of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pieces {
    /// A single action.
    One,
    /// A sequence of actions on several replicas, records, nodes or slots.
    Several,
}

/// Makes the enum and the variants' properties from a single list.
macro_rules! points {
    ($($family:ident { $($variant:ident $name:literal $pieces:ident $done:literal)* })*) => {
        /// A point passed by a node. Every variant states the action just completed.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum FaultPoint {
            $($(#[doc = concat!($done, ".")] $variant,)*)*
        }

        impl FaultPoint {
            /// Every point, by family, in the order of passage.
            pub const ALL: &[Self] = &[$($(Self::$variant,)*)*];

            /// Name on the command line: the variant's name, in small letters and hyphens.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$variant => $name,)*)* }
            }

            /// Sequence of the point's step.
            pub const fn family(self) -> Family {
                match self { $($(Self::$variant => Family::$family,)*)* }
            }

            /// Whether the point is passed once, or for every piece of its step.
            pub const fn pieces(self) -> Pieces {
                match self { $($(Self::$variant => Pieces::$pieces,)*)* }
            }

            /// Description of the action just completed.
            pub const fn description(self) -> &'static str {
                match self { $($(Self::$variant => $done,)*)* }
            }
        }
    };
}

points! {
    Transaction {
        Begin "begin" One "an attempt has begun, and has asked for nothing yet"
        LocksRequested "locks-requested" One "remote locks have been asked for"
        LockAwaited "lock-awaited" One "a request waits for a lock"
        WaitEnded "wait-ended" One "the wait of another node's request has ended, untold"
        LocksGranted "locks-granted" One "all locks of a round are held"
        Read "read" One "every row has been read"
        NodeSplit "node-split" One "a node of an ordered table is split, and not yet written"
        NodesMerged "nodes-merged" One "nodes of an ordered table are merged, and not yet written"
        Reserve "reserve" One "cells, slots and memory are reserved"
        LogPosted "log-posted" Several "the log entry is written, memory node by memory node"
        RecordsPosted "records-posted" Several "records are written, replica by replica"
        CellsPosted "cells-posted" Several "INVISIBLE cells are written, replica by replica"
        CellsLanded "cells-landed" One "log, records and cells are on all replicas"
        TimestampDrawn "timestamp-drawn" One "the commit timestamp is drawn"
        VisibleOnBackups "visible-on-backups" Several
            "versions are visible on backups, cell by cell"
        VisibleOnPrimaries "visible-on-primaries" Several
            "versions are visible on primaries, cell by cell"
        Reply "reply" One "the caller is told"
        LocksReleased "locks-released" One "local locks are released, ends not yet sent"
        UnlockSent "unlock-sent" One "the ends of remote locks are sent"
        UnlockAcknowledged "unlock-acknowledged" One "an owner has acknowledged ends"
    }
    MemoryLock {
        LockPosted "lock-posted" One "the first verb of an acquisition is posted"
        LockAnswered "lock-answered" One
            "a lock is held by its first verb, and its holder does nothing"
        QueueJoined "queue-joined" One
            "a request has joined a queue, and has told nothing of itself"
        TurnAwaited "turn-awaited" One "a request has said that it waits for its turn"
        TurnSeen "turn-seen" One "a waiter has seen its turn, and does nothing"
        ReleaseBegun "release-begun" One "a release has begun, and has posted nothing"
        ReleasePosted "release-posted" One "the first verb of a release is posted"
        ReleaseLanded "release-landed" One "a lock is released, and its holder does nothing"
        NextUntold "next-untold" One "a release has landed, and the next holder is not told"
        NextTold "next-told" One "a release has told the next holder"
    }
    LockReset {
        ResetClaimed "reset-claimed" One "the reset of a lock is claimed"
        LockMarked "lock-marked" One "a lock is marked as being reset"
        MembersAsked "members-asked" One "all lanes are asked to be done with a lock"
        ResetHeard "reset-heard" One "a lane was asked, and has done nothing"
        ResetAnswered "reset-answered" One "a lane has said that it is done with a lock"
        MembersDone "members-done" One "all lanes are done with a lock"
        EntriesZeroed "entries-zeroed" One "the entries of a lock are zero, and it is not free"
        LockFreed "lock-freed" One "a lock is free again, and its reset is claimed still"
        ResetUnclaimed "reset-unclaimed" One "the claim of a reset is given back"
    }
    Membership {
        Beat "beat" Several "a beat has landed, memory node by memory node"
        Suspect "suspect" One "a node is suspected, and still takes part"
        Expel "expel" One "a suspect is expelled"
        Acknowledge "acknowledge" One "an expulsion is acknowledged"
    }
    Recovery {
        Claim "claim" One "a part of a dead node's log is claimed"
        Fence "fence" Several "who is out is fenced, memory node by memory node"
        LogRead "log-read" Several "a log slot is read, slot by slot"
        DecisionMade "decision-made" One "it is decided what becomes of a transaction"
        DecisionRecorded "decision-recorded" Several "the decision is recorded, log by log"
        Repair "repair" Several "cells are repaired, word by word"
        Done "done" Several "logs say that nothing is left to do, one by one"
        Finished "finished" One "a part is finished"
        LocksDropped "locks-dropped" One "a dead node's locks are dropped"
        Adopt "adopt" One "shards without an owner are found, and not yet taken over"
        OwnersSwapped "owners-swapped" Several "owners' words are swapped, copy by copy"
    }
    MemoryLoss {
        Complain "complain" One "a memory node that does not answer is complained of"
        Stop "stop" One "a node's coordinators have stopped"
        Finish "finish" One "commits end by the placement that is left"
        CarryOver "carry-over" Several "owners' words are raised, copy by copy"
        CarriedOver "carried-over" One "a node has acknowledged the loss of a memory node"
        Resume "resume" One "transactions may begin by the placement that is left"
        Promote "promote" One "the cursor of a promoted copy is raised"
        LocksAbandoned "locks-abandoned" One "the locks on a lost memory node are given up"
        LocksLeft "locks-left" One "nothing of a lock on a lost memory node is under way"
        LocksResumed "locks-resumed" One "locks on a memory node that has come back are used again"
    }
    Oracle {
        Turn "turn" One "a coordinator has turned to the successor"
        OracleFence "oracle-fence" One "the successor has fenced who is out"
        Reign "reign" One "the successor's bound is stored"
        Answer "answer" One "a timestamp is issued, and not yet sent"
    }
    HandOver {
        ReceiverAsked "receiver-asked" One "the receiver has said that it is there"
        GrantsStopped "grants-stopped" One "the owner grants no more locks of the shards"
        AskedToYield "asked-to-yield" One "who still holds locks has been asked to give up"
        Drained "drained" One "nobody holds locks of the shards any more"
        Given "given" One "the shards are the receiver's, and nobody was told"
        ReceiverTold "receiver-told" One "the receiver has been told"
    }
    Upkeep {
        TrimLogPosted "trim-log-posted" Several
            "the log entry of a trim is written, memory node by memory node"
        TrimMarked "trim-marked" Several
            "cells to be emptied are INVISIBLE, replica by replica"
        TrimEmptied "trim-emptied" Several
            "cells are empty but for their version words, replica by replica"
        TrimEnded "trim-ended" Several "cells are empty, replica by replica"
        TrimReleased "trim-released" One "a trim's locks are released, and its slots are not free"
        PurgeTimeRaised "purge-time-raised" Several
            "the purge time of a group is raised, replica by replica"
        PurgeLogPosted "purge-log-posted" Several
            "the log entry of a purge is written, memory node by memory node"
        PurgeMarked "purge-marked" Several
            "cells of rows to be purged are INVISIBLE, replica by replica"
        PurgedOnPrimaries "purged-on-primaries" Several
            "CVTs are zero on primaries, row by row"
        PurgeHalfDone "purge-half-done" Several
            "CVTs are zero on further copies but for one version word, copy by copy"
        PurgedOnBackups "purged-on-backups" Several
            "CVTs are zero on further copies, copy by copy"
        PurgeReleased "purge-released" One
            "a purge's locks are released, and its slots are not free"
    }
    Clearing {
        ClearingBegun "clearing-begun" One "all nodes are told to let go of a dropped table"
        ClearingClaimed "clearing-claimed" One "nobody uses a dropped table any more"
        SlabZeroed "slab-zeroed" Several "the slabs of a dropped table are zero, one by one"
        SlabFreed "slab-freed" Several "the slabs of a dropped table are free, one by one"
        TableGone "table-gone" One "the list of tables says that a dropped table is gone"
    }
    Start {
        MemoryServing "memory-serving" One "a memory node says that it serves"
        Joined "joined" One "a compute node has its place, and has done nothing else"
        Registered "registered" One "the founder has registered all memory"
        FirstBeat "first-beat" One "a compute node has beaten for the first time"
        Chartered "chartered" One "the cluster is made, and empty"
        RowsLoaded "rows-loaded" One "the rows of a shard are written"
        Filled "filled" One "all rows are written, and nobody was told"
        DataAgreed "data-agreed" One "all have agreed that the data is there"
        Announced "announced" One "a node that returns has beaten, and is no member yet"
        TakenIn "taken-in" One "a node that returns is a member"
        Serving "serving" One "a compute node says that it serves"
    }
    Snapshot {
        SnapshotOpened "snapshot-opened" One "a file without a name is open"
        SnapshotWritten "snapshot-written" One "some rows are in the file"
        SnapshotSynced "snapshot-synced" One "the file is on the disk"
        SnapshotNamed "snapshot-named" One "the file has its name"
        SnapshotPruned "snapshot-pruned" One "old files are removed"
        SnapshotReported "snapshot-reported" One "whoever asked for it is told"
    }
    Rest {
        RestAgreed "rest-agreed" One "it is said that nobody begins to serve"
        Rested "rested" One "a compute node takes no calls any more, and has answered all"
        RestTold "rest-told" One "all compute nodes have come to rest"
        LastTaken "last-taken" One "the last snapshot is taken, and all nodes run"
        ComputeEnded "compute-ended" One "compute nodes have ended, and memory nodes run"
        AllEnded "all-ended" One "all nodes have ended"
    }
}

impl FaultPoint {
    /// The point with this name, if any.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|point| point.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use heck::ToKebabCase;

    use super::*;

    #[test]
    fn names_are_the_variants_names_and_lead_back() {
        for point in FaultPoint::ALL {
            assert_eq!(point.name(), format!("{point:?}").to_kebab_case());
            assert_eq!(FaultPoint::named(point.name()), Some(*point));
        }
        assert_eq!(FaultPoint::named("nowhere"), None);
    }

    #[test]
    fn descriptions_are_parts_of_a_sentence() {
        for point in FaultPoint::ALL {
            assert!(!point.description().ends_with('.'), "{point:?}");
        }
    }
}
