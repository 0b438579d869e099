//! The calls of libibverbs, each wrapped once.
//!
//! Every object owns the objects from which it was made, so destruction happens in the order
//! demanded by the library, independently of the order of drops. The library allows calls on one
//! object from several threads. The module makes no decisions, and puts a single obligation on
//! callers, in [`QueuePair::post`] and [`QueuePair::post_receives`]: buffers must outlive their
//! verbs.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as sys;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
pub(super) use sys::{ibv_recv_wr, ibv_sge, ibv_wc, ibv_wc_status};

#[cfg(test)]
pub(super) mod fake;

use super::chain::Chain;
use crate::contract::region::{Memory, Rights};

/// A port's address on the network.
pub(super) type Gid = [u8; 16];

/// Returns the object, or the system's error for a null pointer.
fn made<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

/// Result of a call that returns an error number.
fn done(error: c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error.abs())) }
}

/// Declares an object of the library: the fields besides the pointer, and the destroying call.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident($raw:ty) { $($field:ident: $kind:ty),* } by $destroy:path) => {
        $(#[$doc])*
        pub(super) struct $name {
            raw: NonNull<$raw>,
            $($field: $kind,)*
        }
        // SAFETY: the library locks its objects, and no object is bound to a thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made by the matching call, destroyed once. The parent objects are in
                // fields, which are dropped later. The call fails only while a child object lives,
                // and a child would hold a reference on this object.
                let _ = unsafe { $destroy(self.raw.as_ptr()) };
            }
        }
    };
}

object! {
    /// An opened device.
    Context(sys::ibv_context) {} by sys::ibv_close_device
}
object! {
    /// Objects that may be used together.
    ProtectionDomain(sys::ibv_pd) { _context: Arc<Context> } by sys::ibv_dealloc_pd
}
object! {
    /// Memory that the device may access.
    MemoryRegion(sys::ibv_mr) {
        _domain: Arc<ProtectionDomain>, memory: Arc<Memory>
    } by sys::ibv_dereg_mr
}
object! {
    /// Channel on which completion queues announce that they are no longer empty.
    EventChannel(sys::ibv_comp_channel) { _context: Arc<Context> } by sys::ibv_destroy_comp_channel
}
object! {
    /// Queue of completions to be polled.
    CompletionQueue(sys::ibv_cq) {
        _context: Arc<Context>, _channel: Option<Arc<EventChannel>>
    } by sys::ibv_destroy_cq
}
object! {
    /// One end of a connection, or of datagrams.
    QueuePair(sys::ibv_qp) {
        _domain: Arc<ProtectionDomain>, _queues: [Arc<CompletionQueue>; 2], inline_bytes: u32
    } by sys::ibv_destroy_qp
}
object! {
    /// Address to send datagrams to.
    AddressHandle(sys::ibv_ah) { _domain: Arc<ProtectionDomain> } by sys::ibv_destroy_ah
}

/// Capabilities and limits of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub send_queue: u32,
    pub completions: u32,
    /// READs and atomics that a connection may have in flight, as initiator and as target.
    pub initiated: u8,
    pub served: u8,
    pub atomics: bool,
    /// Vendor of the device.
    pub vendor: u32,
}

/// State of a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub active: bool,
    /// The library's code: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    pub lid: u16,
    pub gids: i32,
    pub ethernet: bool,
}

/// Returns the names of all devices, in the library's order.
pub(super) fn device_names() -> io::Result<Vec<String>> {
    with_devices(|devices| devices.iter().map(|device| name_of(*device)).collect())
}

fn name_of(device: *mut sys::ibv_device) -> String {
    // SAFETY: an entry of a list that has not been freed; the name is a C string inside the entry.
    unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) }.to_string_lossy().into_owned()
}

fn with_devices<T>(look: impl FnOnce(&[*mut sys::ibv_device]) -> T) -> io::Result<T> {
    let mut count = 0;
    // SAFETY: returns an array of `count` devices, or null.
    let list = made(unsafe { sys::ibv_get_device_list(&mut count) })?;
    // SAFETY: as above; the array is freed only below.
    let result = look(unsafe { std::slice::from_raw_parts(list.as_ptr(), count as usize) });
    // SAFETY: made above; an opened device does not need the list.
    unsafe { sys::ibv_free_device_list(list.as_ptr()) };
    Ok(result)
}

