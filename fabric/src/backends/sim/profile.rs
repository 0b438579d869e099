//! Profiles: the constants of NIC, links and cores, as data with sources.
//!
//! A profile is a TOML file. Every constant names its source, and a constant without a source is
//! refused, so that no value is tuned silently (`docs/simulation.md`). Rates are written as
//! published (Mops, Gbps) and kept as time: picoseconds for an operation or a byte.
//!
//! Some constants are optional, because not every NIC has the feature. Without the constant, the
//! model lacks the feature:
//!
//! * `atomic_unit.same_address_mops`, `atomic_unit.blocks_inbound`: see [`Atomics`];
//! * `extended.masked`, `extended.wide`: whether the NIC has masked atomics, and 16-byte atomics;
//! * `atomic_unit.wide_mops`: rate of 16-byte atomics, if different from the rate of 8-byte
//!   atomics;
//! * `connection.initiator_depth`: READs and atomics that a connection may have unanswered;
//! * `link.cn_cn_delay_ns`: delay of messages between two nodes without registered memory, if
//!   different from the delay of other paths;
//! * `outbound.inline_bytes` and `outbound.dma_ns`, both or neither: WRITEs longer than
//!   `inline_bytes` do not travel with their work requests, and the NIC fetches the data from
//!   memory;
//! * `server.request_ns`: core time of a server's request ([`Profile::server_request`]);
//! * `switch.pipeline_ns`: time that a packet takes through a switch node
//!   ([`super::Config::switches`]);
//! * `cpu.factor`: multiplies the remaining constants of `[cpu]`, which makes cores slower or
//!   faster as a whole, for cases where a core's time for a transaction is known but single costs
//!   are not.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::queue::{PICOS_PER_NANO, Picos, duration, picos};
use crate::contract::verbs::{VerbKind, WorkRequest};

/// Built-in profiles, by name.
const BUILT_IN: [(&str, &str); 6] = [
    ("cx3-56g", include_str!("../../../profiles/cx3-56g.toml")),
    ("cx3-56g-fitted", include_str!("../../../profiles/cx3-56g-fitted.toml")),
    ("cx4-100g", include_str!("../../../profiles/cx4-100g.toml")),
    ("cx5-100g", include_str!("../../../profiles/cx5-100g.toml")),
    ("ideal", include_str!("../../../profiles/ideal.toml")),
    ("tofino-cx5", include_str!("../../../profiles/tofino-cx5.toml")),
];

/// Reason why a profile is unavailable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// No built-in profile has the name; choose a listed profile.
    #[error("unknown profile \"{name}\"; known are {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// Names of the built-in profiles, separated by commas.
        known: String,
    },
    /// The text is not a profile; correct the line.
    #[error("{name}, line {line}: {message}")]
    Malformed {
        /// The caller's name for the text, for instance a file name.
        name: String,
        /// Line number, from 1.
        line: usize,
        /// The error in the line.
        message: String,
    },
}

/// The constants of a kind of cluster.
#[derive(Clone, Debug)]
pub struct Profile {
    name: String,
    summary: String,
    pub(super) costs: Costs,
}

/// Time for which an operation occupies a server of a NIC, by kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Services {
    read: Picos,
    write: Picos,
    atomic: Picos,
    pub(super) message: Picos,
    /// Largest WRITE whose data travels in the work request, and the time to fetch the data of
    /// larger WRITEs.
    inline_bytes: usize,
    dma: Picos,
}

impl Services {
    #[inline]
    pub(super) fn of(&self, kind: VerbKind) -> Picos {
        match kind {
            VerbKind::Read => self.read,
            VerbKind::Write => self.write,
            VerbKind::CompareAndSwap | VerbKind::FetchAndAdd => self.atomic,
        }
    }

    /// Returns the time to issue a verb, including the data of a WRITE.
    #[inline]
    pub(super) fn issuing(&self, request: &WorkRequest) -> Picos {
        let service = self.of(request.kind());
        let fetched = request.kind() == VerbKind::Write && request.bytes() > self.inline_bytes;
        if fetched { service + self.dma } else { service }
    }
}

/// A profile's constants, as time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    pub(super) inbound: Services,
    pub(super) outbound: Services,
    pub(super) atomics: Atomics,
    /// READs and atomics that a connection may have unanswered, if limited.
    pub(super) initiator_depth: Option<usize>,
    byte: Picos,
    overhead_bytes: u64,
    pub(super) delay: Picos,
    /// Delay between two compute nodes, if different.
    pub(super) cn_cn_delay: Option<Picos>,
    pub(super) jitter: Picos,
    pub(super) cpu: Cpu,
    /// Time of a packet through a switch, if the profile has one.
    pub(super) pipeline: Option<Picos>,
    /// Core time of a server's request, if the profile gives the time.
    request: Option<Picos>,
}

