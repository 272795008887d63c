//! An assembler of BPF instructions (RFC 9669) with labels.
//!
//! It has the instructions that the programs of this crate use, and no more. Loads and stores of packets go through
//! helper functions, so that programs need no bounds checks of packet pointers.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A register of the BPF machine. R0 has results, R1 to R5 arguments, which calls overwrite; R6 to R9 survive calls;
/// R10 is the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reg {
    R0 = 0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The width of a load or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// A memory access of one byte.
    B = 0x10,
    /// A memory access of two bytes.
    H = 0x08,
    /// A memory access of four bytes.
    W = 0x00,
    /// A memory access of eight bytes.
    D = 0x18,
}

/// An arithmetic operation on 64-bit registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Div = 0x30,
    Or = 0x40,
    And = 0x50,
    Lsh = 0x60,
    Rsh = 0x70,
    Xor = 0xa0,
    Mov = 0xb0,
}

/// The condition of a jump; comparisons are unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum If {
    Eq = 0x10,
    Gt = 0x20,
    Set = 0x40,
    Ne = 0x50,
    Lt = 0xa0,
}

/// The kernel's helper functions, by number (`bpf_` functions of `linux/bpf.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Helper {
    MapLookupElem = 1,
    MapUpdateElem = 2,
    KtimeGetNs = 5,
    GetPrandomU32 = 7,
    SkbStoreBytes = 9,
    TailCall = 12,
    Redirect = 23,
    SkbLoadBytes = 26,
    GetHashRecalc = 34,
    SkbPullData = 39,
    SkbChangeHead = 43,
    SkbAdjustRoom = 50,
    SkbLoadBytesRelative = 68,
    FibLookup = 69,
    SkbEcnSetCe = 97,
    CsumLevel = 135,
    RedirectNeigh = 152,
}

/// A jump target in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// One instruction as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    code: u8,
    /// Destination register in the lower half, source register in the upper one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A fault of the code that assembles a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A jump to a label that was never placed.
    Unplaced,
    /// A jump over more than 32,767 instructions.
    Distance,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Unplaced => "a jump leads nowhere",
            Fault::Distance => "a jump leads too far",
        })
    }
}

const ALU64: u8 = 0x07;
const JMP: u8 = 0x05;
const JMP32: u8 = 0x06;
/// Operand flag: the last operand is the source register, not the immediate.
const FROM_REGISTER: u8 = 0x08;
const LDX_MEM: u8 = 0x61;
const ST_MEM: u8 = 0x62;
const STX_MEM: u8 = 0x63;
const LD_IMM64: u8 = 0x18;
const TO_BIG_ENDIAN: u8 = 0xdc;
const JUMP: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// The instruction `lock *(u64 *)(to + offset) += from`: the immediate selects the addition.
const ATOMIC_64: u8 = 0xdb;
/// Source register value: the immediate of the 64-bit load is the descriptor of a map.
const PSEUDO_MAP_FD: u8 = 1;
/// Source register value: the immediates of the 64-bit load are the descriptor of a map and an offset in its first
/// value.
const PSEUDO_MAP_VALUE: u8 = 2;