impl Context {
    /// Opens the device `name`; `None` if the machine has no such device.
    pub fn open(name: &str) -> io::Result<Option<Self>> {
        with_devices(|devices| {
            let device = devices.iter().find(|device| name_of(**device) == name);
            // SAFETY: an entry of a list that has not been freed.
            let open = |device: &*mut _| made(unsafe { sys::ibv_open_device(*device) });
            device.map(open).transpose()
        })?
        .map(|raw| raw.map(|raw| Self { raw }))
    }

    pub fn limits(&self) -> io::Result<Limits> {
        // SAFETY: plain integers, for which zero is a value.
        let mut found: sys::ibv_device_attr = unsafe { zeroed() };
        // SAFETY: fills in the structure with which the library was compiled.
        done(unsafe { sys::ibv_query_device(self.raw.as_ptr(), &mut found) })?;
        let reads = |count: c_int| count.clamp(0, c_int::from(u8::MAX)) as u8;
        Ok(Limits {
            send_queue: found.max_qp_wr as u32,
            completions: found.max_cqe as u32,
            initiated: reads(found.max_qp_init_rd_atom),
            served: reads(found.max_qp_rd_atom),
            atomics: found.atomic_cap != sys::IBV_ATOMIC_NONE,
            vendor: found.vendor_id,
        })
    }

    pub fn port(&self, port: u8) -> io::Result<Port> {
        // SAFETY: plain integers, for which zero is a value.
        let mut found: sys::ibv_port_attr = unsafe { zeroed() };
        // SAFETY: the symbol fills in an older, shorter form of the structure: a prefix of it.
        done(unsafe {
            sys::ibv_query_port(self.raw.as_ptr(), port, ptr::from_mut(&mut found).cast())
        })?;
        Ok(Port {
            active: found.state == sys::ibv_port_state::IBV_PORT_ACTIVE,
            mtu: found.active_mtu as u8,
            lid: found.lid,
            gids: found.gid_tbl_len,
            ethernet: found.link_layer == sys::IBV_LINK_LAYER_ETHERNET as u8,
        })
    }

    /// Returns an entry of the port's table of addresses, and whether the entry is for RoCE version
    /// 2.
    pub fn gid(&self, port: u8, index: u8) -> io::Result<(Gid, bool)> {
        // SAFETY: plain integers, for which zero is a value.
        let mut entry: sys::ibv_gid_entry = unsafe { zeroed() };
        let size = size_of_val(&entry);
        // SAFETY: fills in a structure of the given size.
        done(unsafe {
            sys::_ibv_query_gid_ex(
                self.raw.as_ptr(),
                u32::from(port),
                u32::from(index),
                &mut entry,
                0,
                size,
            )
        })?;
        // SAFETY: all members of the union are the same sixteen bytes.
        let gid = unsafe { entry.gid.raw };
        Ok((gid, entry.gid_type == sys::IBV_GID_TYPE_ROCE_V2))
    }
}

impl ProtectionDomain {
    pub fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let raw = made(unsafe { sys::ibv_alloc_pd(context.raw.as_ptr()) })?;
        Ok(Self { raw, _context: Arc::clone(context) })
    }
}

impl MemoryRegion {
    /// Registers the first `bytes` of `memory`. Remote nodes get `remote` rights, the local node
    /// all rights. The whole range becomes resident.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        memory: Arc<Memory>,
        bytes: usize,
        remote: Rights,
    ) -> io::Result<Self> {
        assert!(bytes <= memory.bytes(), "more than there is");
        use sys::ibv_access_flags as Access;
        let mut access = Access::IBV_ACCESS_LOCAL_WRITE;
        let rights = [
            (remote.read, Access::IBV_ACCESS_REMOTE_READ),
            (remote.write, Access::IBV_ACCESS_REMOTE_WRITE),
            (remote.atomic, Access::IBV_ACCESS_REMOTE_ATOMIC),
        ];
        rights.iter().filter(|(granted, _)| *granted).for_each(|(_, flag)| access |= *flag);
        let start = memory.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the range is inside the mapping, which lives as long as the region.
        let raw = unsafe { sys::ibv_reg_mr(domain.raw.as_ptr(), start, bytes, access.0 as c_int) };
        Ok(Self { raw: made(raw)?, _domain: Arc::clone(domain), memory })
    }

    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Returns the region's key for local work requests.
    pub fn local_key(&self) -> u32 {
        // SAFETY: alive as long as `self`.
        unsafe { self.raw.as_ref() }.lkey
    }

    /// Returns the region's key for remote nodes' verbs.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: alive as long as `self`.
        unsafe { self.raw.as_ref() }.rkey
    }

    pub fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }
}

