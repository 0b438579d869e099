//! The tests' own libibverbs: software devices inside this process.
//!
//! # What it is
//! The functions that the back end calls, under the library's own names: a program's definitions
//! take precedence over those of a shared library. A device carries out a verb while it is being
//! posted, on the memory registered under the request's key, and reports to the completion queue.
//! It checks keys, bounds, rights and alignment, and counts against the capacity of queues.
//!
//! # What it is not
//! It has no network and no time: nothing is lost, late or repeated. Behaviour that depends on
//! packets is tested on Soft-RoCE and real devices.
//!
//! # Ownership
//! Objects are boxes that the matching call destroys. Queue pairs and regions are also listed in
//! one [`Network`]; its lock is held while a verb is carried out, so destroying either waits for
//! that.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use ibverbs_sys::*;
use rustix::event::{EventfdFlags, eventfd};

use super::devices::{DEVICES, Model, visible};
use super::verbs::carry_out;

pub type Status = ibv_wc_status::Type;

/// All queue pairs and regions that verbs can reach, by number.
pub struct Network {
    pub pairs: BTreeMap<u32, &'static Pair>,
    pub regions: BTreeMap<u32, Region>,
    /// Number of the next object.
    next: u32,
}

static NETWORK: RwLock<Network> =
    RwLock::new(Network { pairs: BTreeMap::new(), regions: BTreeMap::new(), next: 1 });

#[derive(Clone, Copy)]
pub struct Region {
    pub address: u64,
    pub bytes: u64,
    pub access: c_int,
}

/// Channel of completion events: the count in `ready` is never less than the number of `events`.
#[repr(C)]
struct Channel {
    raw: ibv_comp_channel,
    ready: OwnedFd,
    events: Mutex<VecDeque<usize>>,
}

#[repr(C)]
struct Queue {
    raw: ibv_cq,
    state: Mutex<QueueState>,
    capacity: usize,
}

struct QueueState {
    entries: VecDeque<Entry>,
    armed: bool,
}

/// The first fields of an [`ibv_wc`], which has private fields.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    id: u64,
    status: Status,
    opcode: u32,
    vendor_error: u32,
    bytes: u32,
}

#[repr(C)]
pub struct Pair {
    pub raw: ibv_qp,
    model: &'static Model,
    pub peer: AtomicU32,
    pub queue_key: AtomicU32,
    /// Number of requests since the last one that reported.
    unreported: AtomicU32,
    most_unreported: u32,
    broken: AtomicBool,
    failed_a_datagram: AtomicBool,
    pub receives: Mutex<VecDeque<(u64, ibv_sge)>>,
}

// SAFETY: the pointers inside are written when the pair is made, and point to objects that lock
// their mutable state.
unsafe impl Sync for Pair {}

pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn network() -> std::sync::RwLockReadGuard<'static, Network> {
    NETWORK.read().unwrap_or_else(PoisonError::into_inner)
}

/// Adds an object to the network under a new number.
fn enter(add: impl FnOnce(&mut Network, u32)) -> u32 {
    let mut network = NETWORK.write().unwrap_or_else(PoisonError::into_inner);
    let number = network.next;
    network.next += 1;
    add(&mut network, number);
    number
}

fn leave(remove: impl FnOnce(&mut Network)) {
    remove(&mut NETWORK.write().unwrap_or_else(PoisonError::into_inner));
}

/// A structure of the library, all zeroes.
fn blank<T>() -> T {
    // SAFETY: called for structures of integers, pointers and optional functions only.
    unsafe { std::mem::zeroed() }
}

fn boxed<T, U>(object: T) -> *mut U {
    Box::into_raw(Box::new(object)).cast()
}

fn refuse<T>(error: rustix::io::Errno) -> *mut T {
    // SAFETY: the calling thread's own error number.
    unsafe { *errno_location() = error.raw_os_error() };
    ptr::null_mut()
}

unsafe extern "C" {
    #[link_name = "__errno_location"]
    safe fn errno_location() -> *mut c_int;
}

