//! Fault points: the steps of the protocol and of recovery by name, and who is struck there.
//!
//! # What it is
//! A crash between two steps is found by chance only if the steps are long. So they are listed
//! here as [`FaultPoint`]s, and the code that carries out a step says so ([`point!`], [`cut!`]). A
//! `Striker` is told of every `Passage` and may strike the node right there: the task that
//! passes stops, for ever or for a while, and does nothing that comes behind.
//!
//! # Pieces of a batch
//! The verbs of a batch are posted together, so nothing can happen between them. [`cut!`] ends the
//! batch behind one of its verbs instead; what is in it is carried out, and then the node is struck
//! ([`posted!`]). Whoever goes on after a pause posts all of it again, as every verb there allows.
//!
//! # What it is not
//! A part of any other build. Without the feature `enabled` points are no code at all; only
//! `lotus-cli` and `lotus-sim` with their feature `fault-points` enable it. Nor does it decide what
//! happens to whom: in simulation `lotus_sim::strike` does, in processes the command line.
//!
//! # Scope
//! A striker is told of what one thread passes, as long as its `Guard` lives: a simulated world
//! stays on one thread. One that is installed for the whole process hears of all other threads.

#![forbid(unsafe_code)]

mod place;
mod point;
#[cfg(feature = "enabled")]
mod strike;

pub use place::Place;
pub use point::{Family, FaultPoint, Pieces};
#[cfg(feature = "enabled")]
pub use strike::{
    Fate, Guard, Passage, Stand, Striker, install, pass, pass_here, strike, strikes_on_this_thread,
    take_cut, to_cut,
};

/// Passes a point in an async function: of this node (`u16`), and, if it is done in pieces, which
/// of how many this is; `with` names whom else the step concerns. Struck, the function goes no
/// further than this.
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

/// Passes a point in a function that is not async. Struck, it goes on to its end, and what it
/// sends may arrive or not.
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

/// Whether a batch ends here, behind piece `index` of `count`: whoever fills it adds no more, and
/// whoever posts it does so through [`posted!`].
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

/// What posting a batch that may have been [cut](cut!) has come to. Goes on with the next turn of
/// the loop around it, if the batch was cut and the node lives.
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

/// Passes a point in an async function: nothing, in this build.
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

/// Passes a point in a function that is not async: nothing, in this build.
#[cfg(not(feature = "enabled"))]
#[macro_export]
macro_rules! point_here {
    ($node:expr, $point:ident) => {
        $crate::nothing!($node)
    };
}

/// Whether a batch ends here: never, in this build.
#[cfg(not(feature = "enabled"))]
#[macro_export]
macro_rules! cut {
    ($node:expr, $point:ident, $index:expr, $count:expr) => {{
        $crate::nothing!(($node, $index, $count));
        false
    }};
}

/// What posting a batch has come to.
#[cfg(not(feature = "enabled"))]
#[macro_export]
macro_rules! posted {
    ($posted:expr) => {
        $posted.await
    };
}

/// Counts what is named as used, and does not look at it.
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