impl EventChannel {
    pub fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let raw = made(unsafe { sys::ibv_create_comp_channel(context.raw.as_ptr()) })?;
        let channel = Self { raw, _context: Arc::clone(context) };
        // Destroying a queue withdraws the queue's events, even announced events: a blocking read
        // would then wait for the next event, perhaps for ever.
        let flags = fcntl_getfl(&channel)? | OFlags::NONBLOCK;
        fcntl_setfl(&channel, flags)?;
        Ok(channel)
    }

    /// Takes a pending event, if any; returns the queue's cookie.
    pub fn take(&self) -> io::Result<Option<usize>> {
        let (mut queue, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive; both pointers are filled in on success.
        let error = unsafe { sys::ibv_get_cq_event(self.raw.as_ptr(), &mut queue, &mut cookie) };
        if error != 0 {
            let error = io::Error::last_os_error();
            let none = error.kind() == io::ErrorKind::WouldBlock;
            return if none { Ok(None) } else { Err(error) };
        }
        // SAFETY: a queue is not destroyed before its events are acknowledged.
        unsafe { sys::ibv_ack_cq_events(queue, 1) };
        Ok(Some(cookie.addr()))
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor stays open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }
}

/// Buffer for the results of one poll. The default has no capacity until the first poll.
#[derive(Default)]
pub(super) struct Completions {
    entries: Vec<ibv_wc>,
}

impl Completions {
    /// Largest number of completions taken by a poll.
    pub const MOST: usize = 32;

    /// Returns the completions of the last poll.
    #[inline]
    pub fn found(&self) -> &[ibv_wc] {
        &self.entries
    }
}

impl CompletionQueue {
    /// Makes a queue of at least `capacity` entries that sends events with `cookie` to `channel`.
    pub fn new(
        context: &Arc<Context>,
        capacity: u32,
        channel: Option<(&Arc<EventChannel>, usize)>,
    ) -> io::Result<Self> {
        let (events, cookie) = channel.unzip();
        let raw_channel = events.map_or(ptr::null_mut(), |events| events.raw.as_ptr());
        let cookie = ptr::without_provenance_mut(cookie.unwrap_or(0));
        // SAFETY: context and channel are alive, kept alive by the fields.
        let raw = unsafe {
            let capacity = capacity as c_int;
            sys::ibv_create_cq(context.raw.as_ptr(), capacity, cookie, raw_channel, 0)
        };
        let channel = events.cloned();
        Ok(Self { raw: made(raw)?, _context: Arc::clone(context), _channel: channel })
    }

    /// Takes completions, in order.
    #[inline]
    pub fn poll(&self, into: &mut Completions) {
        let (queue, most) = (self.raw.as_ptr(), Completions::MOST as c_int);
        into.entries.clear();
        into.entries.reserve(Completions::MOST);
        // SAFETY: queue and context are alive; a provider always has the operation, and fills in as
        // many entries as it returns, at most the reserved number.
        unsafe {
            let poll = (*(*queue).context).ops.poll_cq.expect("every provider polls");
            let found = poll(queue, most, into.entries.as_mut_ptr());
            // A queue that can no longer be polled yields nothing, and its connections time out.
            into.entries.set_len(found.max(0) as usize);
        }
    }

    /// Asks for an event at the next completion. Completions already in the queue cause no event.
    pub fn request_event(&self) {
        let queue = self.raw.as_ptr();
        // SAFETY: as in `poll`. A failure delays a wake, at most by the executor's bound on sleep.
        let _ = unsafe {
            let request = (*(*queue).context).ops.req_notify_cq.expect("every provider notifies");
            request(queue, 0)
        };
    }
}

/// Parameters of a queue pair.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub datagrams: bool,
    pub send_queue: u32,
    pub receive_queue: u32,
    pub inline_bytes: u32,
}

/// The far end of a reliable connection, and the path to the far end.
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub port: u8,
    pub gid_index: u8,
    pub gid: Gid,
    pub lid: u16,
    pub global: bool,
}

/// Parameters agreed by the ends of a connection.
#[derive(Clone, Copy)]
pub(super) struct Agreement {
    pub mtu: u8,
    pub peer_number: u32,
    pub peer_first_packet: u32,
    /// READs and atomics that the far end may have in flight to this end.
    pub served: u8,
}

