//! Tests of properties of segmentation over arbitrary bytes and states.

use proptest::prelude::*;
use segue::gso::{Limits, finish};
use segue::packet::{Csum, Gso, GsoKind, LayerCsum, Remote, Start, TrainCsum, Unit};
use segue_testkit::build::Ip;
use segue_testkit::strategy;

use crate::case::*;
use crate::device::check_parts;

fn any_limits() -> impl Strategy<Value = Limits> {
    any::<(bool, bool)>().prop_map(|(csum, outer_csum)| Limits { csum, outer_csum, ..Limits::NONE })
}

/// Generates a port that takes trains of some kinds, perhaps in UDP tunnels too, and small ones rather than large ones.
fn any_port() -> impl Strategy<Value = Limits> {
    let most = (1_usize..9, 1_usize..9, 60_usize..8000, 0_usize..12, 1_usize..2000);
    (any_limits(), any::<[bool; 5]>(), proptest::option::of(most)).prop_map(|(limits, takes, most)| {
        let [tso4, tso6, uso, udp_tunnel, udp_tunnel_csum] = takes;
        let limits = Limits { tso4, tso6, uso, udp_tunnel, udp_tunnel_csum, ..limits };
        match most {
            None => limits,
            Some((max_segs, max_udp_segs, max_bytes, max_pieces, max_piece)) => {
                Limits { max_segs, max_udp_segs, max_bytes, max_pieces, max_piece, ..limits }
            }
        }
    })
}

pub(crate) fn any_case() -> impl Strategy<Value = Case> {
    let fixed = any::<(u16, bool)>();
    (strategy::packet(6000), 8_usize..1500, any::<bool>(), fixed).prop_flat_map(|(inner, size, is_tunnelled, fixed)| {
        let is_v4 = matches!(inner.ip, Ip::V4(_));
        let tunnels = proptest::collection::vec(strategy::tunnel(is_v4), usize::from(is_tunnelled));
        tunnels.prop_map(move |tunnels| {
            let fixed = if fixed.1 { fixed.0 } else { 0 };
            Case { tunnels, fixed, ..Case::new(inner.clone(), size) }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_train_for_any_port_is_what_would_have_been_built(case in any_case(), limits in any_limits()) {
        check_case(&case, &limits);
    }

    #[test]
    fn any_train_for_any_port_that_takes_trains_becomes_what_would_have_been_built(
        case in any_case(),
        limits in any_port(),
    ) {
        // A virtio-net header does not say that identifications stay the same.
        let case = Case { fixed: 0, ..case };
        check_parts(&case, &case.train(), &limits);
    }

    #[test]
    fn any_bytes_with_any_state_are_split_or_refused(
        case in any_case(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        cut in any::<prop::sample::Index>(),
        unit in 0..6,
        size in any::<u16>(),
        states in any::<[u8; 4]>(),
        limits in any_port(),
    ) {
        let mut bytes = case.expected_head();
        for (at, value) in changes {
            let len = bytes.len().min(200);
            bytes[at.index(len)] = value;
        }
        if cut.index(4) == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        let mut packet = load(&bytes, Start::Ip);
        let gso = Gso { kind: if size % 2 == 0 { GsoKind::Tcp } else { GsoKind::Udp }, size, fixed_ids: size };
        let csum = if size % 3 == 0 { TrainCsum::Partial } else { TrainCsum::Stale };
        packet.offload.unit = match unit {
            0 => Unit::Whole(Csum::Partial),
            1 => Unit::Whole(Csum::Verified),
            2 => Unit::Whole(Csum::Unknown),
            _ => Unit::Train { csum, gso },
        };
        let csums = [LayerCsum::Absent, LayerCsum::Unknown, LayerCsum::Done, LayerCsum::Owed];
        for (layer, state) in packet.offload.layers_mut().iter_mut().zip(states) {
            layer.udp = csums[usize::from(state % 4)];
            layer.gre = csums[usize::from(state / 4 % 4)];
            layer.remote = [None, Some(Remote::Transport), Some(Remote::Gre), layer.remote][usize::from(state / 16 % 4)];
        }
        let payload: Vec<u8> = packet.payload.pieces(0..usize::MAX).flatten().copied().collect();
        if let Ok((out, _)) = split_both(&packet, &limits) {
            let head_len = packet.head.len();
            let joined: Vec<u8> = out.iter().flat_map(|o| o.bytes[head_len..].to_vec()).collect();
            prop_assert_eq!(joined, payload);
        }
        let _ = finish(&mut packet);
    }

    #[test]
    fn a_train_that_passes_whole_leaves_with_the_headers_of_the_whole(
        case in any_case(),
        damage in proptest::option::of((any::<prop::sample::Index>(), 1..=u8::MAX)),
    ) {
        let whole = split_both(&case.train(), &PORT_TSO).map(|(out, _)| out).unwrap_or_default();
        let [Out { bytes, gso: Some(gso), .. }] = &whole[..] else { return Ok(()) };
        // What a port got has right headers; in what it got one byte of them may be wrong.
        let (mut bytes, start) = (bytes.clone(), case.start().0);
        let head_len = load(&bytes, start).head.len();
        if let Some((at, value)) = &damage {
            bytes[at.index(head_len)] ^= value;
        }
        let mut train = load(&bytes, start);
        train.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso: *gso };
        // The two forms are compared; the linear one always makes the headers anew.
        let again = split_both(&train, &PORT_TSO);
        if damage.is_none() {
            prop_assert_eq!(&again.unwrap().0[0].bytes, &bytes);
        }
    }
}
