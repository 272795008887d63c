//! Tests of datagrams without UDP checksum.

use super::*;

/// Tests that over IPv6 a port sends datagrams without checksum, and takes them, only where it was asked to, beside
/// other ports that do not (RFC 6936, section 4, requirements 2, 3, 5 and 6, and section 5, requirement 1), and that a
/// datagram of another thread by a duplicate of its socket, such as a probe, leaves like its own (requirement 6).
#[test]
fn only_ports_that_were_asked_to_do_without_checksums_over_ipv6() {
    let receivers = [false, true].map(|zero| (zero, receiver(V6, |config| config.zero_checksum_v6 = zero)));
    for (takes_zero, mut rx) in receivers {
        let mut sent = Vec::new();
        for checksum in [Checksum::Zero, Checksum::Full] {
            let mut tx = sender(&rx, |config| config.checksum = checksum);
            let (mut pages, mut batch) = (PagePool::new(4), TxBatch::new());
            let of = |by: u8| [&GUE[..], &[by, u8::from(checksum == Checksum::Full)]].concat();
            batch.push(packet(&mut pages, &of(0), &[], outer(0, 0)), tx.limits()).unwrap();
            send_all(&mut tx, &mut batch);
            let duplicate = UdpSocket::from(tx.senders().unwrap().remove(0));
            duplicate.send_to(&of(1), rx.listen()).unwrap();
            sent.extend([of(0), of(1)].into_iter().filter(|_| takes_zero || checksum == Checksum::Full));
        }
        // Those without checksum are the first ones.
        let seen = collect(&mut rx, &mut RxBatch::new(8), sent.len());
        assert_eq!(seen.into_iter().map(|(datagram, _)| datagram).collect::<Vec<_>>(), sent, "{takes_zero}");
        assert_eq!(rx.counters().drops.total(), 0, "none of them is counted");
    }
}