/// # Safety
/// `context` was made by [`ibv_open_device`].
unsafe fn model_of(context: *mut ibv_context) -> &'static Model {
    // SAFETY: `ibv_open_device` stores a model's index there.
    &DEVICES[unsafe { (*context).cmd_fd } as usize]
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    static KNOWN: OnceLock<Vec<usize>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let make = |model: &Model| {
            let mut device: ibv_device = blank();
            for (place, byte) in device.name.iter_mut().zip(model.name.bytes()) {
                *place = byte as c_char;
            }
            Box::into_raw(Box::new(device)).expose_provenance()
        };
        DEVICES.iter().map(make).collect()
    });
    let mut list = [ptr::null_mut::<ibv_device>(); DEVICES.len() + 1];
    let seen = DEVICES.iter().zip(known).filter(|(model, _)| visible(model));
    let mut found = 0;
    for (place, (_, device)) in list.iter_mut().zip(seen) {
        *place = ptr::with_exposed_provenance_mut::<ibv_device>(*device);
        found += 1;
    }
    // SAFETY: the caller's variable.
    unsafe { *count = found };
    boxed(list)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: made by `ibv_get_device_list`.
    drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; DEVICES.len() + 1]>()) });
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: devices live for ever.
    unsafe { (*device).name.as_ptr() }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: devices live for ever, and their names end with a zero.
    let name = unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_bytes();
    let number = DEVICES.iter().position(|model| model.name.as_bytes() == name);
    let mut context: ibv_context = blank();
    context.cmd_fd = number.expect("a device of the list") as c_int;
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    context.ops.poll_cq = Some(poll_cq);
    context.ops.req_notify_cq = Some(req_notify_cq);
    boxed(context)
}

/// Defines destroying calls for objects that are only a box.
macro_rules! destroys {
    ($($name:ident($kind:ty)),+ $(,)?) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(object: *mut $kind) -> c_int {
            // SAFETY: made by the matching call, destroyed once.
            drop(unsafe { Box::from_raw(object) });
            0
        }
    )+};
}

