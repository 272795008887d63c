use segue::easy::{ReadError, Short, Splitter};
use segue::gso::{self, Limits};
use segue::packet::{Csum, Start};
use segue::virtio::{self, Form, VirtioNet};
use segue_testkit::build::{Ip, L4, Packet, Udp, V4, V6, prime};
use segue_testkit::conformance::vectors;

use crate::{header, unit};

#[test]
fn every_vector_is_split_into_the_packets_that_must_leave() {
    for form in [Form::Basic, Form::Buffers, Form::Hash, Form::Tunnel] {
        let mut splitter = Splitter::virtio(form, Start::Ethernet);
        let most = if segue_testkit::is_set("SEGUE_FULL") { 1 } else { 5 };
        let step = if form == Form::Basic { most } else { 40 };
        for vector in vectors().into_iter().step_by(step) {
            let read = unit(&vector, form);
            let packets = splitter.read(&read).unwrap_or_else(|error| panic!("{}: {error}", vector.name));
            assert_eq!(packets.len(), vector.segments.len(), "{}", vector.name);
            for (packet, expected) in packets.iter().zip(&vector.segments) {
                let mut memory = vec![0xa5; packet.len() + 20];
                let len = packet.write_to(&mut memory[7..]).unwrap();
                assert!(memory[7..7 + len] == expected[..], "{}", vector.name);
                assert!(
                    memory[..7].iter().chain(&memory[7 + len..]).all(|&byte| byte == 0xa5),
                    "the room is untouched"
                );
            }
        }
    }
}

#[test]
fn every_vector_in_pieces_is_split_into_the_packets_that_must_leave() {
    let mut splitter = Splitter::plain(Start::Ethernet);
    for (number, vector) in vectors().into_iter().step_by(4).enumerate() {
        let size = [1, 17, 54, 700, 3000][number % 5];
        let packets = splitter.read_pieces(&header(&vector), vector.frame.chunks(size), &Limits::NONE).unwrap();
        assert_eq!(packets.len(), vector.segments.len(), "{}", vector.name);
        let frame = vector.frame.as_ptr_range();
        for (packet, expected) in packets.iter().zip(&vector.segments) {
            let bytes: Vec<u8> = packet.pieces().flatten().copied().collect();
            assert!(bytes == expected[..] && packet.len() == bytes.len(), "{}, pieces of {size}", vector.name);
            assert_eq!((packet.owed(), packet.gso()), (None, None));
            assert!(packet.pieces().skip(1).all(|piece| frame.contains(&piece.as_ptr())), "payload is not copied");
        }
    }
}

#[test]
fn a_checksum_in_pieces_is_left_to_the_port_if_it_completes_them() {
    let mut splitter = Splitter::plain(Start::Ethernet);
    for vector in vectors().into_iter().filter(|vector| !vector.name.contains("vlan")).step_by(9) {
        let limits = Limits { csum: true, ..Limits::NONE };
        let packets = splitter.read_pieces(&header(&vector), vector.frame.chunks(100), &limits).unwrap();
        for (packet, expected) in packets.iter().zip(&vector.segments) {
            let (start, field) = packet.owed().expect("a checksum is owed");
            assert_eq!((start, field), (vector.csum_start, vector.csum_start + vector.csum_offset));
            let mut bytes: Vec<u8> = packet.pieces().flatten().copied().collect();
            virtio::Place { start, field }.fill(&mut bytes);
            assert!(bytes == expected[..], "{}", vector.name);
        }
    }
}

#[test]
fn a_packet_that_does_not_fit_leaves_the_memory_untouched() {
    let vector = &vectors()[0];
    let (read, mut splitter) = (unit(vector, Form::Basic), Splitter::virtio(Form::Basic, Start::Ethernet));
    let packets = splitter.read(&read).unwrap();
    let packet = packets.iter().next().unwrap();
    let mut memory = vec![9; packet.len() - 1];
    let error = packet.write_to(&mut memory).unwrap_err();
    assert!(matches!(error, Short { needed, given, .. } if needed == packet.len() && given == memory.len()));
    assert!(memory.iter().all(|&byte| byte == 9));
    assert_eq!(
        error.to_string(),
        format!("a packet of {} bytes does not fit {} bytes of memory", packet.len(), memory.len())
    );
}

/// Returns a UDP packet of each IP version, with its checksum complete.
fn singles() -> [Vec<u8>; 2] {
    let l4 = L4::Udp(Udp { src_port: 1, dst_port: 2, checksum: true });
    [Ip::V4(V4::new(1, 1, 2)), Ip::V6(V6::new(1, 1, 2))]
        .map(|ip| Packet { ip, l4: l4.clone(), data: vec![7; 99] }.bytes())
}