/// How a NIC carries out atomics.
#[derive(Clone, Copy, Debug)]
pub(super) struct Atomics {
    /// Time for which an atomic occupies the atomic unit.
    pub(super) unit: Picos,
    /// Time for which an atomic blocks its word for later atomics; `None` for `unit`.
    pub(super) same_address: Option<Picos>,
    /// Whether the inbound server waits for the atomic unit.
    pub(super) blocks_inbound: bool,
    /// Whether the NIC has masked atomics; the costs are those of other atomics.
    pub(super) masked: bool,
    /// Time for which a 16-byte atomic occupies the atomic unit; `None` without 16-byte atomics.
    pub(super) wide: Option<Picos>,
}

impl Atomics {
    /// Returns the time for which a 16-byte atomic occupies the atomic unit.
    #[inline]
    pub(super) fn wide_unit(&self) -> Picos {
        self.wide.unwrap_or(self.unit)
    }
}

/// CPU time that a core spends on an operation, by kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cpu {
    pub(super) poll: Picos,
    pub(super) completion: Picos,
    pub(super) verb: Picos,
    pub(super) doorbell: Picos,
    pub(super) send: Picos,
    pub(super) receive: Picos,
    pub(super) transaction: Picos,
}

impl Costs {
    /// Returns the time for which `bytes` of payload, with headers, occupy a link.
    #[inline]
    pub(super) fn transmission(&self, bytes: usize) -> Picos {
        (bytes as u64 + self.overhead_bytes) * self.byte
    }
}