destroys! {
    ibv_close_device(ibv_context),
    ibv_dealloc_pd(ibv_pd),
    ibv_destroy_ah(ibv_ah),
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_device(context: *mut ibv_context, into: *mut ibv_device_attr) -> c_int {
    // SAFETY: made by `ibv_open_device`; the caller's variable.
    let (model, into) = unsafe { (model_of(context), &mut *into) };
    into.vendor_id = model.vendor;
    into.max_qp_wr = 1 << 10;
    into.max_cqe = 1 << 13;
    into.max_qp_rd_atom = 16;
    into.max_qp_init_rd_atom = 16;
    into.atomic_cap = if model.atomics { IBV_ATOMIC_NONE + 1 } else { IBV_ATOMIC_NONE };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    into: *mut _compat_ibv_port_attr,
) -> c_int {
    if port != 1 {
        return rustix::io::Errno::INVAL.raw_os_error();
    }
    // SAFETY: made by `ibv_open_device`; the caller has a whole structure there, as the back end's
    // comment says.
    let (model, into) = unsafe { (model_of(context), &mut *into.cast::<ibv_port_attr>()) };
    let up =
        if model.active { ibv_port_state::IBV_PORT_ACTIVE } else { ibv_port_state::IBV_PORT_DOWN };
    into.state = up;
    into.active_mtu = IBV_MTU_1024;
    into.gid_tbl_len = 4;
    into.link_layer = IBV_LINK_LAYER_ETHERNET as u8;
    0
}

#[unsafe(no_mangle)]
extern "C" fn _ibv_query_gid_ex(
    _: *mut ibv_context,
    _port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    _flags: u32,
    _size: usize,
) -> c_int {
    // Entries 0 and 1 are filled, the first of them for RoCE version 1.
    if index > 1 {
        return rustix::io::Errno::NODATA.raw_os_error();
    }
    let address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 127, 0, 0, 1];
    // SAFETY: the caller's variable.
    unsafe {
        (*entry).gid.raw = address;
        (*entry).gid_type = IBV_GID_TYPE_ROCE_V2 - 1 + index;
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    boxed(ibv_pd { context, ..blank() })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_ah(_: *mut ibv_pd, _: *mut ibv_ah_attr) -> *mut ibv_ah {
    boxed(blank::<ibv_ah>())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    address: *mut c_void,
    bytes: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: made by `ibv_alloc_pd` from a context.
    let model = unsafe { model_of((*domain).context) };
    if bytes > model.lockable_bytes {
        return refuse(rustix::io::Errno::NOMEM);
    }
    let region = Region { address: address as u64, bytes: bytes as u64, access };
    let key = enter(|network, key| _ = network.regions.insert(key, region));
    boxed(ibv_mr { lkey: key, rkey: key, ..blank() })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int {
    // SAFETY: made by `ibv_reg_mr`, destroyed once.
    let region = unsafe { Box::from_raw(region) };
    leave(|network| _ = network.regions.remove(&region.lkey));
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let ready = match eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC) {
        Ok(ready) => ready,
        Err(error) => return refuse(error),
    };
    let raw = ibv_comp_channel { context, fd: ready.as_raw_fd(), refcnt: 0 };
    // Room for more queues than a test has: some tests count allocations.
    let events = Mutex::new(VecDeque::with_capacity(64));
    boxed(Channel { raw, ready, events })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: made by `ibv_create_comp_channel`, destroyed once.
    drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    capacity: c_int,
    cookie: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    let capacity = capacity as usize;
    let state = QueueState { entries: VecDeque::with_capacity(capacity), armed: false };
    let raw = ibv_cq { context, channel, cq_context: cookie, ..blank() };
    boxed(Queue { raw, state: Mutex::new(state), capacity })
}

/// Withdraws the queue's events, as the kernel does, even after they were announced.
#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    // SAFETY: made by `ibv_create_cq`, destroyed once; its channel is still alive.
    let own = unsafe { Box::from_raw(queue.cast::<Queue>()) };
    // SAFETY: as above.
    if let Some(channel) = unsafe { own.raw.channel.cast::<Channel>().as_ref() } {
        lock(&channel.events).retain(|event| *event != queue.addr());
    }
    0
}

/// Waits for an event, unless the descriptor is non-blocking.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    cookie: *mut *mut c_void,
) -> c_int {
    // SAFETY: made by `ibv_create_comp_channel`.
    let channel = unsafe { &*channel.cast::<Channel>() };
    loop {
        if let Err(error) = rustix::io::read(&channel.ready, &mut [0; 8]) {
            refuse::<()>(error);
            return -1;
        }
        let events = &mut *lock(&channel.events);
        let Some(event) = events.pop_front() else { continue };
        let found = ptr::with_exposed_provenance_mut::<Queue>(event);
        // SAFETY: queues withdraw their events before they are destroyed; the caller's variables.
        unsafe {
            *queue = found.cast();
            *cookie = (*found).raw.cq_context;
        }
        return 0;
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(_: *mut ibv_cq, _: c_uint) {}

extern "C" fn req_notify_cq(queue: *mut ibv_cq, _: c_int) -> c_int {
    // SAFETY: made by `ibv_create_cq`.
    lock(unsafe { &(*queue.cast::<Queue>()).state }).armed = true;
    0
}

extern "C" fn poll_cq(queue: *mut ibv_cq, most: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: made by `ibv_create_cq`.
    let mut state = lock(unsafe { &(*queue.cast::<Queue>()).state });
    let found = state.entries.len().min(most as usize);
    for (place, entry) in state.entries.drain(..found).enumerate() {
        // SAFETY: the caller has room for `most`; each completion begins with an entry.
        unsafe {
            let place = into.add(place);
            place.write(blank());
            place.cast::<Entry>().write(entry);
        }
    }
    found as c_int
}

/// Puts a completion into a queue, and announces it if an event was requested.
///
/// # Safety
/// The queue is alive.
pub unsafe fn complete(queue: *mut ibv_cq, id: u64, status: Status, bytes: u32) {
    // SAFETY: made by `ibv_create_cq`, alive.
    let own = unsafe { &*queue.cast::<Queue>() };
    let mut state = lock(&own.state);
    assert!(state.entries.len() < own.capacity, "a completion queue overflows");
    state.entries.push_back(Entry { id, status, opcode: 0, vendor_error: 0, bytes });
    // SAFETY: the channel outlives the queue.
    let channel = unsafe { own.raw.channel.cast::<Channel>().as_ref() };
    if let (true, Some(channel)) = (std::mem::take(&mut state.armed), channel) {
        let event = queue.expose_provenance();
        let events = &mut *lock(&channel.events);
        // One event of a queue is enough until it is taken; otherwise the list would grow while the
        // thread that takes them does not run.
        if events.contains(&event) {
            return;
        }
        // SAFETY: the queue's context is alive.
        if !unsafe { model_of(own.raw.context) }.withdraws_events {
            events.push_back(event);
        }
        rustix::io::write(&channel.ready, &1u64.to_ne_bytes()).expect("the counter has room");
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_qp(domain: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: made by `ibv_alloc_pd`; the caller's variable.
    let (context, attributes) = unsafe { ((*domain).context, &*attributes) };
    if attributes.cap.max_inline_data > 128 {
        return refuse(rustix::io::Errno::INVAL);
    }
    let mut raw: ibv_qp = blank();
    (raw.context, raw.qp_type) = (context, attributes.qp_type);
    (raw.send_cq, raw.recv_cq) = (attributes.send_cq, attributes.recv_cq);
    let pair = Pair {
        raw,
        // SAFETY: made by `ibv_open_device`.
        model: unsafe { model_of(context) },
        peer: AtomicU32::new(0),
        queue_key: AtomicU32::new(0),
        unreported: AtomicU32::new(0),
        most_unreported: attributes.cap.max_send_wr,
        broken: AtomicBool::new(false),
        failed_a_datagram: AtomicBool::new(false),
        receives: Mutex::default(),
    };
    let pair: *mut Pair = boxed(pair);
    enter(|network, number| {
        // SAFETY: just made; listed until it is destroyed.
        unsafe {
            (*pair).raw.qp_num = number;
            network.pairs.insert(number, &*pair);
        }
    });
    pair.cast()
}

/// Destroys a pair; returns when no verb uses it any more.
#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    // SAFETY: made by `ibv_create_qp`, alive until the end of this function.
    let number = unsafe { (*pair).qp_num };
    leave(|network| _ = network.pairs.remove(&number));
    // SAFETY: it is no longer in the network, and `leave` has waited for verbs that use it.
    drop(unsafe { Box::from_raw(pair.cast::<Pair>()) });
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_modify_qp(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: made by `ibv_create_qp`; the caller's variable.
    let (pair, attributes) = unsafe { (&*pair.cast::<Pair>(), &*attributes) };
    let has = |bit: ibv_qp_attr_mask| mask as u32 & bit.0 != 0;
    if has(ibv_qp_attr_mask::IBV_QP_DEST_QPN) {
        pair.peer.store(attributes.dest_qp_num, Ordering::SeqCst);
    }
    if has(ibv_qp_attr_mask::IBV_QP_QKEY) {
        pair.queue_key.store(attributes.qkey, Ordering::SeqCst);
    }
    if attributes.qp_state == ibv_qp_state::IBV_QPS_RTS {
        pair.broken.store(false, Ordering::SeqCst);
    }
    0
}

extern "C" fn post_recv(
    pair: *mut ibv_qp,
    mut next: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: made by `ibv_create_qp`.
    let mut receives = lock(unsafe { &(*pair.cast::<Pair>()).receives });
    // SAFETY: a list that ends with a null pointer, each request with one buffer.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        receives.push_back((request.wr_id, unsafe { *request.sg_list }));
        next = request.next;
    }
    0
}

/// Carries out the requests one by one; returns the first that it does not take in `refused`.
extern "C" fn post_send(
    pair: *mut ibv_qp,
    first: *mut ibv_send_wr,
    refused: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: made by `ibv_create_qp`.
    let pair = unsafe { &*pair.cast::<Pair>() };
    let most = match pair.model {
        Model { refuses_posts: true, .. } => 0,
        Model { takes_two: true, .. } => 2,
        _ => usize::MAX,
    };
    let network = network();
    let (mut next, mut taken) = (first, 0);
    // SAFETY: a list that ends with a null pointer.
    while let Some(request) = unsafe { next.as_ref() } {
        if taken == most || pair.unreported.load(Ordering::SeqCst) == pair.most_unreported {
            // SAFETY: the caller's variable.
            unsafe { *refused = next };
            return rustix::io::Errno::NOMEM.raw_os_error();
        }
        taken += 1;
        // SAFETY: the request names one buffer, which the caller keeps for the device.
        let status = unsafe { status_of(&network, pair, request) };
        let failed = status != ibv_wc_status::IBV_WC_SUCCESS;
        pair.broken.fetch_or(failed, Ordering::SeqCst);
        pair.unreported.fetch_add(1, Ordering::SeqCst);
        if failed || request.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0 {
            pair.unreported.store(0, Ordering::SeqCst);
            // SAFETY: pairs keep their queues alive.
            unsafe { complete(pair.raw.send_cq, request.wr_id, status, 0) };
        }
        next = request.next;
    }
    0
}

/// Carries out a request, unless the pair is broken or the device fails it.
///
/// # Safety
/// The request names one buffer, which the caller keeps for the device.
unsafe fn status_of(network: &Network, pair: &Pair, request: &ibv_send_wr) -> Status {
    let datagram = pair.raw.qp_type == ibv_qp_type::IBV_QPT_UD;
    if pair.broken.load(Ordering::SeqCst) {
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR
    } else if datagram
        && pair.model.fails_a_datagram
        && !pair.failed_a_datagram.swap(true, Ordering::SeqCst)
    {
        ibv_wc_status::IBV_WC_LOC_PROT_ERR
    } else {
        // SAFETY: the caller's promise.
        unsafe { carry_out(network, pair, request) }.err().unwrap_or_default()
    }
}