#[test]
fn a_single_packet_is_completed_if_it_owes_its_checksum_and_else_left_alone() {
    let mut splitter = Splitter::virtio(Form::Basic, Start::Ip);
    for whole in singles() {
        let start = whole.len() - 99 - 8;
        let primed = prime(&whole).unwrap();
        let mut wrong = whole.clone();
        wrong[start + 6] ^= 0x40;
        let owed =
            VirtioNet { flags: virtio::NEEDS_CSUM, csum_start: start as u16, csum_offset: 6, ..VirtioNet::default() };
        for (header, packet, expected) in
            [(owed, &primed, &whole), (VirtioNet::default(), &whole, &whole), (VirtioNet::default(), &wrong, &wrong)]
        {
            let packets = splitter.read_with(&header, packet).unwrap();
            let mut out = Vec::new();
            packets.iter().for_each(|packet| packet.append_to(&mut out, (3, 5)));
            assert_eq!(
                (&out[3..out.len() - 5], &out[..3], &out[out.len() - 5..]),
                (&expected[..], &[0; 3][..], &[0; 5][..])
            );
        }
    }
}

#[test]
fn a_checksum_inside_an_unknown_tunnel_is_completed_where_the_header_says() {
    let inner = &singles()[0];
    let mut around = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 200, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
    around[2..4].copy_from_slice(&((20 + inner.len()) as u16).to_be_bytes());
    let (owed, done) = ([&around[..], &prime(inner).unwrap()].concat(), [&around[..], inner].concat());
    let header = VirtioNet { flags: virtio::NEEDS_CSUM, csum_start: 40, csum_offset: 6, ..VirtioNet::default() };
    let mut splitter = Splitter::virtio(Form::Basic, Start::Ip);
    let mut out = vec![0; 500];
    let len = splitter.read_with(&header, &owed).unwrap().iter().next().unwrap().write_to(&mut out).unwrap();
    assert_eq!(out[..len], done);
    let error = splitter.read_pieces(&header, owed.chunks(9), &Limits::NONE).unwrap_err();
    assert_eq!(error, ReadError::Header(virtio::Refusal::GsoChecksumPlace), "not without a copy");
}

#[test]
fn a_checksum_that_no_flag_vouches_for_is_verified() {
    let mut splitter = Splitter::virtio(Form::Basic, Start::Ip);
    let mut verify = |flags: u8, packet: &[u8]| {
        let csum_start = if packet[0] >> 4 == 4 { 20 } else { 40 };
        let header = VirtioNet { flags, csum_start, csum_offset: 6, ..VirtioNet::default() };
        splitter.read_with(&header, packet).unwrap().verify()
    };
    for whole in singles() {
        let (start, is_v4) = (whole.len() - 99 - 8, whole[0] >> 4 == 4);
        let primed = prime(&whole).unwrap();
        assert_eq!((verify(0, &whole), verify(0, &primed)), (Csum::Verified, Csum::Bad));
        // Ports, checksum and data; another length is not that of this packet.
        for at in (start..start + 4).chain(start + 6..whole.len()) {
            let mut wrong = whole.clone();
            wrong[at] ^= 0x10;
            assert_eq!(verify(0, &wrong), Csum::Bad, "byte {at}");
            assert_eq!(verify(virtio::DATA_VALID, &wrong), Csum::Verified, "the device has verified it");
        }
        assert_eq!(verify(virtio::NEEDS_CSUM, &primed), Csum::Verified, "it is completed");
        let mut absent = whole.clone();
        absent[start + 6..start + 8].fill(0);
        assert_eq!(verify(0, &absent), if is_v4 { Csum::Absent } else { Csum::Bad });
        // Bytes after the packet, and after the datagram in it, are not covered.
        let mut longer = [&whole[..], &[1, 2, 3]].concat();
        assert_eq!(verify(0, &longer), Csum::Verified);
        let length = if is_v4 { 2..4 } else { 4..6 };
        let value = u16::from_be_bytes([longer[length.start], longer[length.start + 1]]) + 3;
        longer[length].copy_from_slice(&value.to_be_bytes());
        assert_eq!(verify(0, &longer), Csum::Verified);
        for fragment in segue_testkit::fragment::fragments(&whole, 100, 7) {
            assert_eq!(verify(0, &fragment), Csum::Unknown, "it covers other fragments too");
        }
    }
    let mut splitter = Splitter::plain(Start::Ethernet);
    for vector in vectors().into_iter().step_by(7) {
        assert_eq!(splitter.read_with(&header(&vector), &vector.frame).unwrap().verify(), Csum::Verified);
        for mut segment in vector.segments {
            assert_eq!(splitter.read(&segment).unwrap().verify(), Csum::Verified, "{}", vector.name);
            *segment.last_mut().unwrap() ^= 1;
            assert_eq!(splitter.read(&segment).unwrap().verify(), Csum::Bad, "{}", vector.name);
        }
    }
}

