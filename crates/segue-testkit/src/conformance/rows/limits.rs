//! Rows on the limits of bytes, packets, flows and time.

use super::shared::row;
use crate::conformance::{On, Row, Script, gives};

/// Sends two packets of each of `count` flows, interleaved.
fn flows(s: &mut Script, count: usize) {
    for _ in 0..2 {
        for flow in 0..count {
            s.flow(flow);
            s.run(1);
        }
    }
}

pub(super) const ROWS: &[Row] = &[
    // 65535 bytes from the outermost IP header: one more is one too many.
    row("large/rem", On::Any, gives("8 1"), |s| {
        let most = s.most();
        for _ in 0..8 {
            s.send(most / 8, 0);
        }
        s.send(most % 8 + 1, 0);
    }),
    // A segment of full size would not fit any more; this one is smaller, and fits to the byte.
    row("large/max", On::Any, gives("9"), |s| {
        let most = s.most();
        for _ in 0..8 {
            s.send(8000, 0);
        }
        s.send(most - 64_000, 0);
    }),
    row("large/full_twice", On::Any, gives("8 8"), |s| {
        let size = s.most() / 8;
        for _ in 0..16 {
            s.send(size, 0);
        }
    }),
    row("large/mtu_1500", On::Any, gives("46 4"), |s| {
        for _ in 0..50 {
            s.send(1400, 0);
        }
    }),
    row("capacity/7_flows", On::Any, gives("0+7 1+8 2+9 3+10 4+11 5+12 6+13"), |s| flows(s, 7)),
    // Linux holds 8 of a bucket; those of a veth pair are all in one, since no hash was computed for them.
    row(
        "capacity/16_flows",
        On::Any,
        gives("0+16 1+17 2+18 3+19 4+20 5+21 6+22 7+23 8+24 9+25 10+26 11+27 12+28 13+29 14+30 15+31"),
        |s| {
            flows(s, 16);
        },
    )
    .not_in_kernels(),
    row("capacity/udp_64", On::Any, gives("64 1"), |s| {
        s.udp();
        s.run(65);
    })
    .not_in_kernels(),
];
