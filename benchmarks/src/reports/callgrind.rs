//! Profiles of callgrind, summed up by layer.
//!
//! # What it is
//! A reader of the files that `valgrind --tool=callgrind` writes. Every instruction counts for the
//! source file that it was compiled from, even if the compiler has inlined it into another file;
//! files form layers by their crate. Code from outside of the workspace (the standard library,
//! dependencies, libc) counts for the layers that call it, in proportion to the cost of their
//! calls.
//!
//! # What it is not
//! A reader of the complete format: costs are one event, instructions, and positions are lines
//! (callgrind's defaults).

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::path::Path;

/// The layer of code that no layer of the workspace calls: start and end of the process.
pub const OUTSIDE: &str = "outside";
/// The layer of the simulated network, which is not executed on other fabrics.
pub const SIMULATOR: &str = "simulator";

/// The folder of the simulated network.
const SIMULATED: &str = "fabric/src/backends/sim/";
/// Rounds in which the cost of outside code is passed on to its callers. Calls within the standard
/// library are seldom nested more deeply.
const ROUNDS: usize = 32;

/// Number of instructions by layer.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Layers(BTreeMap<String, f64>);

impl Layers {
    /// Number of instructions of each layer, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(layer, count)| (layer.as_str(), *count))
    }

    /// The excess of this profile over `shorter`, a profile of a shorter run, for each of `units`.
    #[must_use]
    pub fn beyond(&self, shorter: &Self, units: f64) -> Self {
        let less = |layer: &str| shorter.0.get(layer).copied().unwrap_or_default();
        let each = |(layer, count): (&str, f64)| (layer.to_owned(), (count - less(layer)) / units);
        Self(self.iter().map(each).collect())
    }

    fn add(&mut self, layer: &str, count: f64) {
        self.0.entry(layer.to_owned()).or_default().add_assign(count);
    }

    fn add_share(&mut self, other: &Self, share: f64) {
        other.iter().for_each(|(layer, count)| self.add(layer, count * share));
    }

    fn total(&self) -> f64 {
        self.0.values().sum()
    }
}

/// A line that violates callgrind's format.
#[derive(Debug, thiserror::Error)]
#[error("line {line} of the profile is not as callgrind writes it: {text:?}")]
pub struct Malformed {
    line: usize,
    text: String,
}

/// Sums up the profile in `text`, of a program that was built in the folder `workspace`.
///
/// # Errors
/// [`Malformed`] with the first line that cannot be read.
pub fn layers(text: &str, workspace: &Path) -> Result<Layers, Malformed> {
    let mut profile = Profile { workspace: Some(workspace), ..Profile::default() };
    for (number, line) in text.lines().enumerate() {
        let malformed = || Malformed { line: number + 1, text: line.to_owned() };
        profile.read(line).ok_or_else(malformed)?;
    }
    Ok(profile.layers())
}

/// State of the reader after the lines read so far.
#[derive(Default)]
struct Profile<'t> {
    workspace: Option<&'t Path>,
    /// Names of files, functions and objects that were given in full, by kind and number.
    names: BTreeMap<(CallgrindLine, u32), &'t str>,
    functions: BTreeMap<Function<'t>, Costs<'t>>,
    /// The function and the file of the next costs.
    function: Function<'t>,
    file: &'t str,
    /// The function that is called next: name, and file if different from the current file.
    callee: &'t str,
    callee_file: Option<&'t str>,
    /// Whether the next line is the cost of a call.
    called: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CallgrindLine {
    File,
    Function,
    Object,
}

/// A function, by file and name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Function<'t> {
    file: &'t str,
    name: &'t str,
}

#[derive(Default)]
struct Costs<'t> {
    /// The function's own costs, by the file that the code is from.
    own: BTreeMap<&'t str, f64>,
    /// Costs of calls of outside code, including nested calls.
    calls: BTreeMap<Function<'t>, f64>,
}

