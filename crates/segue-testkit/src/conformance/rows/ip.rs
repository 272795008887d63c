//! Rows on the innermost IP header and on the link header.

use super::shared::{row, set_tos, set_ttl, v4, v6};
use crate::build::L4;
use crate::conformance::{Feature, On, Row, Script, gives};
use crate::flow::Ids;

/// Sends packets with the given identifications and DF flag.
fn ids(s: &mut Script, df: bool, ids: &[u16]) {
    for &id in ids {
        let ip = v4(&mut s.packet().ip);
        (ip.id, ip.df) = (id, df);
        s.send(100, 0);
    }
}

/// Sends packets to whose IPv4 header this fragment word is added, checksum included.
fn flags(s: &mut Script, words: &[u16]) {
    for &word in words {
        s.bytes(100, |bytes| {
            bytes[6..8].copy_from_slice(&word.to_be_bytes());
            bytes[10..12].fill(0);
            let checksum = !crate::sum::fold(&bytes[..20]);
            bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        });
    }
}

pub(super) const ROWS: &[Row] = &[
    row("ip/tos", On::Any, gives("1 2"), |s| {
        s.run(1);
        set_tos(&mut s.packet().ip, 0xb8);
        s.run(2);
    }),
    row("ip/ttl", On::Any, gives("1 2"), |s| {
        s.run(1);
        set_ttl(&mut s.packet().ip, 63);
        s.run(2);
    }),
    row("ip/csum", On::V4, gives("1 1 1"), |s| {
        s.run(1);
        s.bytes(100, |bytes| bytes[10] ^= 1);
        s.run(1);
    }),
    row("ip/opt", On::V4, gives("1 1 1"), |s| {
        v4(&mut s.packet().ip).options = vec![1; 4];
        s.run(3);
    }),
    row("ip/opt_between", On::V4, gives("1 1 1"), |s| {
        s.run(1);
        v4(&mut s.packet().ip).options = vec![1; 4];
        s.run(1);
        v4(&mut s.packet().ip).options = Vec::new();
        s.run(1);
    }),
    row("ip/frag4", On::V4, gives("1 1 1"), |s| {
        s.run(1);
        s.with(96, |packet| {
            packet.l4 = L4::Raw(6);
            (v4(&mut packet.ip).df, v4(&mut packet.ip).fragment) = (false, Some((64, true)));
        });
        s.run(1);
    }),
    row("ip/frag4_all", On::V4, gives("1 1"), |s| flags(s, &[0x2000, 0x2000])),
    row("ip/reserved_flag", On::V4, gives("1 1"), |s| flags(s, &[0xc000, 0xc000])),
    row("ip/df_changes", On::V4, gives("1 1"), |s| {
        ids(s, true, &[5]);
        ids(s, false, &[6]);
    }),
    row("ip/id_df1_inc", On::V4, gives("3"), |s| ids(s, true, &[5, 6, 7])),
    row("ip/id_df1_fixed", On::V4, gives("3"), |s| ids(s, true, &[5, 5, 5])),
    row("ip/id_df0_inc", On::V4, gives("3"), |s| ids(s, false, &[5, 6, 7])),
    row("ip/id_df0_fixed", On::V4, gives("3").v6_12("1 1 1"), |s| ids(s, false, &[5, 5, 5])),
    row("ip/id_df1_inc_fixed", On::V4, gives("2 1").lro("3"), |s| ids(s, true, &[5, 6, 6])),
    row("ip/id_df1_fixed_inc", On::V4, gives("2 1").lro("3"), |s| ids(s, true, &[5, 5, 6])),
    row("ip/id_df1_jump", On::V4, gives("1 1").lro("2"), |s| ids(s, true, &[5, 9])),
    row("ip/id_df0_jump", On::V4, gives("1 1").lro("2"), |s| ids(s, false, &[5, 9])),
    row("ip/id_df1_back", On::V4, gives("1 1").lro("2"), |s| ids(s, true, &[5, 4])),
    row("ip/id_df0_zero", On::V4, gives("3").v6_12("1 1 1"), |s| ids(s, false, &[0, 0, 0])),
    row("ip/id_df1_zero", On::V4, gives("3"), |s| ids(s, true, &[0, 0, 0])),
    row("ip/id_inc_wraps", On::V4, gives("4"), |s| ids(s, false, &[0xfffe, 0xffff, 0, 1])),
    row("ip/id_fixed_highest", On::V4, gives("3"), |s| {
        v4(&mut s.packet().ip).id = 0xffff;
        s.sender().ids = Ids::Fixed;
        s.run(3);
    }),
    row("ip/id_every_other", On::V4, gives("1 1 1").lro("3"), |s| ids(s, true, &[5, 7, 9])),
    row("ip/flow_label", On::V6, gives("1 2"), |s| {
        s.run(1);
        v6(&mut s.packet().ip).label = 0x1_2345;
        s.run(2);
    }),
    row("ip/flow_label_same", On::V6, gives("3"), |s| {
        v6(&mut s.packet().ip).label = 0x1_2345;
        s.run(3);
    }),
    row("ip/v6ext_same", On::V6, gives("3"), |s| {
        v6(&mut s.packet().ip).extensions = vec![(0, vec![1, 4, 0, 0, 0, 0])];
        s.run(3);
    }),
    row("ip/v6ext_two_same", On::V6, gives("3"), |s| {
        v6(&mut s.packet().ip).extensions = vec![(0, vec![1, 4, 0, 0, 0, 0]), (60, vec![1, 4, 9, 9, 9, 9])];
        s.run(3);
    }),
    row("ip/v6ext_diff", On::V6, gives("1 2"), |s| {
        v6(&mut s.packet().ip).extensions = vec![(60, vec![30, 4, 0, 0, 0, 0])];
        s.run(1);
        v6(&mut s.packet().ip).extensions = vec![(60, vec![30, 4, 1, 1, 1, 1])];
        s.run(2);
    }),
    row("ip/v6ext_none_then_one", On::V6, gives("1 1"), |s| {
        s.run(1);
        v6(&mut s.packet().ip).extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])];
        s.run(1);
    }),
    row("ip/v6ext_other_kind", On::V6, gives("1 1"), |s| {
        v6(&mut s.packet().ip).extensions = vec![(0, vec![1, 4, 0, 0, 0, 0])];
        s.run(1);
        v6(&mut s.packet().ip).extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])];
        s.run(1);
    }),
    row("ip/v6ext_routing_arrived", On::V6, gives("3"), |s| {
        v6(&mut s.packet().ip).extensions = vec![(43, vec![4, 0, 0, 0, 0, 0])];
        s.run(3);
    }),
    row("ip/frag6", On::V6, gives("1 1 1"), |s| {
        s.run(1);
        s.with(96, |packet| {
            packet.l4 = L4::Raw(6);
            v6(&mut packet.ip).fragment = Some((7, 64, true));
        });
        s.run(1);
    }),
    row("ip/frag6_atomic", On::V6, gives("1 1"), |s| {
        v6(&mut s.packet().ip).fragment = Some((7, 0, false));
        s.run(2);
    }),
    row("ip/other_protocol", On::Any, gives("1 1 1"), |s| {
        for _ in 0..3 {
            s.with(100, |packet| packet.l4 = L4::Raw(253));
        }
    }),
    row("ip/length_short_of_bytes", On::V4, gives("1 1"), |s| {
        s.run(1);
        s.bytes(100, |bytes| {
            bytes[3] -= 1;
            bytes[10..12].fill(0);
            let checksum = !crate::sum::fold(&bytes[..20]);
            bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        });
        let frame = s.frames.last_mut().expect("one was sent");
        (frame.data_len, frame.padding) = (frame.data_len - 1, 1);
    }),
    row("link/mac_src", On::Any, gives("1 2"), |s| {
        s.run(1);
        s.link().src[5] = 9;
        s.run(2);
    }),
    row("link/mac_dst", On::Any, gives("1 2"), |s| {
        s.run(1);
        s.link().dst[5] = 9;
        s.run(2);
    }),
    row("vlan/id", On::Tagged, gives("0+2 1+3"), |s| {
        for tci in [0xa005, 0xa006, 0xa005, 0xa006] {
            s.flow(usize::from(tci == 0xa006));
            let at = s.link().tags.len() - 1;
            s.link().tags[at].1 = tci;
            s.run(1);
        }
    }),
    row("vlan/priority", On::Tagged, gives("1 2"), |s| {
        s.run(1);
        s.link().tags[0].1 ^= 0x2000;
        s.run(2);
    }),
    row("vlan/tpid", On::Tagged, gives("1 2"), |s| {
        s.run(1);
        s.link().tags[0].0 ^= 0x8100 ^ 0x88a8;
        s.run(2);
    }),
    row("vlan/none_then_one", On::Plain, gives("1 2"), |s| {
        s.run(1);
        s.link().tags = vec![(0x8100, 5)];
        s.run(2);
    })
    .needs(Feature::Vlan),
    row("pad/one_byte_of_v4", On::Plain, gives("3").strict("1 1 1"), |s| {
        s.padded(1, &[0; 5]);
        s.padded(1, &[0xaa; 5]);
        s.padded(1, &[0; 5]);
    }),
    row("pad/last", On::Plain, gives("3").strict("2 1"), |s| {
        s.run(2);
        s.padded(3, &[0; 3]);
    }),
    row("pad/long", On::Any, gives("3").strict("1 1 1"), |s| {
        s.run(1);
        s.padded(100, &[1, 2, 3]);
        s.run(1);
    }),
    row("pad/ack", On::Any, gives("1 1"), |s| {
        s.run(1);
        s.padded(0, &[0; 6]);
    }),
];