impl Route {
    fn attributes(&self) -> sys::ibv_ah_attr {
        // SAFETY: plain integers, for which zero is a value.
        let mut attributes: sys::ibv_ah_attr = unsafe { zeroed() };
        attributes.dlid = self.lid;
        attributes.port_num = self.port;
        attributes.is_global = u8::from(self.global);
        attributes.grh.dgid.raw = self.gid;
        attributes.grh.sgid_index = self.gid_index;
        attributes.grh.hop_limit = 64;
        attributes
    }
}

impl QueuePair {
    /// Makes a queue pair with completions to `sends` and `receives`. The pair's limit of inline
    /// bytes may be lower than asked for.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        sends: &Arc<CompletionQueue>,
        receives: &Arc<CompletionQueue>,
        shape: Shape,
    ) -> io::Result<Self> {
        // SAFETY: integers and pointers, for which zero is a value.
        let mut attributes: sys::ibv_qp_init_attr = unsafe { zeroed() };
        attributes.send_cq = sends.raw.as_ptr();
        attributes.recv_cq = receives.raw.as_ptr();
        attributes.qp_type = if shape.datagrams {
            sys::ibv_qp_type::IBV_QPT_UD
        } else {
            sys::ibv_qp_type::IBV_QPT_RC
        };
        let mut inline_bytes = shape.inline_bytes;
        loop {
            attributes.cap = sys::ibv_qp_cap {
                max_send_wr: shape.send_queue,
                max_recv_wr: shape.receive_queue,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline_bytes,
            };
            // SAFETY: domain and queues are alive, kept alive by the fields.
            let raw = made(unsafe { sys::ibv_create_qp(domain.raw.as_ptr(), &mut attributes) });
            match raw {
                // A device's limit of inline bytes can only be found by trial.
                Err(error) if error.raw_os_error() == Some(EINVAL) && inline_bytes > 8 => {
                    inline_bytes /= 2;
                }
                Err(error) => return Err(error),
                Ok(raw) => {
                    let _queues = [Arc::clone(sends), Arc::clone(receives)];
                    let inline_bytes = inline_bytes.min(attributes.cap.max_inline_data);
                    return Ok(Self { raw, _domain: Arc::clone(domain), _queues, inline_bytes });
                }
            }
        }
    }

    pub fn number(&self) -> u32 {
        // SAFETY: alive as long as `self`.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Returns the largest number of bytes that a work request can carry inline.
    #[inline]
    pub fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    fn modify(
        &self,
        to: sys::ibv_qp_state::Type,
        fill: impl FnOnce(&mut sys::ibv_qp_attr),
        mask: sys::ibv_qp_attr_mask,
    ) -> io::Result<()> {
        // SAFETY: plain integers, for which zero is a value.
        let mut attributes: sys::ibv_qp_attr = unsafe { zeroed() };
        attributes.qp_state = to;
        fill(&mut attributes);
        let mask = (mask | sys::ibv_qp_attr_mask::IBV_QP_STATE).0 as c_int;
        // SAFETY: the pair is alive; the mask names the filled-in fields.
        done(unsafe { sys::ibv_modify_qp(self.raw.as_ptr(), &mut attributes, mask) })
    }

    /// First step of a connection. Admits verbs of the far end, within the regions' rights.
    pub fn admit_verbs(&self, port: u8) -> io::Result<()> {
        use sys::ibv_access_flags as Access;
        use sys::ibv_qp_attr_mask as Mask;
        let access = Access::IBV_ACCESS_REMOTE_READ
            | Access::IBV_ACCESS_REMOTE_WRITE
            | Access::IBV_ACCESS_REMOTE_ATOMIC;
        let fill = |attributes: &mut sys::ibv_qp_attr| {
            attributes.port_num = port;
            attributes.qp_access_flags = access.0;
        };
        let mask = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify(sys::ibv_qp_state::IBV_QPS_INIT, fill, mask)
    }

    /// Second step: answers the far end's requests from now on.
    pub fn receive_from(&self, route: &Route, agreed: Agreement) -> io::Result<()> {
        use sys::ibv_qp_attr_mask as Mask;
        let fill = |attributes: &mut sys::ibv_qp_attr| {
            attributes.path_mtu = sys::ibv_mtu::from(agreed.mtu);
            attributes.dest_qp_num = agreed.peer_number;
            attributes.rq_psn = agreed.peer_first_packet;
            attributes.max_dest_rd_atomic = agreed.served;
            attributes.min_rnr_timer = 12;
            attributes.ah_attr = route.attributes();
        };
        let mask = Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(sys::ibv_qp_state::IBV_QPS_RTR, fill, mask)
    }

    /// Third step, on the initiating side: may send from now on.
    pub fn send(
        &self,
        first_packet: u32,
        initiated: u8,
        patience: RetryParameters,
    ) -> io::Result<()> {
        use sys::ibv_qp_attr_mask as Mask;
        let fill = |attributes: &mut sys::ibv_qp_attr| {
            attributes.sq_psn = first_packet;
            attributes.timeout = patience.timeout;
            attributes.retry_cnt = patience.retries;
            attributes.rnr_retry = patience.retries;
            attributes.max_rd_atomic = initiated;
        };
        let mask = Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(sys::ibv_qp_state::IBV_QPS_RTS, fill, mask)
    }

    /// Carries out all steps for a datagram pair.
    pub fn open_datagrams(&self, port: u8, queue_key: u32) -> io::Result<()> {
        use sys::ibv_qp_attr_mask as Mask;
        let fill = |attributes: &mut sys::ibv_qp_attr| {
            attributes.port_num = port;
            attributes.qkey = queue_key;
        };
        let mask = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_QKEY;
        self.modify(sys::ibv_qp_state::IBV_QPS_INIT, fill, mask)?;
        self.modify(sys::ibv_qp_state::IBV_QPS_RTR, |_| {}, Mask(0))?;
        self.modify(sys::ibv_qp_state::IBV_QPS_RTS, |_| {}, Mask::IBV_QP_SQ_PSN)
    }

    /// Re-enables sending on a datagram pair after an error; receiving is not affected by errors.
    pub fn resume_datagrams(&self) -> io::Result<()> {
        self.modify(sys::ibv_qp_state::IBV_QPS_RTS, |_| {}, sys::ibv_qp_attr_mask(0))
    }

    /// Posts the requests of a chain with one doorbell. If the device refuses a request, neither
    /// the refused request nor later requests are posted.
    ///
    /// # Safety
    /// Until its request has completed or the queue pair is destroyed, every buffer named in the
    /// chain must stay in place, registered, and must not be touched if the device writes the
    /// buffer. Buffers of inline requests are needed during the call only.
    #[inline]
    pub unsafe fn post(&self, chain: &mut Chain) -> Result<(), Refused> {
        let Some(first) = chain.link() else { return Ok(()) };
        let (pair, mut refused) = (self.raw.as_ptr(), ptr::null_mut());
        // SAFETY: pair and context are alive, a provider always has the operation, and the chain is
        // linked through lists of requests and buffers that the chain owns. The refused request
        // returned by the provider is in the chain, which still exists.
        unsafe {
            let post = (*(*pair).context).ops.post_send.expect("every provider sends");
            if post(pair, first, &mut refused) == 0 {
                return Ok(());
            }
            Err(Refused { id: refused.as_ref().map_or((*first).wr_id, |refused| refused.wr_id) })
        }
    }

    /// Gives receive buffers for datagrams to the device, one buffer per request.
    ///
    /// # Safety
    /// As for [`QueuePair::post`]. A request names exactly one buffer.
    pub unsafe fn post_receives(&self, requests: &mut [ibv_recv_wr]) -> io::Result<()> {
        for index in 1..requests.len() {
            requests[index - 1].next = &raw mut requests[index];
        }
        let Some(first) = requests.first_mut() else { return Ok(()) };
        let (pair, mut refused) = (self.raw.as_ptr(), ptr::null_mut());
        // SAFETY: pair and context are alive; the list ends with a null pointer.
        done(unsafe {
            let post = (*(*pair).context).ops.post_recv.expect("every provider receives");
            post(pair, first, &mut refused)
        })
    }
}

/// Error: the device did not take the whole chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refused {
    /// Id of the first request that the device did not take.
    pub id: u64,
}

/// Time-out and retries of a connection.
#[derive(Clone, Copy)]
pub(super) struct RetryParameters {
    pub timeout: u8,
    pub retries: u8,
}

impl AddressHandle {
    pub fn new(domain: &Arc<ProtectionDomain>, route: &Route) -> io::Result<Self> {
        let mut attributes = route.attributes();
        // SAFETY: the domain is alive, kept alive by the field.
        let raw = unsafe { sys::ibv_create_ah(domain.raw.as_ptr(), &mut attributes) };
        Ok(Self { raw: made(raw)?, _domain: Arc::clone(domain) })
    }

    pub fn raw(&self) -> *mut sys::ibv_ah {
        self.raw.as_ptr()
    }
}

const EINVAL: i32 = 22;
