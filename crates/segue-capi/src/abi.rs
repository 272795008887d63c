//! The functions of `segue.h`.
#![allow(unsafe_code, reason = "pointers from C")]

use std::ffi::c_char;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

use segue::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use segue::easy::{Batch, Joiner, Packets, Splitter};
use segue::gro::{Config, Profile};
use segue::gso::{Frames, Limits};
use segue::hash::Key;
use segue::packet::{Csum, Start};
use segue::virtio::{Form, VirtioNet};

use crate::error::{self, ARGUMENT, Code, NULL, PANIC, ROOM};
use crate::plan::Plan;
use crate::structs::{SegueBuf, SegueJoinerConfig, SegueOut, SeguePiece, SegueTrain, SegueTunnelConfig};
use crate::tunnel::Tunnel;

/// The result of a call in which the library panicked.
pub const SEGUE_ERR_PANIC: isize = PANIC;

/// GSO state behind the C API: a splitter of trains.
pub struct SegueSplitter(pub(crate) Splitter);

/// A joiner with the memory of its last batch.
pub struct SegueJoiner {
    pub(crate) joiner: Joiner,
    header_len: usize,
    pub(crate) fronts: Vec<u8>,
    /// Numbers of pieces, each with its offset in the memory.
    pub(crate) fronts_at: Vec<(usize, usize)>,
    plan: Plan,
}

/// Tunnel configuration and state behind the C API.
pub struct SegueTunnel(Tunnel);

/// Runs `work`, and converts an error or a panic to its error code.
pub(crate) fn guarded(work: impl FnOnce() -> Result<usize, isize>) -> isize {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(count)) => isize::try_from(count).unwrap_or(isize::MAX),
        Ok(Err(code)) => code,
        Err(_) => PANIC,
    }
}

/// Returns the `count` values at `base` as a slice; an empty one for a count of 0, whatever the pointer.
///
/// # Safety
/// `base` must point to `count` values that nothing changes meanwhile, unless it is null or there are none.
pub(crate) unsafe fn many<'a, T>(base: *const T, count: usize) -> Result<&'a [T], isize> {
    match (base.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(NULL),
        (false, count) if count > isize::MAX as usize / size_of::<T>().max(1) => Err(ARGUMENT),
        // SAFETY: the caller's promise; the length was checked.
        (false, count) => Ok(unsafe { slice::from_raw_parts(base, count) }),
    }
}

/// Returns a mutable slice of the `count` values at `base`, as [`many`] returns a shared one.
///
/// # Safety
/// As for [`many`], and nothing else may use the values meanwhile.
pub(crate) unsafe fn many_mut<'a, T>(base: *mut T, count: usize) -> Result<&'a mut [T], isize> {
    match (base.is_null(), count) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(NULL),
        (false, count) if count > isize::MAX as usize / size_of::<T>().max(1) => Err(ARGUMENT),
        // SAFETY: the caller's promise; the length was checked.
        (false, count) => Ok(unsafe { slice::from_raw_parts_mut(base, count) }),
    }
}

/// Returns the configuration at a pointer; `None` for null, and for one that says a smaller size than it has here.
///
/// # Safety
/// `config` must be null, or point to a configuration of the size that it says in its first field.
unsafe fn configuration<'a, T>(config: *const T) -> Option<&'a T> {
    // SAFETY: the caller's promise; the rest is not looked at before its size is known.
    if config.is_null() || unsafe { config.cast::<usize>().read() } < size_of::<T>() {
        return None;
    }
    // SAFETY: as above.
    unsafe { config.as_ref() }
}

