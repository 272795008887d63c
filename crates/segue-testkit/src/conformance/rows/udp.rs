//! Rows on UDP datagrams, which join if their sizes are equal.

use super::shared::{row, set_tos, set_ttl};
use crate::build::L4;
use crate::conformance::{On, Row, gives};

pub(super) const ROWS: &[Row] = &[
    row("udp/data_same", On::Any, gives("4"), |s| {
        s.udp();
        s.run(4);
    }),
    row("udp/data_lrg_sml", On::Any, gives("2"), |s| {
        s.udp();
        s.send(100, 0);
        s.send(50, 0);
    }),
    row("udp/data_sml_lrg", On::Any, gives("1 1"), |s| {
        s.udp();
        s.send(50, 0);
        s.send(100, 0);
    }),
    row("udp/short_closes", On::Any, gives("2 2"), |s| {
        s.udp();
        for len in [100, 50, 50, 50] {
            s.send(len, 0);
        }
    }),
    row("udp/larger_starts", On::Any, gives("2 2"), |s| {
        s.udp();
        for len in [100, 100, 200, 200] {
            s.send(len, 0);
        }
    }),
    row("udp/data_odd", On::Any, gives("3"), |s| {
        s.udp();
        for len in [101, 101, 33] {
            s.send(len, 0);
        }
    }),
    row("udp/data_1byte", On::Any, gives("3"), |s| {
        s.udp();
        for _ in 0..3 {
            s.send(1, 0);
        }
    }),
    row("udp/empty", On::Any, gives("1 1 1"), |s| {
        s.udp();
        s.send(100, 0);
        s.send(0, 0);
        s.send(100, 0);
    }),
    row("udp/csum", On::OwnChecksum, gives("1 1 1"), |s| {
        s.udp();
        s.send(100, 0);
        s.bytes(100, |bytes| *bytes.last_mut().expect("payload") ^= 1);
        s.send(100, 0);
    }),
    row("udp/no_csum", On::V4, gives("1 1"), |s| {
        s.udp();
        if let L4::Udp(udp) = &mut s.packet().l4 {
            udp.checksum = false;
        }
        s.run(2);
    }),
    row("udp/csum_then_none", On::V4, gives("1 1 1"), |s| {
        s.udp();
        s.run(1);
        s.with(100, |packet| {
            if let L4::Udp(udp) = &mut packet.l4 {
                udp.checksum = false;
            }
        });
        s.run(1);
    }),
    row("udp/tos", On::Any, gives("1 2"), |s| {
        s.udp();
        s.run(1);
        set_tos(&mut s.packet().ip, 0xb8);
        s.run(2);
    }),
    row("udp/ttl", On::Any, gives("1 2"), |s| {
        s.udp();
        s.run(1);
        set_ttl(&mut s.packet().ip, 9);
        s.run(2);
    }),
    row("udp/flows", On::Any, gives("0+2 1+3"), |s| {
        s.udp();
        for flow in [0, 1, 0, 1] {
            s.flow(flow);
            s.run(1);
        }
    }),
    row("udp/length_short_of_bytes", On::Any, gives("1 1"), |s| {
        s.udp();
        s.run(1);
        s.header(100, |udp| udp[5] -= 1);
    }),
];