#[test]
fn a_header_that_contradicts_its_packet_is_refused_and_the_next_read_works() {
    let vector = &vectors()[0];
    let mut splitter = Splitter::virtio(Form::Basic, Start::Ethernet);
    let good = header(vector);
    let cases = [
        (VirtioNet { gso_size: 0, ..good }, virtio::Refusal::GsoSize),
        (VirtioNet { csum_start: 3, ..good }, virtio::Refusal::GsoChecksumPlace),
        (VirtioNet { gso_type: 2, ..good }, virtio::Refusal::GsoType),
        (VirtioNet { gso_type: 0, csum_start: 60_000, ..good }, virtio::Refusal::ChecksumBounds),
    ];
    for (header, reason) in cases {
        let error = splitter.read_with(&header, &vector.frame).unwrap_err();
        assert_eq!((error, error.to_string()), (ReadError::Header(reason), reason.to_string()));
    }
    for len in 0..11 {
        let error = splitter.read(&unit(vector, Form::Basic)[..len]).unwrap_err();
        let short = ReadError::Header(virtio::Refusal::Short);
        assert!(error == short || len == 10 + 1, "{len} bytes: {error}");
    }
    assert_eq!(splitter.read(&unit(vector, Form::Basic)).unwrap().len(), vector.segments.len());
}

#[test]
fn a_reader_that_was_forgotten_leaves_nothing_behind() {
    let vector = &vectors()[0];
    let mut splitter = Splitter::virtio(Form::Basic, Start::Ethernet);
    for _ in 0..3 {
        let read = unit(vector, Form::Basic);
        std::mem::forget(splitter.read(&read).unwrap());
        drop(read);
        let other = unit(&vectors()[9], Form::Basic);
        let packets = splitter.read(&other).unwrap();
        let mut out = Vec::new();
        packets.iter().for_each(|packet| packet.append_to(&mut out, (0, 0)));
        assert!(out == vectors()[9].segments.concat());
    }
}

#[test]
fn requested_checksums_are_primed_and_filled_as_an_oracle_does() {
    for whole in singles() {
        let field = whole.len() - 99 - 2;
        let mut empty = whole.clone();
        empty[field..field + 2].fill(0);
        let (mut primed, mut filled) = (empty.clone(), empty.clone());
        gso::prime(&mut primed, Start::Ip).unwrap();
        gso::fill(&mut filled, Start::Ip).unwrap();
        assert_eq!((&primed, &filled), (&prime(&whole).unwrap(), &whole));
        let mut packet = segue::packet::Packet::default();
        packet.load(segue::packet::Frag::all(&empty[..]), Start::Ip, &segue::packet::Tunnels::NONE);
        gso::request_checksum(&mut packet).unwrap();
        gso::finish(&mut packet).unwrap();
        assert_eq!(packet.head.bytes(), &whole[..packet.head.len()]);
    }
    assert_eq!(gso::prime(&mut [0x45; 30], Start::Ip), Err(gso::Refusal::Transport));
}

/// Tests that UDP, where no checksum is zero, has the other zero instead (RFC 768), and TCP has not.
#[test]
fn a_checksum_of_zero_is_filled_in_as_its_protocol_says() {
    for (protocol, len, field, zero) in [(17, 28, 26, [0xff; 2]), (6, 40, 36, [0; 2])] {
        let mut packet = vec![0x45, 0, 0, len as u8 + 2, 0, 0, 0, 0, 64, protocol, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
        packet.extend([0, 1, 0, 2]);
        if protocol == 17 {
            packet.extend([0, 10, 0, 0]);
        } else {
            packet.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
        }
        packet.extend([0; 2]);
        gso::fill(&mut packet, Start::Ip).unwrap();
        let sum = [packet[field], packet[field + 1]];
        assert_ne!(sum, [0; 2]);
        // The payload makes up for all other words.
        packet[len..].copy_from_slice(&sum);
        packet[field..field + 2].fill(0);
        gso::fill(&mut packet, Start::Ip).unwrap();
        assert_eq!(packet[field..field + 2], zero, "protocol {protocol}");
    }
}
