//! Model of locking, commits, fencing and recovery under all faults, explored exhaustively by a
//! model checker.
//!
//! # What it is
//! Two compute nodes run transactions on two rows with three replicas; nodes die, are taken for
//! dead and go on, recoverers stop and are replaced, memory nodes are lost, messages come late,
//! twice or never. Every order of these is tried, and in every state the properties must hold
//! ([`properties`]). The decision about an interrupted transaction, and its consequence for a cell,
//! come from the crate itself.
//!
//! # That it can fail
//! `broken` breaks one rule after another, and expects a property to fail each time.
//!
//! # What it is not
//! The engine: its steps are written here once more ([`commit`], [`locks`], [`recover`]), and
//! coarser. Those modules and docs/recovery.md list what they leave out. The simulator runs the
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
