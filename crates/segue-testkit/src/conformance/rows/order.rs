//! Rows on order: a packet that may not join does not overtake its flow, and the next packet starts a new train.

use super::shared::{PSH, row, tcp, v4};
use crate::build::L4;
use crate::conformance::{On, Row, gives};

pub(super) const ROWS: &[Row] = &[
    row("order/options_between", On::V4, gives("2 1 2"), |s| {
        s.run(2);
        s.with(100, |packet| v4(&mut packet.ip).options = vec![1; 4]);
        s.run(2);
    }),
    row("order/fragment_between", On::V4, gives("2 1 2"), |s| {
        s.run(2);
        s.with(96, |packet| {
            packet.l4 = L4::Raw(6);
            (v4(&mut packet.ip).df, v4(&mut packet.ip).fragment) = (false, Some((64, false)));
        });
        s.run(2);
    }),
    row("order/bad_csum_between", On::OwnChecksum, gives("2 1 2"), |s| {
        s.run(2);
        s.bytes(100, |bytes| *bytes.last_mut().expect("payload") ^= 1);
        s.run(2);
    }),
    row("order/ack_between", On::Any, gives("2 1 2"), |s| {
        s.run(2);
        s.send(0, 0);
        s.run(2);
    }),
    row("order/late", On::Any, gives("1 1 1"), |s| {
        s.run(1);
        let seq = tcp(&mut s.packet().l4).seq;
        tcp(&mut s.packet().l4).seq = seq + 100;
        s.run(1);
        tcp(&mut s.packet().l4).seq = seq;
        s.run(1);
    }),
    row("order/psh_among_flows", On::Any, gives("0+2 1+3+4"), |s| {
        s.run(1);
        s.flow(1);
        s.run(1);
        s.flow(0);
        s.send(100, PSH);
        s.flow(1);
        s.run(2);
    }),
    row("order/udp_empty_between", On::Any, gives("2 1 2"), |s| {
        s.udp();
        s.run(2);
        s.send(0, 0);
        s.run(2);
    }),
];
