//! Errors that the kernel reports in place of a send though they are about an earlier datagram, to another peer too.

use std::cell::Cell;

use super::*;

thread_local! {
    /// Number of sends that still fail.
    static LEFT: Cell<u32> = const { Cell::new(0) };
}

/// Returns `errno` for the next [`LEFT`] sends.
fn fail(errno: i32) -> Option<i32> {
    let left = LEFT.get();
    LEFT.set(left.saturating_sub(1));
    (left > 0).then_some(errno)
}

/// Queues datagrams of 1000 bytes.
fn push(batch: &mut TxBatch, pages: &mut PagePool, tx: &UdpPort, count: usize) {
    for seed in 0..count {
        batch.push(packet(pages, &GUE, &bytes(996, seed), outer(0, 0)), tx.limits()).unwrap();
    }
}

#[test]
fn a_size_error_of_another_path_leaves_runs_whole() {
    let mut rx = receiver(V4, |_| {});
    let mut tx = sender(&rx, |_| {});
    let (mut pages, mut batch, mut into) = (PagePool::new(64), TxBatch::new(), RxBatch::new(64));
    tx.inject = Some(|_| fail(libc::EMSGSIZE));
    for failures in [1, 2, 8] {
        let before = tx.counters().clone();
        LEFT.set(failures);
        push(&mut batch, &mut pages, &tx, 10);
        send_all(&mut tx, &mut batch);
        assert_eq!(collect(&mut rx, &mut into, 10).len(), 10, "{failures}");
        let counters = tx.counters();
        assert_eq!((counters.tx.packets - before.tx.packets, counters.drops.total()), (1, 0), "{failures}: whole");
        assert_eq!(counters.fallbacks.of(Fallback::PendingError), before.fallbacks.of(Fallback::PendingError) + 1);
        assert_eq!(counters.fallbacks.of(Fallback::UdpSegmentSize), 0, "{failures}");
        assert_eq!(tx.schedule.oversize, None, "{failures}");
    }
}

#[test]
fn several_errors_of_earlier_datagrams_in_a_row_cost_no_datagram() {
    let mut rx = receiver(V4, |_| {});
    let mut tx = sender(&rx, |_| {});
    let (mut pages, mut batch, mut into) = (PagePool::new(8), TxBatch::new(), RxBatch::new(8));
    tx.inject = Some(|_| fail(libc::ECONNREFUSED));
    for (sent, failures) in (1..).zip([1, 2, 8]) {
        LEFT.set(failures);
        push(&mut batch, &mut pages, &tx, 1);
        send_all(&mut tx, &mut batch);
        assert_eq!(collect(&mut rx, &mut into, 1).len(), 1, "{failures}");
        assert_eq!((tx.counters().fallbacks.of(Fallback::PendingError), tx.counters().drops.total()), (sent, 0));
    }
}

#[test]
fn an_error_that_stays_is_soon_tried_only_once_again() {
    let rx = receiver(V4, |_| {});
    let mut tx = sender(&rx, |_| {});
    let (mut pages, mut batch) = (PagePool::new(64), TxBatch::new());
    tx.inject = Some(|_| Some(libc::ENETUNREACH));
    push(&mut batch, &mut pages, &tx, 10);
    send_all(&mut tx, &mut batch);
    assert_eq!((tx.counters().drops.of(Drop::Unreachable), tx.counters().fallbacks.total()), (10, 0));
    // The run and its repeats, and each datagram twice.
    assert_eq!(tx.counters().tx.calls, 1 + 8 + 2 * 10);
}
