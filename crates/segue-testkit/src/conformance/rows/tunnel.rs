//! Conformance cases for tunnel headers. Each rule of IP holds at every level.

use super::shared::{row, set_tos, set_ttl, v4, v6};
use crate::build::{Gre, Ip, Shim, Tunnel, V4};
use crate::conformance::script::Script;
use crate::conformance::{Feature, On, Row, gives};

fn outer_ids(s: &mut Script, df: bool, ids: &[u16]) {
    for &id in ids {
        let ip = v4(s.outer());
        (ip.id, ip.df) = (id, df);
        s.run(1);
    }
}

pub(super) const ROWS: &[Row] = &[
    row("outer/tos", On::Outer4, gives("1 2"), |s| {
        s.run(1);
        set_tos(s.outer(), 0xb8);
        s.run(2);
    }),
    row("outer/ttl", On::Outer4, gives("1 2"), |s| {
        s.run(1);
        set_ttl(s.outer(), 9);
        s.run(2);
    }),
    row("outer/df_changes", On::Outer4, gives("1 2"), |s| {
        s.run(1);
        v4(s.outer()).df = false;
        s.run(2);
    }),
    row("outer/id_df1_inc", On::Outer4, gives("3"), |s| outer_ids(s, true, &[5, 6, 7])),
    row("outer/id_df1_fixed", On::Outer4, gives("3"), |s| outer_ids(s, true, &[5, 5, 5])),
    row("outer/id_df0_inc", On::Outer4, gives("3"), |s| outer_ids(s, false, &[5, 6, 7])),
    row("outer/id_df0_fixed", On::Outer4, gives("3").v6_12("1 1 1"), |s| outer_ids(s, false, &[5, 5, 5])),
    row("outer/id_df1_jump", On::Outer4, gives("1 1").v6_12("2").lro("2"), |s| outer_ids(s, true, &[5, 900])),
    row("outer/id_df0_jump", On::Outer4, gives("1 1").lro("2"), |s| outer_ids(s, false, &[5, 900])),
    row("outer/id_df1_inc_fixed", On::Outer4, gives("2 1").v6_12("3").lro("3"), |s| outer_ids(s, true, &[5, 6, 6])),
    row("outer/opt", On::Outer4, gives("1 1"), |s| {
        v4(s.outer()).options = vec![1; 4];
        s.run(2);
    }),
    row("outer/csum", On::Outer4, gives("1 1 1"), |s| {
        s.run(1);
        s.outer_bytes(100, |bytes| bytes[10] ^= 1);
        s.run(1);
    }),
    row("outer/class", On::Outer6, gives("1 2"), |s| {
        s.run(1);
        set_tos(s.outer(), 0xb8);
        s.run(2);
    }),
    row("outer/hop_limit", On::Outer6, gives("1 2"), |s| {
        s.run(1);
        set_ttl(s.outer(), 9);
        s.run(2);
    }),
    row("outer/flow_label", On::Outer6, gives("1 2"), |s| {
        s.run(1);
        v6(s.outer()).label = 0x1_2345;
        s.run(2);
    }),
    row("outer/udp_csum", On::OuterUdp, gives("1 1 1"), |s| {
        s.run(1);
        s.outer_bytes(100, |bytes| {
            let at = if bytes[0] >> 4 == 4 { 26 } else { 46 };
            bytes[at] ^= 1;
        });
        s.run(1);
    }),
    row("gre/csum", On::GreChecksum, gives("1 1 1"), |s| {
        s.run(1);
        s.outer_bytes(100, |bytes| {
            // Wherever GRE is, its checksum covers the last byte of a payload whose own checksum is made good again.
            let (a, b) = (bytes.len() - 2, bytes.len() - 4);
            (bytes[a], bytes[b]) = (bytes[a] ^ 1, bytes[b]);
        });
        s.run(1);
    }),
    row("gre/key_changes", On::GreKey, gives("0+2 1+3"), |s| {
        for key in [42, 43, 42, 43] {
            s.flow(usize::from(key == 43));
            s.tunnel().gre.as_mut().expect("GRE").key = Some(key);
            s.run(1);
        }
    }),
    row("gre/key_vanishes", On::GreKey, gives("1 1"), |s| {
        s.run(1);
        s.flow(1);
        s.tunnel().gre = Some(Gre::default());
        s.run(1);
    }),
    row("vni/changes", On::Vni, gives("0+2 1+3"), |s| {
        for network in [42, 43, 42, 43] {
            s.flow(usize::from(network == 43));
            if let Some((_, Shim::Vxlan(vni, _) | Shim::Geneve(vni, _))) = &mut s.tunnel().udp {
                *vni = network;
            }
            s.run(1);
        }
    }),
    row("vni/reserved_changes", On::Vni, gives("1 1"), |s| {
        s.run(1);
        s.shim_bytes(100, |bytes| bytes[1] ^= 1);
    }),
    row("inner_eth/mac_src", On::InnerEthernet, gives("1 2"), |s| {
        s.run(1);
        s.inner_link().src[5] = 9;
        s.run(2);
    }),
    row("inner_eth/vlan", On::InnerEthernet, gives("3"), |s| {
        s.inner_link().tags = vec![(0x8100, 6)];
        s.run(3);
    })
    .needs(Feature::Vlan),
    row("tunnel/two_levels", On::Outer4, gives("1 1"), |s| {
        let ip = Ip::V4(V4::new(7, 1, 2));
        let around = Tunnel { ip, udp: None, gre: None, ethernet: None };
        for _ in 0..2 {
            s.bytes(100, |bytes| *bytes = around.wrap(bytes));
        }
    }),
];
