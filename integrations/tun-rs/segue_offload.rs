//! The functions of tun-rs that join and split packets, on segue: the same names, arguments and results.
//! integrations/theirs puts this file beside those of tun-rs, and lets its tests call these functions.

use std::cell::RefCell;
use std::io;

use segue::easy::{Joiner, Splitter};
use segue::hash::Key;
use segue::packet::Start;
use segue::virtio::{self, Form, VirtioNet, TUN_OFFLOADS};

use super::offload::{ExpandBuffer, GsoOutputCapacity, TcpGROTable, UdpGROTable, VirtioNetHdr, VIRTIO_NET_HDR_LEN};

thread_local! {
    /// The joiners of a thread, whose keys a program would take from the system's random numbers.
    static JOINERS: RefCell<[Joiner; 2]> = RefCell::new([TUN_OFFLOADS[1], TUN_OFFLOADS[0]].map(|bits| Joiner::tun(Key([1, 2]), bits)));
    static SPLITTER: RefCell<Splitter> = RefCell::new(Splitter::virtio(Form::Basic, Start::Ip));
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Joins the packets in `bufs`, and lists in `to_write` those to be written. The tables are not used: what segue keeps
/// is in its joiner.
pub fn handle_gro<B: ExpandBuffer>(
    bufs: &mut [B],
    offset: usize,
    _: &mut TcpGROTable,
    _: &mut UdpGROTable,
    can_udp_gro: bool,
    to_write: &mut Vec<usize>,
) -> io::Result<()> {
    if bufs.iter().any(|buf| offset < VIRTIO_NET_HDR_LEN || offset >= buf.as_ref().len()) {
        return Err(invalid("invalid offset"));
    }
    let mut trains = Vec::new();
    JOINERS.with_borrow_mut(|joiners| {
        let mut batch = joiners[usize::from(can_udp_gro)].batch();
        bufs.iter().for_each(|buf| _ = batch.push(&buf.as_ref()[offset..]));
        while let Some(train) = batch.pop() {
            let front: Vec<u8> = train.pieces().next().into_iter().flatten().copied().collect();
            trains.push((front, train.sources().collect::<Vec<_>>()));
        }
    });
    // A packet that stays alone needs nothing, and one without payload lists no source.
    let mut merged = vec![false; bufs.len()];
    bufs.iter_mut().for_each(|buf| buf.as_mut()[offset - VIRTIO_NET_HDR_LEN..offset].fill(0));
    for (front, sources) in trains.iter().filter(|train| train.1.len() > 1) {
        let first = sources[0].0;
        bufs[first].as_mut()[offset - VIRTIO_NET_HDR_LEN..][..front.len()].copy_from_slice(front);
        for (number, range) in &sources[1..] {
            let payload = bufs[*number].as_ref()[offset..][range.clone()].to_vec();
            bufs[first].buf_extend_from_slice(&payload);
            merged[*number] = true;
        }
    }
    to_write.extend((0..bufs.len()).filter(|number| !merged[*number]));
    Ok(())
}

/// Writes the packets of the train `input` to `out_bufs`.
///
/// An error is about this train alone, and its caller reads on. No packets without an error would end a framed stream
/// of tun-rs, which passes errors on.
pub fn gso_split<B: AsRef<[u8]> + AsMut<[u8]>>(
    input: &mut [u8],
    hdr: VirtioNetHdr,
    out_bufs: &mut [B],
    sizes: &mut [usize],
    out_offset: usize,
    _is_v6: bool,
) -> io::Result<usize> {
    let header = VirtioNet {
        // tun-rs does not look at the flags, and its tests leave them 0; a train always owes its checksum (virtio 1.2,
        // 5.1.6.2.1).
        flags: hdr.flags | virtio::NEEDS_CSUM,
        gso_type: hdr.gso_type,
        hdr_len: hdr.hdr_len,
        gso_size: hdr.gso_size,
        csum_start: hdr.csum_start,
        csum_offset: hdr.csum_offset,
        ..VirtioNet::default()
    };
    SPLITTER.with_borrow_mut(|splitter| {
        let packets = splitter.read_with(&header, input).map_err(invalid)?;
        if packets.len() > out_bufs.len().min(sizes.len()) {
            let segment_len = packets.iter().map(|packet| packet.len()).max().unwrap_or(0);
            return Err(invalid(GsoOutputCapacity { segments: packets.len(), segment_len }));
        }
        for ((packet, out), size) in packets.iter().zip(&mut *out_bufs).zip(&mut *sizes) {
            let place = out.as_mut().get_mut(out_offset..).unwrap_or_default();
            *size = packet.write_to(place).map_err(invalid)?;
        }
        Ok(packets.len())
    })
}