/// Returns the configuration of a tunnel at a pointer, with zeros in place of the fields that its size leaves out;
/// `None` for null, and for a size that leaves out more than the fields that were added.
///
/// # Safety
/// As for [`configuration`].
unsafe fn tunnel_configuration(config: *const SegueTunnelConfig) -> Option<SegueTunnelConfig> {
    let mut whole = SegueTunnelConfig::default();
    // SAFETY: the caller's promise; the rest is not looked at before its size is known.
    let size = if config.is_null() { 0 } else { unsafe { config.cast::<usize>().read() } };
    if size < SegueTunnelConfig::LEAST {
        return None;
    }
    let len = size.min(size_of::<SegueTunnelConfig>());
    // SAFETY: as many bytes are there, by the caller's promise and on the stack; any are fields of numbers.
    unsafe { ptr::copy_nonoverlapping(config.cast::<u8>(), (&raw mut whole).cast(), len) };
    Some(whole)
}

/// Returns the key of a configuration; a random one for zeros.
fn key_of(given: [u64; 2]) -> [u64; 2] {
    if given == [0; 2] { [(); 2].map(|()| RandomState::new().hash_one(())) } else { given }
}

/// Creates an object; null where `make` returns nothing or panics.
fn created<T>(make: impl FnOnce() -> Option<T>) -> *mut T {
    let made = catch_unwind(AssertUnwindSafe(|| make().map(|object| Box::into_raw(Box::new(object)))));
    made.ok().flatten().unwrap_or(ptr::null_mut())
}

/// Frees an object; null does nothing.
///
/// # Safety
/// It must come from [`created`] and not be used again.
unsafe fn free<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: the caller's promise.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(object) })));
    }
}

/// Returns the version of the library: major, minor and patch in a byte each.
#[unsafe(no_mangle)]
pub extern "C" fn segue_version() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or(0);
    let parts = || {
        part(env!("CARGO_PKG_VERSION_MAJOR")) << 16
            | part(env!("CARGO_PKG_VERSION_MINOR")) << 8
            | part(env!("CARGO_PKG_VERSION_PATCH"))
    };
    catch_unwind(parts).unwrap_or(0)
}

/// Returns the stable name of an error; it lives as long as the program.
#[unsafe(no_mangle)]
pub extern "C" fn segue_error_name(code: isize) -> *const c_char {
    catch_unwind(|| error::words(code).0.as_ptr()).unwrap_or(c"unknown".as_ptr())
}

/// Returns a sentence about an error; it lives as long as the program.
#[unsafe(no_mangle)]
pub extern "C" fn segue_error_text(code: isize) -> *const c_char {
    catch_unwind(|| error::words(code).1.as_ptr()).unwrap_or(c"No such error.".as_ptr())
}

/// Panics inside of the library, for tests of the boundary.
#[unsafe(no_mangle)]
pub extern "C" fn segue_test_panic() -> isize {
    guarded(|| panic!("segue_test_panic"))
}

/// Returns the folded sum of `len` bytes, not complemented.
///
/// # Safety
/// `bytes` must point to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_sum(bytes: *const u8, len: usize) -> u16 {
    // SAFETY: the caller's promise.
    catch_unwind(|| unsafe { many(bytes, len) }.map_or(0, |bytes| Sum::of(bytes).fold())).unwrap_or(0)
}

/// Copies `len` bytes and returns their folded sum.
///
/// # Safety
/// Both must point to `len` bytes, which do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_sum_copy(to: *mut u8, from: *const u8, len: usize) -> u16 {
    // SAFETY: the caller's promise.
    let memory = unsafe { many_mut(to, len).and_then(|to| Ok((to, many(from, len)?))) };
    let Ok((to, from)) = memory else { return 0 };
    catch_unwind(AssertUnwindSafe(|| {
        let mut sum = Sum::ZERO;
        sum.copy(to, from);
        sum.fold()
    }))
    .unwrap_or(0)
}

/// Returns the folded sum of two runs of bytes, one after the other: the first of `first_len` bytes with the folded
/// sum `first`, then one with the sum `second`.
#[unsafe(no_mangle)]
pub extern "C" fn segue_sum_append(first: u16, first_len: usize, second: u16) -> u16 {
    let word = |value| {
        let mut sum = Sum::ZERO;
        sum.add_u16(value);
        sum
    };
    catch_unwind(|| {
        let mut sum = Sum::ZERO;
        sum.append(word(first), first_len);
        sum.append(word(second), 2);
        sum.fold()
    })
    .unwrap_or(0)
}

