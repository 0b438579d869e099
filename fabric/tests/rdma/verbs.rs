//! Verbs on a software device: checked as on a real one, then carried out.

use std::sync::atomic::{AtomicU64, Ordering};

use ibverbs_sys::*;

use super::library::{Network, Pair, Status, complete, lock};

/// Carries out one request of `pair`; the error is the status of its completion.
///
/// # Safety
/// The device must be allowed to use the request's buffer.
pub unsafe fn carry_out(
    network: &Network,
    pair: &Pair,
    request: &ibv_send_wr,
) -> Result<(), Status> {
    use ibv_wr_opcode as Opcode;
    // SAFETY: the caller's promise.
    let buffer = unsafe { *request.sg_list };
    if request.opcode == Opcode::IBV_WR_SEND {
        // SAFETY: the opcode says which member of the union is filled in.
        let to = unsafe { request.wr.ud };
        // SAFETY: the caller's promise.
        unsafe { deliver(network, to.remote_qpn, to.remote_qkey, buffer) };
        return Ok(());
    }
    let atomic = matches!(
        request.opcode,
        Opcode::IBV_WR_ATOMIC_CMP_AND_SWP | Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
    );
    // SAFETY: as above.
    let (address, key) = unsafe {
        match atomic {
            true => (request.wr.atomic.remote_addr, request.wr.atomic.rkey),
            false => (request.wr.rdma.remote_addr, request.wr.rdma.rkey),
        }
    };
    let far_end = network.pairs.get(&pair.peer.load(Ordering::SeqCst));
    far_end.ok_or(ibv_wc_status::IBV_WC_RETRY_EXC_ERR)?;
    let right = match request.opcode {
        Opcode::IBV_WR_RDMA_READ => ibv_access_flags::IBV_ACCESS_REMOTE_READ,
        Opcode::IBV_WR_RDMA_WRITE => ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
        _ => ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC,
    };
    if !reaches(network, key, address, buffer.length, right) {
        return Err(ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    }
    let inline = request.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0;
    let own = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    if !inline && !reaches(network, buffer.lkey, buffer.addr, buffer.length, own) {
        return Err(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
    }
    if address % 8 != 0 {
        return Err(ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
    }
    // SAFETY: both sides were checked; regions are not removed while the network is locked.
    unsafe { act(request, address, buffer) };
    Ok(())
}

/// Whether registered memory grants `right` on all of these bytes.
fn reaches(network: &Network, key: u32, address: u64, bytes: u32, right: ibv_access_flags) -> bool {
    network.regions.get(&key).is_some_and(|region| {
        let end = address.checked_add(u64::from(bytes));
        address >= region.address
            && end.is_some_and(|end| end <= region.address + region.bytes)
            && region.access as u32 & right.0 != 0
    })
}

/// # Safety
/// Both addresses name `buffer.length` bytes of whole, aligned words, which other code accesses as
/// atomics only.
unsafe fn act(request: &ibv_send_wr, address: u64, buffer: ibv_sge) {
    use ibv_wr_opcode as Opcode;
    for offset in (0..u64::from(buffer.length)).step_by(8) {
        // SAFETY: the caller's promise.
        let word = |first: u64| unsafe { AtomicU64::from_ptr((first + offset) as *mut u64) };
        let (far, near) = (word(address), word(buffer.addr));
        // SAFETY: the opcode says which member of the union is filled in.
        let atomic = unsafe { request.wr.atomic };
        match request.opcode {
            Opcode::IBV_WR_RDMA_WRITE => far.store(near.load(SEEN), SEEN),
            Opcode::IBV_WR_RDMA_READ => near.store(far.load(SEEN), SEEN),
            Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                near.store(far.fetch_add(atomic.compare_add, SEEN), SEEN);
            }
            _ => {
                let (expected, new) = (atomic.compare_add, atomic.swap);
                let before = far.compare_exchange(expected, new, SEEN, SEEN);
                near.store(before.unwrap_or_else(|other| other), SEEN);
            }
        }
    }
}

/// Devices access memory in one total order.
const SEEN: Ordering = Ordering::SeqCst;

/// Bytes that a device puts before a received datagram.
const ROUTING_BYTES: u32 = 40;

/// Puts a datagram into the next buffer of its receiver; if there is none, it is lost.
///
/// # Safety
/// The device must be allowed to read the buffer.
unsafe fn deliver(network: &Network, to: u32, queue_key: u32, buffer: ibv_sge) {
    let Some(pair) = network.pairs.get(&to) else { return };
    if pair.queue_key.load(Ordering::SeqCst) != queue_key {
        return;
    }
    let Some((id, place)) = lock(&pair.receives).pop_front() else { return };
    let bytes = buffer.length + ROUTING_BYTES;
    assert!(bytes <= place.length, "a datagram is longer than a packet");
    // SAFETY: the buffer that was posted for receiving is as long; nothing else uses it.
    unsafe {
        let into = (place.addr + u64::from(ROUTING_BYTES)) as *mut u8;
        into.copy_from_nonoverlapping(buffer.addr as *const u8, buffer.length as usize);
        complete(pair.raw.recv_cq, id, ibv_wc_status::IBV_WC_SUCCESS, bytes);
    }
}
