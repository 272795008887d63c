//! Tests of a guest's packets in chains, divided at every position, and of trains written to its buffers.

use segue::easy::{Joiner, Splitter};
use segue::gro::Config;
use segue::gso::{Frames, Limits};
use segue::hash::Key;
use segue::packet::Start;
use segue::virtio::{self, Form, VirtioNet};
use segue_guest::{Descriptor, Error, receive, transmit};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap()
}

/// Writes `bytes` to the guest in parts of `len`, each at the start of a page pair, and returns the chain.
fn chain(memory: &GuestMemoryMmap, bytes: &[u8], len: usize) -> Vec<Descriptor> {
    let parts = bytes.chunks(len).enumerate().map(|(number, part)| {
        let address = GuestAddress(number as u64 * 8192);
        memory.write_slice(part, address).unwrap();
        (address, part.len())
    });
    parts.collect()
}

/// Returns a UDP train on Ethernet with the header of a modern device: 3000 bytes in datagrams of 1000.
fn train() -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0x0b, 0xd4, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
    frame.extend([0, 1, 0, 2, 0x0b, 0xc0, 0, 0]);
    frame.extend((0..3000).map(|n| n as u8));
    segue::gso::prime(&mut frame, Start::Ethernet).unwrap();
    let header = VirtioNet {
        flags: virtio::NEEDS_CSUM,
        gso_type: virtio::GSO_UDP_L4,
        gso_size: 1000,
        csum_start: 34,
        csum_offset: 6,
        ..VirtioNet::default()
    };
    [&header.emit(Form::Buffers)[..12], &frame].concat()
}

#[test]
fn a_train_of_a_guest_is_split_wherever_its_chain_is_cut() {
    let (memory, unit) = (memory(), train());
    let mut splitter = Splitter::virtio(Form::Buffers, Start::Ethernet);
    let mut expected = Vec::new();
    splitter.read(&unit).unwrap().iter().for_each(|packet| packet.append_to(&mut expected, (0, 0)));
    for len in [5, 12, 13, 46, 54, 60, 1000, 4096] {
        let chain = chain(&memory, &unit, len.max(unit.len() / 100));
        let mut frames = Frames::new();
        transmit(&memory, &chain, &Limits::NONE, &mut frames).unwrap();
        assert_eq!(frames.frames().len(), 3);
        let came: Vec<u8> = frames.frames().iter().flat_map(|frame| frames.bytes(frame)).copied().collect();
        assert!(came == expected, "in parts of {len}");
    }
}

#[test]
fn what_a_guest_says_wrongly_is_refused() {
    let (memory, mut unit, mut frames) = (memory(), train(), Frames::new());
    let short = chain(&memory, &unit[..11], 4096);
    assert_eq!(transmit(&memory, &short, &Limits::NONE, &mut frames), Err(Error::Memory));
    let outside = [(GuestAddress(1 << 20), 100)];
    assert_eq!(transmit(&memory, &outside, &Limits::NONE, &mut frames), Err(Error::Memory));
    unit[6] = 99;
    let wrong = chain(&memory, &unit, 4096);
    let refused = Err(Error::Header(virtio::Refusal::GsoChecksumPlace));
    assert_eq!(transmit(&memory, &wrong, &Limits::NONE, &mut frames), refused);
    assert!(frames.frames().is_empty());
}

#[test]
fn a_train_is_written_to_the_buffers_of_a_guest() {
    let (memory, unit) = (memory(), train());
    let limits = Limits::guest(1 << 1 | 1 << 7 | 1 << 8 | 1 << 54 | 1 << 55, 65_562);
    let mut joiner = Joiner::virtio(Config::vpn(Key([1, 2])), limits, Form::Buffers).starting_with(Start::Ethernet);
    let mut splitter = Splitter::virtio(Form::Buffers, Start::Ethernet);
    let mut packets = Vec::new();
    for packet in splitter.read(&unit).unwrap().iter() {
        packets.push(vec![0; packet.len()]);
        packet.write_to(packets.last_mut().unwrap()).unwrap();
    }
    let mut batch = joiner.batch();
    packets.iter().for_each(|packet| _ = batch.push(packet));
    let train = batch.pop().unwrap();
    let buffers: Vec<Descriptor> = (0..4).map(|number| (GuestAddress(number * 8192), 1500)).collect();
    assert_eq!(receive(&memory, &buffers, &train), Ok(unit.len()));
    let mut came = Vec::new();
    for (address, len) in buffers {
        let mut part = vec![0; len];
        memory.read_slice(&mut part, address).unwrap();
        came.extend(part);
    }
    let header = VirtioNet::parse(&came, Form::Buffers).unwrap();
    assert_eq!((header.num_buffers, header.gso_type, header.gso_size), (1, virtio::GSO_UDP_L4, 1000));
    assert!(came[54..unit.len()] == unit[54..], "payload, behind the header and the headers of Ethernet, IP and UDP");
    assert_eq!(receive(&memory, &[(GuestAddress(0), 100)], &train), Err(Error::Memory));
}
