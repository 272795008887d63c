//! A BPF program for the kernel's traffic control that encapsulates each packet, trains included, loaded by bpf(2)
//! directly.

mod sys;

use std::io;
use std::os::fd::OwnedFd;

use segue_testkit::conformance::{Under, Wrapping};
use sys::Insn;

// Functions and flags of include/uapi/linux/bpf.h.
const SKB_STORE_BYTES: u32 = 9;
const SKB_VLAN_PUSH: u32 = 18;
const SKB_ADJUST_ROOM: u32 = 50;
const ADJ_ROOM_MAC: i32 = 1;
const FIXED_GSO: u64 = 1;
const ENCAP_L3_IPV4: u64 = 1 << 1;
const ENCAP_L3_IPV6: u64 = 1 << 2;
const ENCAP_L4_GRE: u64 = 1 << 3;
const ENCAP_L4_UDP: u64 = 1 << 4;
const ENCAP_L2_ETH: u64 = 1 << 6;
const ENCAP_L2_SHIFT: u32 = 56;
const TCX_PASS: i32 = 0;
const TCX_DROP: i32 = 2;

// Operation codes of Documentation/bpf/standardization/instruction-set.rst.
const LOAD_IMM64: u8 = 0x18;
const STORE_W_IMM: u8 = 0x62;
const MOVE_IMM: u8 = 0xb7;
const MOVE_REG: u8 = 0xbf;
const ADD_IMM: u8 = 0x07;
const JUMP_NE_IMM: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// BPF register 10, the frame pointer.
const FP: u8 = 10;

const fn insn(code: u8, dst: u8, src: u8, offset: i16, imm: i32) -> Insn {
    // Bit fields begin at the other end where the byte order is the other one.
    let registers = if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
    Insn { code, registers, offset, imm }
}

/// Builds the program, which makes room after the Ethernet header, writes the tunnel's bytes there, then pushes the
/// tags from the innermost to the outermost.
fn program(wrapping: &Wrapping) -> Vec<Insn> {
    let is_v4 = wrapping.bytes[0] >> 4 == 4;
    let len = wrapping.bytes.len();
    let mut flags = FIXED_GSO | if is_v4 { ENCAP_L3_IPV4 } else { ENCAP_L3_IPV6 };
    flags |= match wrapping.under {
        Under::Ip => 0,
        Under::Gre => ENCAP_L4_GRE,
        Under::Udp => ENCAP_L4_UDP,
    };
    if wrapping.inner_ethernet > 0 {
        flags |= ENCAP_L2_ETH | (wrapping.inner_ethernet as u64) << ENCAP_L2_SHIFT;
    }
    // The type of the outer header, and the header.
    let mut bytes = if is_v4 { vec![0x08, 0x00] } else { vec![0x86, 0xdd] };
    bytes.extend(&wrapping.bytes);
    let stored = bytes.len();
    bytes.resize(stored.next_multiple_of(8), 0);
    let depth = -(bytes.len() as i32);

    let mut all = vec![insn(MOVE_REG, 6, 1, 0, 0)];
    let mut failures = Vec::new();
    let mut call = |all: &mut Vec<Insn>, helper: u32| {
        all.push(insn(CALL, 0, 0, 0, helper as i32));
        failures.push(all.len());
        all.push(insn(JUMP_NE_IMM, 0, 0, 0, 0));
    };
    all.extend([insn(MOVE_REG, 1, 6, 0, 0), insn(MOVE_IMM, 2, 0, 0, len as i32)]);
    all.push(insn(MOVE_IMM, 3, 0, 0, ADJ_ROOM_MAC));
    all.extend([insn(LOAD_IMM64, 4, 0, 0, flags as u32 as i32), insn(0, 0, 0, 0, (flags >> 32) as i32)]);
    call(&mut all, SKB_ADJUST_ROOM);
    for (at, word) in bytes.chunks(4).enumerate() {
        let word = i32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        all.push(insn(STORE_W_IMM, FP, 0, (depth + 4 * at as i32) as i16, word));
    }
    all.extend([insn(MOVE_REG, 1, 6, 0, 0), insn(MOVE_IMM, 2, 0, 0, 12)]);
    all.extend([insn(MOVE_REG, 3, FP, 0, 0), insn(ADD_IMM, 3, 0, 0, depth)]);
    all.extend([insn(MOVE_IMM, 4, 0, 0, stored as i32), insn(MOVE_IMM, 5, 0, 0, 0)]);
    call(&mut all, SKB_STORE_BYTES);
    for &(tpid, tci) in wrapping.tags.iter().rev() {
        all.extend([insn(MOVE_REG, 1, 6, 0, 0), insn(MOVE_IMM, 2, 0, 0, i32::from(tpid.to_be()))]);
        all.push(insn(MOVE_IMM, 3, 0, 0, tci.into()));
        call(&mut all, SKB_VLAN_PUSH);
    }
    all.extend([insn(MOVE_IMM, 0, 0, 0, TCX_PASS), insn(EXIT, 0, 0, 0, 0)]);
    let end = all.len();
    all.extend([insn(MOVE_IMM, 0, 0, 0, TCX_DROP), insn(EXIT, 0, 0, 0, 0)]);
    for at in failures {
        all[at].offset = (end - at - 1) as i16;
    }
    all
}

/// An eBPF program attached to the egress of a device (tcx, Linux 6.6 and later), and detached when this value is
/// dropped.
#[derive(Debug)]
pub(super) struct Encapsulation {
    link: OwnedFd,
}

impl Encapsulation {
    /// Attaches the program to the device with this interface index.
    pub(super) fn attach(index: u32, wrapping: &Wrapping) -> io::Result<Encapsulation> {
        Ok(Encapsulation { link: sys::attach(index, &sys::load(&program(wrapping))?)? })
    }

    /// Replaces the attached program.
    pub(super) fn change(&self, wrapping: &Wrapping) -> io::Result<()> {
        sys::replace(&self.link, &sys::load(&program(wrapping))?)
    }
}
