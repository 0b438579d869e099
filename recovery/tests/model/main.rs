//! Lock, commit, fence and recover, with everything that may go wrong in between: explored to the
//! end by a model checker.
//!
//! # What it is
//! Two compute nodes run transactions on two rows with three replicas; nodes die, are taken for
//! dead and go on, recoverers stop and are replaced, memory nodes are lost, messages come late,
//! twice or never. Every order of these is tried, and in every state the properties must hold
//! ([`properties`]). What is decided about an interrupted transaction, and what that means for a
//! cell, is decided by the crate itself.
//!
//! # That it can fail
//! `broken` breaks one rule after another, and expects the property that falls.
//!
//! # What it is not
//! The engine: its steps are written here once more ([`commit`], [`locks`], [`recover`]), and
//! coarser. What they leave out is said there, and in docs/recovery.md. The simulator runs the
//! engine itself, but not in every order.

#![expect(clippy::print_stdout, reason = "how many states there were is what one wants to know")]

mod broken;
mod commit;
mod explore;
mod lives;
mod locks;
mod properties;
mod recover;
mod rules;
mod state;
mod whole;
