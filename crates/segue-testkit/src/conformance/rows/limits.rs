//! Limits on bytes, packets, flows and time.

use super::row;
use crate::conformance::{On, Row, gives};

pub(super) const ROWS: &[Row] = &[
    // 65535 bytes from the outermost IP header: one more is one too many.
    row("large/rem", On::Any, gives("8 1"), |s| {
        let most = s.most();
        for _ in 0..8 {
            s.send(most / 8, 0);
        }
        s.send(most % 8 + 1, 0);
    }),
    // A segment of full size would not fit any more, so the train is closed; this one is smaller, and would.
    row("large/max", On::Any, gives("8 1"), |s| {
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
    row("capacity/8_flows", On::Any, gives("0+8 1+9 2+10 3+11 4+12 5+13 6+14 7+15"), |s| {
        for _ in 0..2 {
            for flow in 0..8 {
                s.flow(flow);
                s.run(1);
            }
        }
    }),
    row("capacity/udp_64", On::Any, gives("64 1"), |s| {
        s.udp();
        s.run(65);
    })
    .not_in_kernels(),
];
