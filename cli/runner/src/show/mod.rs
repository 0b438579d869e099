//! Output of commands: verdict, text and data, progress. The ground floor: imports no other room.
//!
//! * `verdict`: the result, from which the exit code follows; `screen`: text and JSON; `outputs`:
//!   files for results;
//! * `exit`: exit code and last words of a program;
//! * `watch`, `steps`: progress of a benchmark or a check, and of a command with steps; `live`:
//!   progress of a benchmark for other processes.
//!
//! Not here: tables and reports, which are formatted by the commands.

pub mod exit;
pub mod live;
pub mod outputs;
pub mod screen;
pub mod steps;
pub mod verdict;
pub mod watch;

pub use verdict::Verdict;