/// Returns the folded sum of a pseudo header of IPv4 (`version` 4) or IPv6 (6); 0 for another version.
///
/// # Safety
/// `src` and `dst` must point to 4 or 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_pseudo(version: u32, src: *const u8, dst: *const u8, protocol: u8, len: usize) -> u16 {
    let bytes = if version == 4 { 4 } else { 16 };
    // SAFETY: the caller's promise.
    let (src, dst) = unsafe { (many(src, bytes), many(dst, bytes)) };
    let (Ok(src), Ok(dst)) = (src, dst) else { return 0 };
    catch_unwind(|| match version {
        4 => match (src.try_into(), dst.try_into()) {
            (Ok(src), Ok(dst)) => pseudo_v4(src, dst, protocol, len).fold(),
            _ => 0,
        },
        6 => match (src.try_into(), dst.try_into()) {
            (Ok(src), Ok(dst)) => pseudo_v6(src, dst, protocol, len).fold(),
            _ => 0,
        },
        _ => 0,
    })
    .unwrap_or(0)
}

/// Returns a checksum field updated for the change of one word (RFC 1624).
#[unsafe(no_mangle)]
pub extern "C" fn segue_field_update(field: u16, old: u16, new: u16) -> u16 {
    catch_unwind(|| Field::from_wire(field).update(old, new).value()).unwrap_or(0)
}

/// Creates a splitter; null for a header length that no virtio-net header has.
#[unsafe(no_mangle)]
pub extern "C" fn segue_splitter_new(header_len: usize, ethernet: u32) -> *mut SegueSplitter {
    created(|| {
        let start = if ethernet == 0 { Start::Ip } else { Start::Ethernet };
        match (header_len, Form::of_len(header_len)) {
            (0, _) => Some(SegueSplitter(Splitter::plain(start))),
            (_, Some(form)) => Some(SegueSplitter(Splitter::virtio(form, start))),
            _ => None,
        }
    })
}

/// Frees a splitter; null does nothing.
///
/// # Safety
/// It must come from [`segue_splitter_new`] and not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_splitter_free(splitter: *mut SegueSplitter) {
    // SAFETY: the caller's promise.
    unsafe { free(splitter) };
}

/// Splits what one read returned into packets, each after `offset` bytes of the memory of one of `outs`. Returns their
/// number. With too few of them, or too little room in one, nothing is written.
///
/// # Safety
/// `unit` must point to `len` bytes, `outs` to `count` places with memory that nothing else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_split(
    splitter: *mut SegueSplitter,
    unit: *const u8,
    len: usize,
    outs: *mut SegueOut,
    count: usize,
    offset: usize,
) -> isize {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (splitter, unit, outs) =
            unsafe { (splitter.as_mut().ok_or(NULL)?, many(unit, len)?, many_mut(outs, count)?) };
        // SAFETY: as above.
        unsafe { place(splitter.0.read(unit).map_err(Code::code)?, outs, offset) }
    })
}

/// Parses a virtio-net header, whose length determines its form.
pub(crate) fn header_of(bytes: &[u8]) -> Result<VirtioNet, isize> {
    Form::of_len(bytes.len()).and_then(|form| VirtioNet::parse(bytes, form)).ok_or(ARGUMENT)
}

/// Splits a packet whose virtio-net header lies elsewhere; [`segue_split`] takes one that follows its header.
///
/// # Safety
/// As for [`segue_split`]; `header` must point to `header_len` bytes.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "C has no slices")]
pub unsafe extern "C" fn segue_split_with(
    splitter: *mut SegueSplitter,
    header: *const u8,
    header_len: usize,
    packet: *const u8,
    len: usize,
    outs: *mut SegueOut,
    count: usize,
    offset: usize,
) -> isize {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (splitter, header, packet, outs) = unsafe {
            (splitter.as_mut().ok_or(NULL)?, many(header, header_len)?, many(packet, len)?, many_mut(outs, count)?)
        };
        let header = header_of(header)?;
        // SAFETY: as above.
        unsafe { place(splitter.0.read_with(&header, packet).map_err(Code::code)?, outs, offset) }
    })
}

