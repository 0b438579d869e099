//! Hints that bring a cache line closer before it is needed.
//!
//! A prefetch does not affect the results of a program, so the functions are safe and take
//! references. Prefetching matters because one uncached access costs as much as the rest of a small
//! transaction: a coroutine prefetches, yields to its neighbours, and then finds the line in the
//! cache.

use crate::contract::region::LINE_BYTES;

/// Hints that the first cache line of `value` will soon be read or written.
#[inline(always)]
pub fn read<T: ?Sized>(value: &T) {
    line(std::ptr::from_ref(value).cast::<u8>());
}

/// Hints that the whole of `value` will soon be read or written.
#[inline]
pub(crate) fn whole<T: ?Sized>(value: &T) {
    let first = std::ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of_val(value)).step_by(LINE_BYTES) {
        line(first.wrapping_add(offset));
    }
}

#[inline(always)]
pub(crate) fn line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and never changes memory, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Like [`line`], for a line about to be written.
#[inline(always)]
pub(crate) fn line_for_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and never changes memory, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
