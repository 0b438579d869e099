//! Fault points: named steps of the protocol and of recovery at which a node can be struck.
//!
//! # What it is
//! A crash between two steps is found by chance only if the steps are long. This crate lists the
//! steps as [`FaultPoint`]s, and the code of a step announces the completion ([`point!`],
//! [`cut!`]). A `FaultInjector` receives every `Passage` and may strike the node at that point: the
//! task stops, for ever or for a while, and does nothing beyond the point (I158).
//!
//! # Pieces of a batch
//! The verbs of a batch are posted together, so nothing can happen between them. [`cut!`] instead
//! ends the batch behind a chosen verb; the verbs up to the cut are carried out, and then the node
//! is struck ([`posted!`]). After a pause, the task posts the whole batch again, which every verb
//! in the batch allows.
//!
//! # Machines that are polled by hand
//! A state machine that is not an async function cannot wait between two steps. Instead the machine
//! keeps a [`PointState`] for the passage ([`passes!`]), and asks the state at every poll whether
//! to stand still.
//!
//! # What it is not
//! Fault points are no part of any other build. Without the feature `enabled` they generate no
//! code; only the feature `fault-points` of `lotus-cli` and `lotus-lab` enables it. Nor does this
//! crate decide the effect: `lotus_sim::strike` does so in simulation, the command line in
//! processes.
//!
//! # Scope
//! A fault injector receives the passages of a single thread, as long as the `Guard` lives: a
//! simulated world stays on a single thread. A fault injector installed for the whole process
//! receives the passages of the remaining threads.

#![forbid(unsafe_code)]

mod place;
mod point;
mod point_state;
#[cfg(feature = "enabled")]
mod strike;

pub use place::Place;
pub use point::{Family, FaultPoint, Pieces};
pub use point_state::PointState;
#[cfg(feature = "enabled")]
pub use strike::{
    FaultInjector, Guard, Passage, PassageFuture, PassageOutcome, install, may_cut, pass,
    pass_here, strike, strikes_on_this_thread, take_cut, to_cut,
};

/// Whether a batch of this thread may be [cut](cut!): never in this build.
#[cfg(not(feature = "enabled"))]
#[inline]
pub const fn may_cut() -> bool {
    false
}

/// Passes a point in an async function on a node (`u16`). If the step has pieces, pass the index of
/// the piece and their count; `with` names a second node involved in the step. If the node is
/// struck, the function goes no further.
#[cfg(feature = "enabled")]
#[macro_export]
macro_rules! point {
    ($node:expr, $point:ident) => {
        $crate::point!($node, $point, 0, 1)
    };
    ($node:expr, $point:ident, with $peer:expr) => {
        $crate::pass($crate::Passage {
            point: $crate::FaultPoint::$point,
            node: $node,
            index: 0,
            count: 1,
            peer: Some($peer),
        })
        .await
    };
    ($node:expr, $point:ident, if $condition:expr) => {
        if $condition {
            $crate::point!($node, $point)
        }
    };
    ($node:expr, $point:ident, $index:expr, $count:expr) => {
        $crate::pass($crate::Passage {
            point: $crate::FaultPoint::$point,
            node: $node,
            index: $index,
            count: $count,
            peer: None,
        })
        .await
    };
}

/// Passes a point in a function that is not async. If the node is struck, the function still runs
/// to its end, and its messages may arrive or not.
#[cfg(feature = "enabled")]
#[macro_export]
macro_rules! point_here {
    ($node:expr, $point:ident) => {
        $crate::pass_here($crate::Passage {
            point: $crate::FaultPoint::$point,
            node: $node,
            index: 0,
            count: 1,
            peer: None,
        })
    };
}

/// Passes a point in a state machine, at a time (`u64`) that changes when the node's next turn
/// begins; `with` names a second node involved in the step, if any. Returns whether the machine, by
/// its [`PointState`], stands still from now on.
#[cfg(feature = "enabled")]
#[macro_export]
macro_rules! passes {
    ($point_state:expr, $now:expr, $node:expr, $point:ident) => {
        $crate::passes!($point_state, $now, $node, $point, with None)
    };
    ($point_state:expr, $now:expr, $node:expr, $point:ident, with $peer:expr) => {{
        let passage = $crate::Passage {
            point: $crate::FaultPoint::$point,
            node: $node,
            index: 0,
            count: 1,
            peer: $peer,
        };
        $point_state.pass(passage, $now)
    }};
}

/// Passes a point in a state machine, which never stands still in this build.
#[cfg(not(feature = "enabled"))]
#[macro_export]
macro_rules! passes {
    ($point_state:expr, $now:expr, $node:expr, $point:ident) => {{
        $crate::nothing!((&$point_state, $now, $node));
        false
    }};
    ($point_state:expr, $now:expr, $node:expr, $point:ident, with $peer:expr) => {{
        $crate::nothing!((&$point_state, $now, $node, $peer));
        false
    }};
}

/// Whether a batch ends here, after piece `index` of `count`. The caller must then add nothing more
/// to the batch, and post it through [`posted!`].
#[cfg(feature = "enabled")]
#[macro_export]
macro_rules! cut {
    ($node:expr, $point:ident, $index:expr, $count:expr) => {
        $crate::to_cut($crate::Passage {
            point: $crate::FaultPoint::$point,
            node: $node,
            index: $index,
            count: $count,
            peer: None,
        })
    };
}

/// Result of posting a batch that may have been [cut](cut!). If the batch was cut and the node
/// lives on, continues the surrounding loop.
#[cfg(feature = "enabled")]
#[macro_export]
macro_rules! posted {
    ($posted:expr) => {{
        let cut = $crate::take_cut();
        let posted = $posted.await;
        if let Some(passage) = cut {
            $crate::strike(passage).await;
            continue;
        }
        posted
    }};
}

/// Passes a point in an async function: does nothing in this build.
#[cfg(not(feature = "enabled"))]
#[macro_export]
macro_rules! point {
    ($node:expr, $point:ident) => {
        $crate::nothing!($node)
    };
    ($node:expr, $point:ident, with $peer:expr) => {
        $crate::nothing!(($node, $peer))
    };
    ($node:expr, $point:ident, if $condition:expr) => {
        $crate::nothing!(($node, $condition))
    };
    ($node:expr, $point:ident, $index:expr, $count:expr) => {
        $crate::nothing!(($node, $index, $count))
    };
}

/// Passes a point in a function that is not async: does nothing in this build.
#[cfg(not(feature = "enabled"))]
#[macro_export]
macro_rules! point_here {
    ($node:expr, $point:ident) => {
        $crate::nothing!($node)
    };
}

/// Whether a batch ends here: always false in this build.
#[cfg(not(feature = "enabled"))]
#[macro_export]
macro_rules! cut {
    ($node:expr, $point:ident, $index:expr, $count:expr) => {{
        $crate::nothing!(($node, $index, $count));
        false
    }};
}

/// Result of posting a batch.
#[cfg(not(feature = "enabled"))]
#[macro_export]
macro_rules! posted {
    ($posted:expr) => {
        $posted.await
    };
}

/// Marks an expression as used, without evaluating it.
#[cfg(not(feature = "enabled"))]
#[doc(hidden)]
#[macro_export]
macro_rules! nothing {
    ($named:expr) => {
        if false {
            let _ = $named;
        }
    };
}