impl Profile {
    /// Returns the names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Returns a built-in profile.
    ///
    /// # Errors
    /// `Unknown`, with the names of the built-in profiles.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((name, text)) => Self::parse(name, text.as_bytes()),
            None => Err(ProfileError::Unknown {
                name: name.to_owned(),
                known: Self::names().collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// Returns the profile with a tiny fixed latency and no limits, for tests.
    pub fn ideal() -> Self {
        Self::named("ideal").expect("a test parses every built-in profile")
    }

    /// Parses the bytes of a profile file; `name` is used in errors.
    ///
    /// # Errors
    /// `Malformed`, with the line.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, ProfileError> {
        let malformed = |at: usize, message: String| {
            let before = &bytes[..at.min(bytes.len())];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            ProfileError::Malformed { name: name.to_owned(), line, message }
        };
        let text = std::str::from_utf8(bytes)
            .map_err(|error| malformed(error.valid_up_to(), "not text (UTF-8)".to_owned()))?;
        let document: Document = toml::from_str(text).map_err(|error| {
            malformed(error.span().map_or(0, |span| span.start), error.message().to_owned())
        })?;
        let costs = document.costs().map_err(|(at, message)| malformed(at, message))?;
        Ok(Self { name: document.name, summary: document.summary, costs })
    }

    /// Replaces the delay of messages between compute nodes (`link.cn_cn_delay_ns`), for
    /// experiments that vary the delay.
    ///
    /// # Panics
    /// If the delay is more than a second.
    #[must_use]
    pub fn with_cn_cn_delay(mut self, delay: Duration) -> Self {
        assert!(delay <= Duration::from_secs(1), "a delay of {delay:?} is a mistake");
        self.costs.cn_cn_delay = Some(picos(delay));
        self
    }

    /// Whether the NICs have 16-byte atomics (`extended.wide`).
    pub fn has_wide_atomics(&self) -> bool {
        self.costs.atomics.wide.is_some()
    }

    /// Returns the core time that a server takes for a client's request, if the profile gives the
    /// time (`server.request_ns`). The simulation does not charge the time: servers do
    /// ([`SimFabric::charge`]).
    ///
    /// [`SimFabric::charge`]: super::SimFabric::charge
    pub fn server_request(&self) -> Option<Duration> {
        self.costs.request.map(duration)
    }

    /// Returns the time that a packet takes through a switch, if given (`switch.pipeline_ns`).
    pub fn switch_pipeline(&self) -> Option<Duration> {
        self.costs.pipeline.map(duration)
    }

    /// Returns the profile's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One-line description of the profile.
    pub fn summary(&self) -> &str {
        &self.summary
    }
}

/// An error in the text: byte offset and message.
type Wrong = (usize, String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: String,
    summary: String,
    inbound: Inbound,
    outbound: Outbound,
    atomic_unit: AtomicUnit,
    link: Link,
    cpu: CpuCosts,
    #[serde(default)]
    connection: ConnectionLimits,
    #[serde(default)]
    extended: Extended,
    #[serde(default)]
    server: ServerCosts,
    #[serde(default)]
    switch: SwitchCosts,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Inbound {
    read_mops: Constant,
    write_mops: Constant,
    atomic_mops: Constant,
    message_mops: Constant,
}

/// Rates at which a NIC issues operations, and data carried in work requests.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Outbound {
    read_mops: Constant,
    write_mops: Constant,
    atomic_mops: Constant,
    message_mops: Constant,
    inline_bytes: Option<Constant>,
    dma_ns: Option<Constant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AtomicUnit {
    mops: Constant,
    same_address_mops: Option<Constant>,
    wide_mops: Option<Constant>,
    blocks_inbound: Option<Flag>,
}

impl AtomicUnit {
    /// Returns the time of a 16-byte atomic, if supported; by default `unit`, the time of an 8-byte
    /// atomic.
    fn wide(&self, unit: Picos, extended: &Extended) -> Result<Option<Picos>, Wrong> {
        match (&self.wide_mops, optional(&extended.wide)?) {
            (None, there) => Ok(there.then_some(unit)),
            (Some(rate), true) => rate.rate(PICOS_PER_MOPS).map(Some),
            (Some(rate), false) => {
                let message = "wide_mops makes sense only with extended.wide".to_owned();
                Err((rate.value.span().start, message))
            }
        }
    }

    fn same_address(&self) -> Result<Option<Picos>, Wrong> {
        self.same_address_mops.as_ref().map(|rate| rate.rate(PICOS_PER_MOPS)).transpose()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    gbps: Constant,
    overhead_bytes: Constant,
    delay_ns: Constant,
    cn_cn_delay_ns: Option<Constant>,
    jitter_ns: Constant,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CpuCosts {
    poll_ns: Constant,
    completion_ns: Constant,
    verb_ns: Constant,
    doorbell_ns: Constant,
    send_ns: Constant,
    receive_ns: Constant,
    transaction_ns: Constant,
    factor: Option<Constant>,
}

impl CpuCosts {
    fn costs(&self) -> Result<Cpu, Wrong> {
        let factor = self.factor.as_ref().map(|factor| factor.checked(FACTORS)).transpose()?;
        let times = |constant: &Constant| constant.nanos_times(factor.unwrap_or(1.0));
        Ok(Cpu {
            poll: times(&self.poll_ns)?,
            completion: times(&self.completion_ns)?,
            verb: times(&self.verb_ns)?,
            doorbell: times(&self.doorbell_ns)?,
            send: times(&self.send_ns)?,
            receive: times(&self.receive_ns)?,
            transaction: times(&self.transaction_ns)?,
        })
    }
}

/// A NIC's limits for a connection; unlimited by default.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConnectionLimits {
    initiator_depth: Option<Constant>,
}

/// Atomics beyond the standard two.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Extended {
    masked: Option<Flag>,
    wide: Option<Flag>,
}

/// Costs of a server's core.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerCosts {
    request_ns: Option<Constant>,
}

/// Costs of a switch node.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchCosts {
    pipeline_ns: Option<Constant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Flag {
    value: bool,
    source: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Constant {
    value: Spanned<f64>,
    source: Spanned<String>,
}

/// Picoseconds for an operation at 1 Mops, and for a byte at 1 Gbps.
const PICOS_PER_MOPS: f64 = 1e6;
const PICOS_PER_GBPS: f64 = 8e3;
/// Upper bound of time constants: a second. Larger values are mistakes, and sums might overflow.
const MAX_NANOS: f64 = 1e9;
const MAX_OVERHEAD_BYTES: f64 = 4096.0;
/// Largest limit of inlined data: work requests of real NICs are smaller.
const MAX_INLINE_BYTES: f64 = 4096.0;
/// Range of `cpu.factor`: a core is at most a thousand times slower or faster than another.
const FACTORS: RangeInclusive<f64> = 1e-3..=1e3;
/// A queue pair's `max_rd_atomic` is a byte.
const MAX_DEPTH: f64 = 255.0;

fn check_source(source: &Spanned<String>) -> Result<(), Wrong> {
    match source.get_ref().trim().is_empty() {
        true => Err((source.span().start, "a constant needs a source".to_owned())),
        false => Ok(()),
    }
}

/// Returns the value of a flag after checking the source; false for a missing flag.
fn optional(flag: &Option<Flag>) -> Result<bool, Wrong> {
    let Some(flag) = flag else { return Ok(false) };
    check_source(&flag.source)?;
    Ok(flag.value)
}

impl Constant {
    /// Returns the value, if it has a source and lies in the range.
    fn checked(&self, range: RangeInclusive<f64>) -> Result<f64, Wrong> {
        check_source(&self.source)?;
        let (low, high) = (range.start(), range.end());
        let refusal = || format!("{} is not between {low} and {high}", self.value.get_ref());
        let value = *self.value.get_ref();
        range.contains(&value).then_some(value).ok_or_else(|| (self.value.span().start, refusal()))
    }

    /// Returns the time for a unit, given that a rate of 1 takes `picos`. Infinite rates give zero.
    fn rate(&self, picos: f64) -> Result<Picos, Wrong> {
        // At a slower rate, a unit would take more than a second.
        let slowest = picos / (MAX_NANOS * PICOS_PER_NANO as f64);
        self.checked(slowest..=f64::INFINITY).map(|rate| (picos / rate).round() as Picos)
    }

    /// Returns a whole number in the range.
    fn count(&self, range: RangeInclusive<f64>) -> Result<usize, Wrong> {
        match self.checked(range)? {
            whole if whole.fract() == 0.0 => Ok(whole as usize),
            other => Err((self.value.span().start, format!("{other} is not a whole number"))),
        }
    }

    fn nanos(&self) -> Result<Picos, Wrong> {
        self.nanos_times(1.0)
    }

    /// Returns `factor` times the constant, which is in nanoseconds.
    fn nanos_times(&self, factor: f64) -> Result<Picos, Wrong> {
        let picos = |nanos: f64| (nanos * factor * PICOS_PER_NANO as f64).round() as Picos;
        self.checked(0.0..=MAX_NANOS).map(picos)
    }
}

/// Returns the times of READs, WRITEs, atomics and messages at the given rates.
fn services([read, write, atomic, message]: [&Constant; 4]) -> Result<Services, Wrong> {
    Ok(Services {
        read: read.rate(PICOS_PER_MOPS)?,
        write: write.rate(PICOS_PER_MOPS)?,
        atomic: atomic.rate(PICOS_PER_MOPS)?,
        message: message.rate(PICOS_PER_MOPS)?,
        inline_bytes: usize::MAX,
        dma: 0,
    })
}

impl Inbound {
    fn services(&self) -> Result<Services, Wrong> {
        services([&self.read_mops, &self.write_mops, &self.atomic_mops, &self.message_mops])
    }
}

impl Outbound {
    fn services(&self) -> Result<Services, Wrong> {
        let services =
            services([&self.read_mops, &self.write_mops, &self.atomic_mops, &self.message_mops])?;
        match (&self.inline_bytes, &self.dma_ns) {
            (None, None) => Ok(services),
            (Some(limit), Some(dma)) => Ok(Services {
                inline_bytes: limit.count(0.0..=MAX_INLINE_BYTES)?,
                dma: dma.nanos()?,
                ..services
            }),
            (Some(alone), None) | (None, Some(alone)) => {
                let message = "inline_bytes and dma_ns make sense only together".to_owned();
                Err((alone.value.span().start, message))
            }
        }
    }
}

impl Document {
    fn atomics(&self) -> Result<Atomics, Wrong> {
        let unit = self.atomic_unit.mops.rate(PICOS_PER_MOPS)?;
        Ok(Atomics {
            unit,
            same_address: self.atomic_unit.same_address()?,
            blocks_inbound: optional(&self.atomic_unit.blocks_inbound)?,
            masked: optional(&self.extended.masked)?,
            wide: self.atomic_unit.wide(unit, &self.extended)?,
        })
    }

    fn costs(&self) -> Result<Costs, Wrong> {
        let link = &self.link;
        Ok(Costs {
            inbound: self.inbound.services()?,
            outbound: self.outbound.services()?,
            atomics: self.atomics()?,
            initiator_depth: {
                let depth = self.connection.initiator_depth.as_ref();
                depth.map(|depth| depth.count(1.0..=MAX_DEPTH)).transpose()?
            },
            byte: link.gbps.rate(PICOS_PER_GBPS)?,
            overhead_bytes: link.overhead_bytes.checked(0.0..=MAX_OVERHEAD_BYTES)? as u64,
            delay: link.delay_ns.nanos()?,
            cn_cn_delay: link.cn_cn_delay_ns.as_ref().map(Constant::nanos).transpose()?,
            jitter: link.jitter_ns.nanos()?,
            cpu: self.cpu.costs()?,
            pipeline: self.switch.pipeline_ns.as_ref().map(Constant::nanos).transpose()?,
            request: self.server.request_ns.as_ref().map(Constant::nanos).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests;