/// Writes packets to the caller's memory, all or none, and returns their number.
///
/// # Safety
/// As for [`segue_split`].
unsafe fn place(packets: Packets<'_>, outs: &mut [SegueOut], offset: usize) -> Result<usize, isize> {
    if packets.len() > outs.len() {
        return Err(ROOM);
    }
    for (packet, out) in packets.iter().zip(&*outs) {
        // SAFETY: the caller's promise: each has its own memory.
        let room = unsafe { many_mut(out.base, out.room)? }.len().checked_sub(offset);
        if room.is_none_or(|room| room < packet.len()) {
            return Err(ROOM);
        }
    }
    for (packet, out) in packets.iter().zip(&mut *outs) {
        // SAFETY: the caller's promise: each has its own memory.
        let memory = unsafe { many_mut(out.base, out.room)? };
        out.len = packet.write_to(&mut memory[offset..]).map_err(|_| ROOM)?;
    }
    Ok(packets.len())
}

/// Creates a joiner; null for an invalid configuration.
///
/// # Safety
/// `config` must point to a configuration of the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_joiner_new(config: *const SegueJoinerConfig) -> *mut SegueJoiner {
    created(|| {
        // SAFETY: the caller's promise.
        let config = unsafe { configuration(config) }?;
        let profile = match config.profile {
            0 => Profile::Strict,
            1 => Profile::linux(),
            _ => return None,
        };
        let rules = Config { profile, ..Config::vpn(Key(key_of(config.key))) };
        let joiner = match (config.offloads, Form::of_len(config.header_len as usize)) {
            (u32::MAX, _) if config.header_len == 0 => Joiner::plain_with(rules),
            (u32::MAX, _) | (_, None) => return None,
            (bits, Some(form)) => {
                let limits = Limits::tun(bits);
                // They would be joined, and cut again.
                let max_udp_packets = if limits.uso { rules.max_udp_packets } else { 0 };
                Joiner::virtio(Config { max_udp_packets, ..rules }, limits, form)
            }
        };
        let joiner = joiner.starting_with(if config.ethernet == 0 { Start::Ip } else { Start::Ethernet });
        let header_len = config.header_len as usize;
        let (fronts, fronts_at) = (Vec::new(), Vec::new());
        Some(SegueJoiner { joiner, header_len, fronts, fronts_at, plan: Plan::default() })
    })
}

/// Frees a joiner; null does nothing.
///
/// # Safety
/// It must come from [`segue_joiner_new`] and not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_joiner_free(joiner: *mut SegueJoiner) {
    // SAFETY: the caller's promise.
    unsafe { free(joiner) };
}

/// Joins a batch of packets and lists the trains, with their pieces: headers in the joiner's memory, until its next
/// call, the rest in the caller's. Returns the number of trains. 1 train per packet and 2 pieces per packet are always
/// enough.
///
/// # Safety
/// `packets`, `trains` and `pieces` must point to as many values as are said, each packet to its bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_join(
    joiner: *mut SegueJoiner,
    packets: *const SegueBuf,
    count: usize,
    trains: *mut SegueTrain,
    train_count: usize,
    pieces: *mut SeguePiece,
    piece_count: usize,
) -> isize {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (joiner, packets) = unsafe { (joiner.as_mut().ok_or(NULL)?, many(packets, count)?) };
        // SAFETY: the caller's promise.
        let (trains, pieces) = unsafe { (many_mut(trains, train_count)?, many_mut(pieces, piece_count)?) };
        if trains.len() < count || pieces.len() / 2 < count {
            return Err(ROOM);
        }
        let SegueJoiner { joiner, fronts, fronts_at, .. } = joiner;
        let mut batch = joiner.batch();
        for packet in packets {
            // SAFETY: the caller's promise; the batch ends with this call.
            batch.push_with(unsafe { many(packet.base, packet.len)? }, csum_of(packet.csum)?);
        }
        list(batch, fronts, fronts_at, trains, pieces)
    })
}

