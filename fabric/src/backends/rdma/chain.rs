//! Work requests for one doorbell: a list that is filled, linked and posted, then reused.

use std::ptr;

use ibverbs_sys as sys;

use super::ffi::AddressHandle;

/// A buffer of this node: address, length, and the key of its registration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local {
    pub address: u64,
    pub bytes: u32,
    pub key: u32,
}

/// Memory of another node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    pub address: u64,
    pub key: u32,
}

/// Operation of a work request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Read,
    /// The request carries the data if `inline` is set.
    Write {
        inline: bool,
    },
    CompareAndSwap {
        expected: u64,
        new: u64,
    },
    FetchAndAdd {
        addend: u64,
    },
}

/// A list of work requests. Allocates nothing once the list has reached its largest length.
#[derive(Default)]
pub(super) struct Chain {
    requests: Vec<sys::ibv_send_wr>,
    buffers: Vec<sys::ibv_sge>,
}

// SAFETY: `link` writes the pointers inside, and only the following post uses them.
unsafe impl Send for Chain {}

impl Chain {
    pub fn with_capacity(requests: usize) -> Self {
        Self { requests: Vec::with_capacity(requests), buffers: Vec::with_capacity(requests) }
    }

    #[inline]
    pub fn clear(&mut self) {
        self.requests.clear();
        self.buffers.clear();
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Adds a one-sided verb.
    #[inline]
    pub fn verb(&mut self, id: u64, action: Action, remote: Remote, local: Local) {
        use sys::ibv_wr_opcode as Opcode;
        let mut request = self.request(id, local);
        let Remote { address: remote_addr, key: rkey } = remote;
        let atomic = |compare_add, swap| sys::ibv_send_wr__bindgen_ty_2 {
            atomic: sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                remote_addr,
                compare_add,
                swap,
                rkey,
            },
        };
        request.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        match action {
            Action::Read => request.opcode = Opcode::IBV_WR_RDMA_READ,
            Action::Write { inline } => {
                request.opcode = Opcode::IBV_WR_RDMA_WRITE;
                if inline {
                    request.send_flags = sys::ibv_send_flags::IBV_SEND_INLINE.0;
                }
            }
            Action::CompareAndSwap { expected, new } => {
                request.opcode = Opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
                request.wr = atomic(expected, new);
            }
            Action::FetchAndAdd { addend } => {
                request.opcode = Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
                request.wr = atomic(addend, 0);
            }
        }
        self.requests.push(request);
    }

    /// Adds a datagram.
    pub fn datagram(
        &mut self,
        id: u64,
        to: &AddressHandle,
        number: u32,
        queue_key: u32,
        local: Local,
    ) {
        let mut request = self.request(id, local);
        request.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
        request.wr.ud = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
            ah: to.raw(),
            remote_qpn: number,
            remote_qkey: queue_key,
        };
        self.requests.push(request);
    }

    /// Makes the last request wait for earlier READs and atomics.
    #[inline]
    pub fn fence_last(&mut self) {
        self.flag_last(sys::ibv_send_flags::IBV_SEND_FENCE);
    }

    /// Makes the last request report its completion.
    #[inline]
    pub fn signal_last(&mut self) {
        self.flag_last(sys::ibv_send_flags::IBV_SEND_SIGNALED);
    }

    #[inline]
    fn flag_last(&mut self, flag: sys::ibv_send_flags) {
        if let Some(last) = self.requests.last_mut() {
            last.send_flags |= flag.0;
        }
    }

    #[inline]
    fn request(&mut self, id: u64, local: Local) -> sys::ibv_send_wr {
        self.buffers.push(sys::ibv_sge {
            addr: local.address,
            length: local.bytes,
            lkey: local.key,
        });
        sys::ibv_send_wr { wr_id: id, num_sge: 1, ..Default::default() }
    }

    /// Links requests and buffers into a list. Returns the first request; `None` if empty.
    #[inline]
    pub fn link(&mut self) -> Option<*mut sys::ibv_send_wr> {
        let mut next = ptr::null_mut();
        let buffers = self.buffers.as_mut_ptr();
        for (index, request) in self.requests.iter_mut().enumerate().rev() {
            request.next = next;
            request.sg_list = buffers.wrapping_add(index);
            next = ptr::from_mut(request);
        }
        (!next.is_null()).then_some(next)
    }
}