/// A BPF program under construction.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    code: Vec<Instruction>,
    places: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn push(&mut self, code: u8, to: Reg, from: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction { code, registers: to as u8 | from << 4, offset, immediate });
    }

    /// Creates a label, to be placed later.
    pub(crate) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Sets a label to the next instruction.
    pub(crate) fn place(&mut self, label: Label) {
        self.places[label.0] = Some(self.code.len());
    }

    /// Appends an operation on two registers: `to = to OP from`.
    pub(crate) fn op(&mut self, op: Op, to: Reg, from: Reg) {
        self.push(ALU64 | FROM_REGISTER | op as u8, to, from as u8, 0, 0);
    }

    /// Appends an operation on a register and a constant: `to = to OP value`.
    pub(crate) fn op_value(&mut self, op: Op, to: Reg, value: i32) {
        self.push(ALU64 | op as u8, to, 0, 0, value);
    }

    /// Appends a move of a register: `to = from`.
    pub(crate) fn copy(&mut self, to: Reg, from: Reg) {
        self.op(Op::Mov, to, from);
    }

    /// Appends a move of a constant: `to = value`.
    pub(crate) fn set(&mut self, to: Reg, value: i32) {
        self.op_value(Op::Mov, to, value);
    }

    /// Appends the address of a stack slot: `to = frame + offset`.
    pub(crate) fn frame(&mut self, to: Reg, offset: i16) {
        self.copy(to, Reg::R10);
        self.op_value(Op::Add, to, i32::from(offset));
    }

    /// Returns whether a jump leads to the label: the kernel refuses unreachable code.
    pub(crate) fn is_used(&self, label: Label) -> bool {
        self.jumps.iter().any(|(_, other)| *other == label)
    }

    /// Converts the lower `bits` (16 or 32) of `to` between the byte order of this machine and that of the network, and
    /// clears the others.
    pub(crate) fn swap(&mut self, to: Reg, bits: i32) {
        self.push(TO_BIG_ENDIAN, to, 0, 0, bits);
    }

    /// Appends a load instruction: `to = *(from + offset)`.
    pub(crate) fn load(&mut self, size: Size, to: Reg, from: Reg, offset: i16) {
        self.push(LDX_MEM | size as u8, to, from as u8, offset, 0);
    }

    /// Appends a store of a register: `*(to + offset) = from`.
    pub(crate) fn store(&mut self, size: Size, to: Reg, offset: i16, from: Reg) {
        self.push(STX_MEM | size as u8, to, from as u8, offset, 0);
    }

    /// Appends a store of a constant: `*(to + offset) = value`.
    pub(crate) fn store_value(&mut self, size: Size, to: Reg, offset: i16, value: i32) {
        self.push(ST_MEM | size as u8, to, 0, offset, value);
    }

    /// Appends an atomic addition of 64 bits: `*(to + offset) += from`.
    pub(crate) fn add_atomic(&mut self, to: Reg, offset: i16, from: Reg) {
        self.push(ATOMIC_64, to, from as u8, offset, Op::Add as i32);
    }

    /// Appends a jump to `label`.
    pub(crate) fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP, Reg::R0, 0, 0, 0);
    }

    /// Jumps to `label` if the 64-bit comparison holds.
    pub(crate) fn jump_if(&mut self, condition: If, a: Reg, b: Reg, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JMP | FROM_REGISTER | condition as u8, a, b as u8, 0, 0);
    }

    /// Jumps to `label` if the 64-bit comparison with `value` holds.
    pub(crate) fn jump_if_value(&mut self, condition: If, a: Reg, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JMP | condition as u8, a, 0, 0, value);
    }

    /// Jumps to `label` if the comparison of the lower 32 bits with `value` holds.
    pub(crate) fn jump_if_word(&mut self, condition: If, a: Reg, value: u32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JMP32 | condition as u8, a, 0, 0, value.cast_signed());
    }

    /// Calls a helper; the result is in R0.
    pub(crate) fn call(&mut self, helper: Helper) {
        self.push(CALL, Reg::R0, 0, 0, helper as i32);
    }

    /// Ends the program with `value`.
    pub(crate) fn exit(&mut self, value: i32) {
        self.set(Reg::R0, value);
        self.end();
    }

    /// Ends the program with the value of R0.
    pub(crate) fn end(&mut self) {
        self.push(EXIT, Reg::R0, 0, 0, 0);
    }

    /// Appends a load of the map's address, for calls.
    pub(crate) fn map(&mut self, to: Reg, map: BorrowedFd<'_>) {
        self.push(LD_IMM64, to, PSEUDO_MAP_FD, 0, map.as_raw_fd());
        self.push(0, Reg::R0, 0, 0, 0);
    }

    /// Appends a load of the address of byte `offset` of the first value of an array map.
    pub(crate) fn map_value(&mut self, to: Reg, map: BorrowedFd<'_>, offset: i32) {
        self.push(LD_IMM64, to, PSEUDO_MAP_VALUE, 0, map.as_raw_fd());
        self.push(0, Reg::R0, 0, 0, offset);
    }

    /// Returns the program with its jumps resolved. Of a jump backwards the kernel must be able to see that it ends.
    pub(crate) fn finish(mut self) -> Result<Vec<Instruction>, Fault> {
        for (at, label) in self.jumps {
            let to = self.places.get(label.0).copied().flatten().ok_or(Fault::Unplaced)?;
            let distance = to as isize - (at as isize + 1);
            self.code[at].offset = i16::try_from(distance).map_err(|_| Fault::Distance)?;
        }
        Ok(self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses an instruction from its eight bytes.
    fn parse(bytes: [u8; 8]) -> Instruction {
        let [code, registers, a, b, c, d, e, f] = bytes;
        let (offset, immediate) = (i16::from_le_bytes([a, b]), i32::from_le_bytes([c, d, e, f]));
        Instruction { code, registers, offset, immediate }
    }

    #[test]
    fn instructions_have_the_encoding_of_rfc_9669() {
        let mut a = Assembler::default();
        let end = a.label();
        a.copy(Reg::R6, Reg::R1);
        a.op_value(Op::Add, Reg::R2, -4);
        a.op(Op::Xor, Reg::R3, Reg::R4);
        a.load(Size::W, Reg::R1, Reg::R6, 40);
        a.load(Size::B, Reg::R2, Reg::R10, -87);
        a.store(Size::H, Reg::R10, -2, Reg::R5);
        a.store_value(Size::D, Reg::R10, -8, 0);
        a.add_atomic(Reg::R0, 16, Reg::R1);
        a.jump_if_value(If::Lt, Reg::R1, 20, end);
        a.jump_if(If::Gt, Reg::R1, Reg::R2, end);
        a.jump_if_word(If::Ne, Reg::R1, 0xc612_0001, end);
        a.swap(Reg::R1, 16);
        a.call(Helper::RedirectNeigh);
        a.jump(end);
        a.place(end);
        a.end();
        let expected = [
            [0xbf, 0x16, 0, 0, 0, 0, 0, 0],
            [0x07, 0x02, 0, 0, 0xfc, 0xff, 0xff, 0xff],
            [0xaf, 0x43, 0, 0, 0, 0, 0, 0],
            [0x61, 0x61, 0x28, 0, 0, 0, 0, 0],
            [0x71, 0xa2, 0xa9, 0xff, 0, 0, 0, 0],
            [0x6b, 0x5a, 0xfe, 0xff, 0, 0, 0, 0],
            [0x7a, 0x0a, 0xf8, 0xff, 0, 0, 0, 0],
            [0xdb, 0x10, 0x10, 0, 0, 0, 0, 0],
            [0xa5, 0x01, 5, 0, 0x14, 0, 0, 0],
            [0x2d, 0x21, 4, 0, 0, 0, 0, 0],
            [0x56, 0x01, 3, 0, 0x01, 0x00, 0x12, 0xc6],
            [0xdc, 0x01, 0, 0, 0x10, 0, 0, 0],
            [0x85, 0, 0, 0, 0x98, 0, 0, 0],
            [0x05, 0, 0, 0, 0, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(a.finish().unwrap(), expected.map(parse));
    }

    #[test]
    fn a_jump_to_nowhere_or_too_far_is_refused() {
        let mut a = Assembler::default();
        let label = a.label();
        a.jump(label);
        assert_eq!(a.finish(), Err(Fault::Unplaced));
        let mut a = Assembler::default();
        let label = a.label();
        a.place(label);
        a.exit(0);
        a.jump(label);
        assert_eq!(a.finish().unwrap()[2], parse([0x05, 0, 0xfd, 0xff, 0, 0, 0, 0]));
        let mut a = Assembler::default();
        let label = a.label();
        a.jump(label);
        (0..0x8000).for_each(|_| a.set(Reg::R0, 0));
        a.place(label);
        a.end();
        assert_eq!(a.finish(), Err(Fault::Distance));
    }
}
