//! Tests of every combination of inner family, encapsulation and outer family, with all kinds of a host's traffic, on a
//! link that segments and aggregates like a plain network card. Files have 1 MiB; with `SEGUE_FULL=1` 64 MiB, with
//! `SEGUE_SOAK=1` 1 GiB.

use segue_lab::Family::{V4, V6};
use segue_lab::{LinkForm, Peer};
use segue_tests::Carrier::{Bare, Fou, Gue, GueRemcsum};
use segue_tests::Inside::{Geneve, Gre, GreKeyCsum, Gretap, Ip6tnl, Ipip, Sit, Vxlan, VxlanRemcsum, VxlanZero};
use segue_tests::{Ground, Pair, Shape, test_name, traffic};

/// Returns the length of each file, bytes.
fn file_len() -> u64 {
    if traffic::long() == traffic::SHORT { 1 << 20 } else { traffic::long() }
}

fn carries_everything(name: &str, shape: Shape) {
    let Some(ground) = Ground::new(name, LinkForm::Nic, &["ping"]) else { return };
    let pair = Pair::start(&ground, shape, 1);
    for family in shape.inside.families() {
        let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, *family));
        // Different content for every tunnel and family, so that nothing can pass for another's.
        traffic::everything(a, b, file_len(), seed(name) ^ u64::from(family.number()));
    }
    for stat in pair.stat() {
        for direction in ["receive", "transmit"] {
            let [trains, packets, segments] =
                ["trains", "packets", "segments"].map(|key| stat.count(&Shape::device(1), direction, key));
            // Without trains the program would be correct and pointless.
            assert!(
                trains > 0 && segments > packets,
                "{shape}: {segments} segments in {packets} units, {trains} trains"
            );
        }
    }
    pair.assert_nothing_dropped();
}

fn seed(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

macro_rules! combinations {
    ($($name:ident: $inside:ident in $carrier:ident over $outer:ident;)+) => {
        $(#[test]
        fn $name() {
            carries_everything(test_name!(), Shape::new($inside, $carrier, $outer));
        })+
    };
}

combinations! {
    ipip_in_gue_over_ipv4_carries_everything: Ipip in Gue over V4;
    ipip_in_gue_over_ipv6_carries_everything: Ipip in Gue over V6;
    ipip_in_gue_with_remcsum_over_ipv4_carries_everything: Ipip in GueRemcsum over V4;
    ipip_in_gue_with_remcsum_over_ipv6_carries_everything: Ipip in GueRemcsum over V6;
    ipip_in_fou_over_ipv4_carries_everything: Ipip in Fou over V4;
    ipip_in_fou_over_ipv6_carries_everything: Ipip in Fou over V6;
    sit_in_gue_over_ipv4_carries_everything: Sit in Gue over V4;
    sit_in_gue_over_ipv6_carries_everything: Sit in Gue over V6;
    sit_in_gue_with_remcsum_over_ipv4_carries_everything: Sit in GueRemcsum over V4;
    sit_in_gue_with_remcsum_over_ipv6_carries_everything: Sit in GueRemcsum over V6;
    sit_in_fou_over_ipv4_carries_everything: Sit in Fou over V4;
    sit_in_fou_over_ipv6_carries_everything: Sit in Fou over V6;
    gre_in_gue_over_ipv4_carries_everything: Gre in Gue over V4;
    gre_in_gue_over_ipv6_carries_everything: Gre in Gue over V6;
    gre_in_gue_with_remcsum_over_ipv4_carries_everything: Gre in GueRemcsum over V4;
    gre_in_gue_with_remcsum_over_ipv6_carries_everything: Gre in GueRemcsum over V6;
    gre_in_fou_over_ipv4_carries_everything: Gre in Fou over V4;
    gre_in_fou_over_ipv6_carries_everything: Gre in Fou over V6;
    gre_with_key_and_checksum_in_gue_over_ipv4_carries_everything: GreKeyCsum in Gue over V4;
    gre_with_key_and_checksum_in_gue_over_ipv6_carries_everything: GreKeyCsum in Gue over V6;
    gre_with_key_and_checksum_in_gue_with_remcsum_over_ipv4_carries_everything: GreKeyCsum in GueRemcsum over V4;
    gre_with_key_and_checksum_in_gue_with_remcsum_over_ipv6_carries_everything: GreKeyCsum in GueRemcsum over V6;
    gre_with_key_and_checksum_in_fou_over_ipv4_carries_everything: GreKeyCsum in Fou over V4;
    gre_with_key_and_checksum_in_fou_over_ipv6_carries_everything: GreKeyCsum in Fou over V6;
    ipip_over_ipv4_carries_everything: Ipip in Bare over V4;
    ipip_over_ipv6_carries_everything: Ipip in Bare over V6;
    sit_over_ipv4_carries_everything: Sit in Bare over V4;
    sit_over_ipv6_carries_everything: Sit in Bare over V6;
    ip6tnl_carries_everything: Ip6tnl in Bare over V6;
    ip6tnl_in_gue_carries_everything: Ip6tnl in Gue over V6;
    ip6tnl_in_gue_with_remcsum_carries_everything: Ip6tnl in GueRemcsum over V6;
    ip6tnl_in_fou_carries_everything: Ip6tnl in Fou over V6;
    gre_over_ipv4_carries_everything: Gre in Bare over V4;
    gre_over_ipv6_carries_everything: Gre in Bare over V6;
    gre_with_key_and_checksum_over_ipv4_carries_everything: GreKeyCsum in Bare over V4;
    gre_with_key_and_checksum_over_ipv6_carries_everything: GreKeyCsum in Bare over V6;
    gretap_over_ipv4_carries_everything: Gretap in Bare over V4;
    gretap_over_ipv6_carries_everything: Gretap in Bare over V6;
    gretap_in_gue_over_ipv4_carries_everything: Gretap in Gue over V4;
    gretap_in_gue_with_remcsum_over_ipv6_carries_everything: Gretap in GueRemcsum over V6;
    gretap_in_fou_over_ipv6_carries_everything: Gretap in Fou over V6;
    vxlan_over_ipv4_carries_everything: Vxlan in Bare over V4;
    vxlan_over_ipv6_carries_everything: Vxlan in Bare over V6;
    vxlan_with_remcsum_over_ipv4_carries_everything: VxlanRemcsum in Bare over V4;
    vxlan_with_remcsum_over_ipv6_carries_everything: VxlanRemcsum in Bare over V6;
    vxlan_without_checksum_over_ipv4_carries_everything: VxlanZero in Bare over V4;
    vxlan_without_checksum_over_ipv6_carries_everything: VxlanZero in Bare over V6;
    geneve_over_ipv4_carries_everything: Geneve in Bare over V4;
    geneve_over_ipv6_carries_everything: Geneve in Bare over V6;
}