impl<'t> Profile<'t> {
    /// Reads a line; `None` if it is malformed.
    fn read(&mut self, line: &'t str) -> Option<()> {
        let starts_costs = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '*');
        if line.starts_with(starts_costs) {
            return self.read_costs(line);
        }
        let Some((key, value)) = line.split_once('=') else { return Some(()) };
        match key {
            "fl" => {
                self.function.file = self.name(CallgrindLine::File, value)?;
                self.file = self.function.file;
            }
            "fi" | "fe" => self.file = self.name(CallgrindLine::File, value)?,
            "fn" => self.function.name = self.name(CallgrindLine::Function, value)?,
            "cfi" | "cfl" => self.callee_file = Some(self.name(CallgrindLine::File, value)?),
            "cfn" => self.callee = self.name(CallgrindLine::Function, value)?,
            "ob" | "cob" => drop(self.name(CallgrindLine::Object, value)?),
            "calls" => self.called = true,
            _ => {}
        }
        Some(())
    }

    fn read_costs(&mut self, line: &'t str) -> Option<()> {
        let count = match line.split_once(' ') {
            Some((_, count)) => count.trim().parse::<u64>().ok()? as f64,
            None => 0.0,
        };
        let costs = self.functions.entry(self.function).or_default();
        if std::mem::take(&mut self.called) {
            let file = self.callee_file.take().unwrap_or(self.file);
            let callee = Function { file, name: self.callee };
            costs.calls.entry(callee).or_default().add_assign(count);
        } else {
            costs.own.entry(self.file).or_default().add_assign(count);
        }
        Some(())
    }

    /// Expands a name, compressed by the format: `(7) name` the first time, `(7)` from then on.
    fn name(&mut self, kind: CallgrindLine, value: &'t str) -> Option<&'t str> {
        let Some(numbered) = value.strip_prefix('(') else { return Some(value) };
        let (number, name) = numbered.split_once(')')?;
        let key = (kind, number.parse().ok()?);
        match name.trim_start() {
            "" => self.names.get(&key).copied(),
            name => {
                self.names.insert(key, name);
                Some(name)
            }
        }
    }

    fn layers(&self) -> Layers {
        let shares = self.shares();
        let mut layers = Layers::default();
        for (function, costs) in &self.functions {
            for (file, count) in &costs.own {
                match self.layer(file).or_else(|| self.layer(function.file)) {
                    Some(layer) => layers.add(layer, *count),
                    None => layers.add_share(&shares[function], *count),
                }
            }
        }
        layers
    }

    /// For each function of outside code, the shares of the layers in the function's costs.
    fn shares(&self) -> BTreeMap<Function<'t>, Layers> {
        let mut callers: BTreeMap<Function<'t>, Vec<(Function<'t>, f64)>> = BTreeMap::new();
        for (caller, costs) in &self.functions {
            for (callee, count) in &costs.calls {
                callers.entry(*callee).or_default().push((*caller, *count));
            }
        }
        let outside =
            || self.functions.keys().filter(|function| self.layer(function.file).is_none());
        let mut shares: BTreeMap<_, _> = outside().map(|f| (*f, Layers::default())).collect();
        for _ in 0..ROUNDS {
            let next = outside().map(|function| {
                let mut share = Layers::default();
                for (caller, count) in callers.get(function).into_iter().flatten() {
                    match self.layer(caller.file) {
                        Some(layer) => share.add(layer, *count),
                        None => share.add_share(&shares[caller], *count),
                    }
                }
                let total = share.total();
                let mut whole = Layers::default();
                match total > 0.0 {
                    true => whole.add_share(&share, 1.0 / total),
                    false => whole.add(OUTSIDE, 1.0),
                }
                (*function, whole)
            });
            shares = next.collect();
        }
        shares
    }

    /// The layer of a source file: the folder of its crate; `None` for files outside of the
    /// workspace.
    fn layer(&self, file: &'t str) -> Option<&'t str> {
        let file = Path::new(file).strip_prefix(self.workspace?).ok()?.to_str()?;
        if file.starts_with(SIMULATED) {
            return Some(SIMULATOR);
        }
        let (folder, _) = file.split_once("/src/")?;
        folder.rsplit('/').next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine function with inlined code of another crate and of the standard library, which
    /// calls `memcpy`; the simulator calls it three times as dearly.
    const PROFILE: &str = "\
version: 1
events: Ir
fl=(1) /w/engine/src/txn.rs
fn=(1) commit
10 100
fi=(2) /w/mvcc/src/cvt.rs
+3 40
fi=(3) /rustc/1/library/core/src/slice.rs
+1 6
fe=(1)
cfi=(4) ???
cfn=(2) memcpy
calls=2 0
* 30

fl=(5) /w/fabric/src/backends/sim/world.rs
fn=(3) step
5 200
cob=(7) /lib/libc.so
cfi=(4)
cfn=(2)
calls=3 0
6 90

fl=(4)
fn=(2)
0 120
";

    fn count(layers: &Layers, layer: &str) -> f64 {
        layers.iter().find(|(name, _)| *name == layer).map_or(0.0, |(_, count)| count)
    }

    #[test]
    fn code_counts_for_where_it_is_from_and_outside_code_for_its_callers() {
        let layers = layers(PROFILE, Path::new("/w")).expect("well formed");
        assert_eq!(count(&layers, "engine"), 100.0 + 6.0 + 30.0);
        assert_eq!(count(&layers, "mvcc"), 40.0);
        assert_eq!(count(&layers, SIMULATOR), 200.0 + 90.0);
        assert_eq!(count(&layers, OUTSIDE), 0.0);
        assert_eq!(layers.total(), 466.0, "nothing is lost or counted twice");
    }

    #[test]
    fn what_a_longer_run_has_more_is_divided() {
        let shorter =
            layers("fl=/w/engine/src/a.rs\nfn=a\n1 100\n", Path::new("/w")).expect("well formed");
        let text = "fl=/w/engine/src/a.rs\nfn=a\n1 500\nfl=/w/mvcc/src/b.rs\nfn=b\n1 40\n";
        let longer = layers(text, Path::new("/w")).expect("well formed");
        let each = longer.beyond(&shorter, 20.0);
        assert_eq!((count(&each, "engine"), count(&each, "mvcc")), (20.0, 2.0));
    }

    #[test]
    fn code_that_nothing_of_the_workspace_calls_is_outside() {
        let layers = layers("fl=???\nfn=_start\n0 7\n", Path::new("/w")).expect("well formed");
        assert_eq!(count(&layers, OUTSIDE), 7.0);
    }

    #[test]
    fn a_line_that_is_malformed_is_named() {
        let error = layers("fl=(1) /w/engine/src/a.rs\nfn=(9)\n", Path::new("/w"))
            .expect_err("9 has no name");
        assert_eq!((error.line, error.text.as_str()), (2, "fn=(9)"));
        assert!(layers("fl=a\nfn=b\n1 many\n", Path::new("/w")).is_err());
    }
}
