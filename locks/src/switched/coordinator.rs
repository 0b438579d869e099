//! The steps of a recovery (FissLock §5.3), for a coordinator that the membership has chosen.
//!
//! The epoch is the membership's: each recovery has a larger one than those before, also than those
//! that were not finished. Every step may be repeated, and a step of an earlier epoch does nothing
//! any more, so a coordinator that dies is replaced by one with a later epoch.

use std::time::Duration;

use lotus_fabric::ids::Epoch;
use lotus_fabric::rpc::{Patience, Rpc, RpcError};
use thiserror::Error;

use super::agent::SERVICE;
use super::control::{ControlRequest, decode_done};
use super::places::{Places, control_lane};
use crate::contract::Peers;
use crate::fisslock::recovery::restore;
use crate::fisslock::report::decode_report;

/// Reason for which a recovery was not finished. The machines stand still until another one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// A machine does not answer: begin again, without it if it is lost.
    #[error("machine {0} does not answer: {1}")]
    Machine(u8, RpcError),
    /// The switch does not answer: begin again when it does.
    #[error("the switch does not answer: {0}")]
    Switch(RpcError),
    /// A later recovery has begun, or the switch was lost meanwhile.
    #[error("a later recovery has begun, or the switch was lost meanwhile")]
    Overtaken,
}

/// Recovers from the loss of machines, of the switch, or of both: all survivors stop and report,
/// the switch is rewritten, and they go on, in a new epoch. Locks that only the lost held are free
/// then, or their waiters'.
///
/// The lost must not be able to act on what the locks protect any more; their packets the switch
/// drops from then on. A machine that was lost does not return under its number: it takes one that
/// no machine had before, opens lanes of its own, and joins as a survivor of a recovery.
///
/// # Errors
/// [`RecoveryError`].
///
/// # Panics
/// If a survivor is no machine of these places.
pub async fn recover(
    rpc: &Rpc,
    places: &Places,
    epoch: u32,
    survivors: &[u8],
    patience: Patience,
) -> Result<(), RecoveryError> {
    let control = |machine: u8| control_lane(places.agent(machine));
    let stop = ControlRequest::Stop { epoch }.encode();
    let calls: Vec<_> = survivors
        .iter()
        .map(|&machine| (machine, rpc.call(control(machine), SERVICE, &stop, patience)))
        .collect();
    let mut reports = Vec::new();
    for (machine, call) in calls {
        let answer = call.await.map_err(|why| RecoveryError::Machine(machine, why))?;
        let report = decode_report(&answer).filter(|report| report.machine == machine);
        reports.push(report.ok_or(RecoveryError::Overtaken)?);
    }
    let locks = restore(&reports);
    let switch = control_lane(places.switch(0));
    let life = rpc.call(switch, SERVICE, &ControlRequest::Life.encode(), patience).await;
    let life = life.map_err(RecoveryError::Switch)?;
    let life = life[..].try_into().map_err(|_| RecoveryError::Overtaken)?;
    let life = u64::from_le_bytes(life);
    let all = 0..places.machines() as u8;
    let dead = all.filter(|machine| !survivors.contains(machine)).collect();
    let rewrite = ControlRequest::Rewrite { epoch, life, dead, locks: locks.clone() }.encode();
    let answer = rpc.call(switch, SERVICE, &rewrite, patience).await;
    check(&answer.map_err(RecoveryError::Switch)?)?;
    let resume = ControlRequest::Resume { epoch, locks }.encode();
    let calls: Vec<_> = survivors
        .iter()
        .map(|&machine| (machine, rpc.call(control(machine), SERVICE, &resume, patience)))
        .collect();
    for (machine, call) in calls {
        check(&call.await.map_err(|why| RecoveryError::Machine(machine, why))?)?;
    }
    Ok(())
}

/// Recovers from each loss of machines that the membership tells of, for ever: looks every `every`,
/// and begins again, in a later look and a later epoch, what was not finished. (Machines that went
/// on in an epoch do not stop for it again.) One machine at a time does this, on its agent's core
/// ([`AgentProgram::control`](super::AgentProgram::control)).
///
/// A member is settled only when it cannot act any more on what the locks protect.
pub async fn recover_losses(
    rpc: &Rpc,
    places: &Places,
    peers: &dyn Peers,
    every: Duration,
    patience: Patience,
) {
    let executor = rpc.lane().executor().clone();
    let (mut recovered, mut tried) = (Epoch(0), 0);
    loop {
        executor.sleep(every).await;
        let lost = peers.last_loss();
        if lost <= recovered {
            continue;
        }
        let Some((epoch, members)) = peers.members().await else { continue };
        let is_left =
            |machine: &u8| members.iter().any(|member| member.node == places.agent(*machine).node);
        // There are at most 255.
        let survivors: Vec<u8> = (0..places.machines() as u8).filter(is_left).collect();
        tried = epoch.0.max(tried + 1);
        if recover(rpc, places, tried, &survivors, patience).await.is_ok() {
            recovered = lost;
        }
    }
}

/// Whether a step is done.
fn check(answer: &[u8]) -> Result<(), RecoveryError> {
    let is_done = decode_done(answer) == Some(true);
    is_done.then_some(()).ok_or(RecoveryError::Overtaken)
}