/// Returns the checksum state with the given number.
pub(crate) fn csum_of(number: u32) -> Result<Csum, isize> {
    match number {
        0 => Ok(Csum::Unknown),
        1 => Ok(Csum::Verified),
        2 => Ok(Csum::Partial),
        _ => Err(ARGUMENT),
    }
}

/// Lists the trains of a batch and their pieces, and ends it. Headers are kept in `fronts`.
pub(crate) fn list(
    mut batch: Batch<'_, '_>,
    fronts: &mut Vec<u8>,
    fronts_at: &mut Vec<(usize, usize)>,
    trains: &mut [SegueTrain],
    pieces: &mut [SeguePiece],
) -> Result<usize, isize> {
    fronts.clear();
    fronts_at.clear();
    let (mut at, mut made) = (0, 0);
    while let Some(train) = batch.pop() {
        let first = at;
        if !train.front().is_empty() {
            // Its place is known when all are there.
            fronts_at.push((at, fronts.len()));
            fronts.extend_from_slice(train.front());
        }
        for piece in train.pieces() {
            let place = pieces.get_mut(at).ok_or(ROOM)?;
            *place = SeguePiece { base: piece.as_ptr(), len: piece.len() };
            at += 1;
        }
        let place = trains.get_mut(made).ok_or(ROOM)?;
        *place = SegueTrain { first, count: at - first, len: train.len(), segments: train.segments() };
        made += 1;
    }
    drop(batch);
    for (piece, front) in fronts_at {
        pieces[*piece].base = fronts[*front..].as_ptr();
    }
    Ok(made)
}

/// Joins a batch of packets in their own memory, each after `offset` bytes of it: a train lies in the memory of its
/// first packet, whose length grows up to the room there. Lists the packets to be written, in order, and returns their
/// number; the virtio-net header of each precedes it. What does not fit stays alone.
///
/// # Safety
/// `packets` must point to `count` places with memory that nothing else uses, `to_write` to `write_count` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_join_in_place(
    joiner: *mut SegueJoiner,
    packets: *mut SegueOut,
    count: usize,
    offset: usize,
    to_write: *mut usize,
    write_count: usize,
) -> isize {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (joiner, packets) = unsafe { (joiner.as_mut().ok_or(NULL)?, many_mut(packets, count)?) };
        // SAFETY: as above.
        let to_write = unsafe { many_mut(to_write, write_count)? };
        let SegueJoiner { joiner, header_len, plan, .. } = joiner;
        if to_write.len() < packets.len() || packets.iter().any(|packet| !packet.holds(offset)) {
            return Err(ROOM);
        }
        if offset < *header_len {
            return Err(ARGUMENT);
        }
        let mut batch = joiner.batch();
        for packet in &*packets {
            // SAFETY: the caller's promise; nothing is written before the batch ends.
            let memory = unsafe { many(packet.base.cast_const(), packet.room)? };
            batch.push(&memory[offset..offset + packet.len]);
        }
        plan.make(&mut batch, packets.len());
        drop(batch);
        // That of a packet that stays alone; zeros, unused, where there is none.
        let lone = VirtioNet { num_buffers: 1, ..VirtioNet::default() };
        let lone = Form::of_len(*header_len).map_or([0; 24], |form| lone.emit(form));
        for packet in &*packets {
            // SAFETY: the caller's promise.
            let memory = unsafe { many_mut(packet.base, packet.room)? };
            memory[offset - *header_len..offset].copy_from_slice(&lone[..*header_len]);
        }
        for train in &plan.trains {
            let (front, sources) = (&plan.fronts[train.front.clone()], &plan.sources[train.sources.clone()]);
            let Some(first) = sources.first().map(|source| source.0) else { continue };
            let (base, mut at) = (packets[first].base, offset - *header_len + front.len());
            let payload: usize = sources.iter().map(|source| source.1.len()).sum();
            if packets[first].room.checked_sub(at).is_none_or(|room| room < payload) {
                continue;
            }
            for (number, range) in sources {
                // SAFETY: both ranges are within the rooms, as was checked; those of one packet may overlap. Only the
                // first packet of a train is written to, and no other train has payload in it.
                unsafe { ptr::copy(packets[*number].base.add(offset + range.start), base.add(at), range.len()) };
                at += range.len();
                plan.is_merged[*number] = *number != first;
            }
            // SAFETY: as above.
            let memory = unsafe { many_mut(base, packets[first].room)? };
            memory[offset - *header_len..][..front.len()].copy_from_slice(front);
            packets[first].len = at - offset;
        }
        let mut made = 0;
        for number in (0..packets.len()).filter(|number| !plan.is_merged[*number]) {
            to_write[made] = number;
            made += 1;
        }
        Ok(made)
    })
}

