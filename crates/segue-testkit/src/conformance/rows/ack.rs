//! Rows on pure acknowledgments, which only LRO with ACK aggregation lets collapse.

use super::shared::{CWR, ECE, PSH, row, tcp};
use crate::build::Tcp;
use crate::conformance::{On, Row, Script, gives};

fn acks(s: &mut Script, count: usize) {
    for _ in 0..count {
        tcp(&mut s.packet().l4).ack += 1448;
        s.send(0, 0);
    }
}

fn flagged(s: &mut Script, flags: u8) {
    tcp(&mut s.packet().l4).ack += 1448;
    s.send(0, flags);
}

pub(super) const ROWS: &[Row] = &[
    row("ack/pure", On::Any, gives("1 1 1 1").lro("1 <3"), |s| acks(s, 4)),
    row("ack/duplicate", On::Any, gives("1 1 1 1").lro("1 <2 1"), |s| {
        acks(s, 3);
        s.send(0, 0);
    }),
    row("ack/window_update", On::Any, gives("1 1 1 1").lro("1 <2 1"), |s| {
        acks(s, 3);
        tcp(&mut s.packet().l4).window += 1;
        s.send(0, 0);
    }),
    row("ack/window_grows", On::Any, gives("1 1 1").lro("1 <2"), |s| {
        acks(s, 2);
        tcp(&mut s.packet().l4).window += 1;
        acks(s, 1);
    }),
    row("ack/window_shrinks", On::Any, gives("1 1 1").lro("1 1 1"), |s| {
        acks(s, 2);
        tcp(&mut s.packet().l4).window -= 1;
        acks(s, 1);
    }),
    row("ack/older", On::Any, gives("1 1 1 1").lro("1 <2 1"), |s| {
        acks(s, 3);
        tcp(&mut s.packet().l4).ack -= 2000;
        s.send(0, 0);
    }),
    row("ack/ece", On::Any, gives("1 1 1 1"), |s| {
        acks(s, 2);
        flagged(s, ECE);
        acks(s, 1);
    }),
    row("ack/cwr", On::Any, gives("1 1 1 1"), |s| {
        acks(s, 2);
        flagged(s, CWR);
        acks(s, 1);
    }),
    row("ack/psh", On::Any, gives("1 1 1 1"), |s| {
        acks(s, 2);
        flagged(s, PSH);
        acks(s, 1);
    }),
    row("ack/ae", On::Any, gives("1 1 1"), |s| {
        acks(s, 2);
        tcp(&mut s.packet().l4).ack += 1448;
        s.header(0, |tcp| tcp[12] |= 1);
    }),
    row("ack/sack", On::Any, gives("1 1 1 1"), |s| {
        acks(s, 2);
        tcp(&mut s.packet().l4).options = [&[1, 1, 5, 10][..], &[7; 8]].concat();
        acks(s, 1);
        tcp(&mut s.packet().l4).options = Vec::new();
        acks(s, 1);
    }),
    row("ack/ts", On::Any, gives("1 1 1 1").lro("1 <3"), |s| {
        for stamp in 0..4 {
            tcp(&mut s.packet().l4).options = Tcp::timestamps(100 + stamp, 200 + stamp);
            acks(s, 1);
        }
    }),
    row("ack/ts_back", On::Any, gives("1 1 1").lro("1 1 1"), |s| {
        for stamp in [5, 6, 4] {
            tcp(&mut s.packet().l4).options = Tcp::timestamps(stamp, 200);
            acks(s, 1);
        }
    }),
    row("ack/after_data", On::Any, gives("2 1 1 1").lro("2 1 <2"), |s| {
        s.run(2);
        acks(s, 3);
    }),
    row("ack/then_data", On::Any, gives("1 1 1 2").lro("1 <2 2"), |s| {
        acks(s, 3);
        s.run(2);
    }),
    row("ack/flows", On::Any, gives("1 1 1 1 1 1").lro("1 1 2<4 3<5"), |s| {
        for _ in 0..3 {
            for flow in [0, 1] {
                s.flow(flow);
                acks(s, 1);
            }
        }
    }),
];
