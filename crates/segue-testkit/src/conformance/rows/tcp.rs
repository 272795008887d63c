//! Rows on data, flags, numbers, options and checksums of TCP (RFC 9293, RFC 7323).

use super::shared::{CWR, ECE, FIN, PSH, RST, SYN, URG, row, tcp};
use crate::build::Tcp;
use crate::conformance::{On, Row, gives};

pub(super) const ROWS: &[Row] = &[
    row("tcp/data_same", On::Any, gives("3"), |s| s.run(3)),
    row("tcp/data_lrg_sml", On::Any, gives("2"), |s| {
        s.send(100, 0);
        s.send(50, 0);
    }),
    row("tcp/data_sml_lrg", On::Any, gives("1 1").lro("2"), |s| {
        s.send(50, 0);
        s.send(100, 0);
    }),
    row("tcp/data_lrg_1byte", On::Any, gives("2"), |s| {
        s.send(100, 0);
        s.send(1, 0);
    }),
    row("tcp/data_1byte", On::OwnChecksum, gives("5"), |s| {
        for _ in 0..5 {
            s.send(1, 0);
        }
    }),
    // Linux cuts no received train into segments this small (it raises a `gso_size` below 8), so it could not be
    // restored.
    row("tcp/data_1byte_remote", On::RemoteChecksum, gives("1 1 1 1 1"), |s| {
        for _ in 0..5 {
            s.send(1, 0);
        }
    }),
    row("tcp/data_odd", On::Any, gives("4"), |s| {
        for len in [101, 101, 101, 33] {
            s.send(len, 0);
        }
    }),
    row("tcp/data_burst", On::Any, gives("20"), |s| s.run(20)),
    row("tcp/short_closes", On::Any, gives("2 2").lro("4"), |s| {
        for len in [100, 50, 50, 50] {
            s.send(len, 0);
        }
    }),
    row("tcp/larger_starts", On::Any, gives("2 2").lro("4"), |s| {
        for len in [100, 100, 200, 200] {
            s.send(len, 0);
        }
    }),
    row("tcp/ack", On::Any, gives("1 1 1"), |s| {
        s.send(100, 0);
        s.send(0, 0);
        s.send(100, 0);
    }),
    row("tcp/flags_psh", On::Any, gives("2 2"), |s| {
        for flags in [0, PSH, 0, 0] {
            s.send(100, flags);
        }
    }),
    row("tcp/flags_psh_first", On::Any, gives("1 2"), |s| {
        for flags in [PSH, 0, 0] {
            s.send(100, flags);
        }
    }),
    row("tcp/flags_fin", On::Any, gives("3"), |s| {
        for flags in [0, 0, FIN] {
            s.send(100, flags);
        }
    }),
    row("tcp/flags_fin_psh", On::Any, gives("2"), |s| {
        for flags in [0, FIN | PSH] {
            s.send(100, flags);
        }
    }),
    row("tcp/flags_syn", On::Any, gives("1 1 1"), |s| {
        for flags in [0, SYN, 0] {
            s.send(100, flags);
        }
    }),
    row("tcp/flags_rst", On::Any, gives("1 1 1"), |s| {
        for flags in [0, RST, 0] {
            s.send(100, flags);
        }
    }),
    row("tcp/flags_urg", On::Any, gives("1 1 1"), |s| {
        for flags in [0, URG, 0] {
            s.send(100, flags);
        }
    }),
    row("tcp/flags_urg_all", On::Any, gives("1 1 1"), |s| {
        for _ in 0..3 {
            s.send(100, URG);
        }
    }),
    row("tcp/urgent_pointer", On::Any, gives("2").strict("1 1").lro("1 1"), |s| {
        s.send(100, 0);
        s.with(100, |packet| tcp(&mut packet.l4).urgent = 9);
    }),
    row("tcp/flags_cwr", On::Any, gives("1 2").v6_18("1 1 1").v7("1 1 1"), |s| {
        for flags in [0, CWR, 0] {
            s.send(100, flags);
        }
    }),
    row("tcp/flags_cwr_first", On::Any, gives("3").v6_18("1 2").v7("1 2"), |s| {
        for flags in [CWR, 0, 0] {
            s.send(100, flags);
        }
    }),
    row("tcp/flags_cwr_all", On::Any, gives("1 1 1").v7("3"), |s| {
        for _ in 0..3 {
            s.send(100, CWR);
        }
    }),
    row("tcp/flags_ece", On::Any, gives("1 1 1"), |s| {
        for flags in [0, ECE, 0] {
            s.send(100, flags);
        }
    }),
    row("tcp/flags_ece_all", On::Any, gives("3"), |s| {
        for _ in 0..3 {
            s.send(100, ECE);
        }
    }),
    row("tcp/flags_ece_cwr", On::Any, gives("1 1 1"), |s| {
        for flags in [0, ECE | CWR, CWR] {
            s.send(100, flags);
        }
    }),
    row("tcp/flags_ae", On::Any, gives("1 1 1"), |s| {
        s.send(100, 0);
        s.header(100, |tcp| tcp[12] |= 1);
        s.send(100, 0);
    }),
    row("tcp/flags_ae_all", On::Any, gives("3"), |s| {
        for _ in 0..3 {
            s.header(100, |tcp| tcp[12] |= 1);
        }
    }),
    // Accurate ECN counts marks in AE, CWR and ECE of every segment (RFC 9768, section 3.1).
    row("tcp/accecn_all", On::Any, gives("1 1 1").v7("3"), |s| {
        for _ in 0..3 {
            s.header(100, |tcp| {
                tcp[12] |= 1;
                tcp[13] |= CWR | ECE;
            });
        }
    }),
    row("tcp/accecn_counts", On::Any, gives("1 1 1").v7("2 1"), |s| {
        for flags in [CWR, CWR, CWR | ECE] {
            s.send(100, flags);
        }
    }),
    row("tcp/reserved_bits", On::Any, gives("1 1"), |s| {
        s.send(100, 0);
        s.header(100, |tcp| tcp[12] |= 8);
    }),
    row("tcp/no_ack_flag", On::Any, gives("1 1"), |s| {
        s.send(100, 0);
        s.header(100, |tcp| tcp[13] = 0);
    }),
    row("tcp/csum", On::OwnChecksum, gives("1 1 1"), |s| {
        s.send(100, 0);
        s.bytes(100, |bytes| *bytes.last_mut().expect("payload") ^= 1);
        s.send(100, 0);
    }),
    row("tcp/csum_first", On::OwnChecksum, gives("1 2"), |s| {
        s.bytes(100, |bytes| *bytes.last_mut().expect("payload") ^= 1);
        s.run(2);
    }),
    row("tcp/seq_gap", On::Any, gives("1 1"), |s| {
        s.send(100, 0);
        tcp(&mut s.packet().l4).seq += 1;
        s.send(100, 0);
    }),
    row("tcp/seq_overlap", On::Any, gives("1 1"), |s| {
        s.send(100, 0);
        tcp(&mut s.packet().l4).seq -= 50;
        s.send(100, 0);
    }),
    row("tcp/seq_again", On::Any, gives("1 1"), |s| {
        s.send(100, 0);
        s.again(0);
    }),
    row("tcp/seq_wraps", On::Any, gives("4"), |s| {
        tcp(&mut s.packet().l4).seq = u32::MAX - 149;
        s.run(4);
    }),
    row("tcp/seq_keep_alive", On::Any, gives("1 1"), |s| {
        s.send(100, 0);
        tcp(&mut s.packet().l4).seq -= 1;
        s.send(1, 0);
    }),
    row("tcp/ack_number", On::Any, gives("1 2").lro("3"), |s| {
        s.send(100, 0);
        tcp(&mut s.packet().l4).ack += 1;
        s.run(2);
    }),
    row("tcp/ack_number_back", On::Any, gives("1 2"), |s| {
        s.send(100, 0);
        tcp(&mut s.packet().l4).ack -= 1;
        s.run(2);
    }),
    row("tcp/window", On::Any, gives("1 2").lro("3"), |s| {
        s.send(100, 0);
        tcp(&mut s.packet().l4).window += 1;
        s.run(2);
    }),
    row("tcp/ts_same", On::Any, gives("3"), |s| {
        tcp(&mut s.packet().l4).options = Tcp::timestamps(5, 6);
        s.run(3);
    }),
    row("tcp/ts", On::Any, gives("2 2").lro("4"), |s| {
        tcp(&mut s.packet().l4).options = Tcp::timestamps(5, 6);
        s.run(2);
        tcp(&mut s.packet().l4).options = Tcp::timestamps(6, 7);
        s.run(2);
    }),
    row("tcp/ts_back", On::Any, gives("1 1"), |s| {
        tcp(&mut s.packet().l4).options = Tcp::timestamps(5, 6);
        s.send(100, 0);
        tcp(&mut s.packet().l4).options = Tcp::timestamps(4, 6);
        s.send(100, 0);
    }),
    row("tcp/opt_none_then_ts", On::Any, gives("1 1"), |s| {
        s.send(100, 0);
        tcp(&mut s.packet().l4).options = Tcp::timestamps(5, 6);
        s.send(100, 0);
    }),
    row("tcp/opt_same", On::Any, gives("3"), |s| {
        tcp(&mut s.packet().l4).options = vec![3, 3, 7, 1];
        s.run(3);
    }),
    row("tcp/opt", On::Any, gives("1 1"), |s| {
        tcp(&mut s.packet().l4).options = vec![3, 3, 7, 1];
        s.send(100, 0);
        tcp(&mut s.packet().l4).options = vec![3, 3, 8, 1];
        s.send(100, 0);
    }),
    row("tcp/opt_order", On::Any, gives("1 1"), |s| {
        tcp(&mut s.packet().l4).options = vec![1, 3, 3, 7];
        s.send(100, 0);
        tcp(&mut s.packet().l4).options = vec![3, 3, 7, 1];
        s.send(100, 0);
    }),
    row("tcp/opt_longest", On::Any, gives("3"), |s| {
        tcp(&mut s.packet().l4).options = vec![1; 40];
        s.run(3);
    }),
    row("tcp/opt_sack_same", On::Any, gives("3"), |s| {
        tcp(&mut s.packet().l4).options = [&[1, 1, 5, 10][..], &[7; 8]].concat();
        s.run(3);
    }),
    row("tcp/opt_sack", On::Any, gives("1 1"), |s| {
        tcp(&mut s.packet().l4).options = [&[1, 1, 5, 10][..], &[7; 8]].concat();
        s.send(100, 0);
        tcp(&mut s.packet().l4).options = [&[1, 1, 5, 10][..], &[9; 8]].concat();
        s.send(100, 0);
    }),
    row("tcp/ports", On::Any, gives("0+2 1+3"), |s| {
        s.run(1);
        s.flow(1);
        s.run(1);
        s.flow(0);
        s.run(1);
        s.flow(1);
        s.run(1);
    }),
    row("single/data", On::Any, gives("1"), |s| s.run(1)),
    row("single/psh", On::Any, gives("1"), |s| s.send(100, PSH)),
    row("single/ack", On::Any, gives("1"), |s| s.send(0, 0)),
    row("single/syn", On::Any, gives("1"), |s| s.send(0, SYN)),
    row("single/fin", On::Any, gives("1"), |s| s.send(0, FIN)),
];