/// Creates a tunnel; null for an invalid configuration.
///
/// # Safety
/// `config` must point to a configuration of the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_tunnel_new(config: *const SegueTunnelConfig) -> *mut SegueTunnel {
    created(|| {
        // SAFETY: the caller's promise.
        let config = unsafe { tunnel_configuration(config) }?;
        let address = |bytes: &[u8; 16]| match config.version {
            4 => Some(IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))),
            6 => Some(IpAddr::V6(Ipv6Addr::from(*bytes))),
            _ => None,
        };
        let addresses = address(&config.local).zip(address(&config.remote))?;
        Tunnel::new((config.mode, config.carrier), addresses, config.port, key_of(config.key)).ok().map(SegueTunnel)
    })
}

/// Frees a tunnel; null does nothing.
///
/// # Safety
/// It must come from [`segue_tunnel_new`] and not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_tunnel_free(tunnel: *mut SegueTunnel) {
    // SAFETY: the caller's promise.
    unsafe { free(tunnel) };
}

/// Encapsulates a packet or train that has a virtio-net header of 10 bytes, and writes the packets, each complete from
/// its outer IP header on. Returns their number.
///
/// # Safety
/// As for [`segue_split`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_encap(
    tunnel: *mut SegueTunnel,
    unit: *const u8,
    len: usize,
    outs: *mut SegueOut,
    count: usize,
) -> isize {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (tunnel, unit, outs) = unsafe { (tunnel.as_mut().ok_or(NULL)?, many(unit, len)?, many_mut(outs, count)?) };
        let header = VirtioNet::parse(unit, Form::Basic).ok_or_else(|| segue::virtio::Refusal::Short.code())?;
        write(tunnel.0.encap(&header, &unit[Form::Basic.len()..])?, outs)
    })
}

/// Decapsulates a packet, which begins with the outer IP header, and writes the complete inner packet. Addresses, ports
/// and outer checksums are checked. Returns 1.
///
/// # Safety
/// As for [`segue_split`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_decap(
    tunnel: *mut SegueTunnel,
    packet: *const u8,
    len: usize,
    out: *mut SegueOut,
) -> isize {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (tunnel, packet, outs) = unsafe { (tunnel.as_mut().ok_or(NULL)?, many(packet, len)?, many_mut(out, 1)?) };
        write(tunnel.0.decap(packet)?, outs)
    })
}

/// Writes frames to the caller's memory, all or none.
fn write(frames: &Frames, outs: &mut [SegueOut]) -> Result<usize, isize> {
    let list = frames.frames();
    if list.len() > outs.len() {
        return Err(ROOM);
    }
    for (frame, out) in list.iter().zip(&*outs) {
        // SAFETY: the caller of the functions above promised it: each has its own memory.
        let room = unsafe { many_mut(out.base, out.room)? };
        if room.len() < frames.bytes(frame).len() {
            return Err(ROOM);
        }
    }
    for (frame, out) in list.iter().zip(outs) {
        let bytes = frames.bytes(frame);
        // SAFETY: the caller of the functions above promised it: each has its own memory.
        let memory = unsafe { many_mut(out.base, out.room)? };
        memory[..bytes.len()].copy_from_slice(bytes);
        out.len = bytes.len();
    }
    Ok(list.len())
}
