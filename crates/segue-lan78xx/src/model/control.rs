//! USB control requests: vendor and standard requests.

use crate::regs::{endpoint, request};
use crate::usb::{Error, Setup};

use super::state::{Access, Model};
use super::{Fault, descriptors};

impl Model {
    /// Answers a control request; `data` is the host's data stage.
    ///
    /// # Errors
    /// [`Error::Stall`] for a request that the chip does not know, [`Error::Gone`] once it was unplugged.
    pub fn control(&mut self, setup: Setup, data: &[u8]) -> Result<Vec<u8>, Error> {
        if self.gone {
            return Err(Error::Gone);
        }
        self.notes.controls += 1;
        if self.take_fault(|fault| matches!(fault, Fault::ControlStall)).is_some() {
            return Err(Error::Stall);
        }
        let length = usize::from(setup.length);
        let mut answer = match (setup.request_type, setup.request) {
            (request::IN, request::READ_REGISTER) if length == 4 => {
                self.note_access(Access::Read(setup.index));
                self.read_register(setup.index).to_le_bytes().to_vec()
            }
            (request::OUT, request::WRITE_REGISTER) if length == 4 && data.len() == 4 => {
                let value = u32::from_le_bytes([data[0], data[1], data[2], data[3]]);
                self.note_access(Access::Write(setup.index, value));
                self.write_register(setup.index, value);
                Vec::new()
            }
            (request::IN, request::READ_STATISTICS) => {
                self.note_access(Access::Statistics);
                self.statistics.iter().flat_map(|word| word.to_le_bytes()).collect()
            }
            _ => self.standard(setup)?,
        };
        answer.truncate(length);
        Ok(answer)
    }

    fn note_access(&mut self, access: Access) {
        // A driver makes some thousands of accesses; a host that never takes the trace must not fill memory.
        if let Some(trace) = self.trace.as_mut().filter(|trace| trace.len() < 1 << 20) {
            trace.push(access);
        }
    }

    /// Answers a standard request (USB 3.2, section 9.4).
    fn standard(&mut self, setup: Setup) -> Result<Vec<u8>, Error> {
        const GET_STATUS: u8 = 0;
        const CLEAR_FEATURE: u8 = 1;
        const SET_FEATURE: u8 = 3;
        const SET_ADDRESS: u8 = 5;
        const GET_DESCRIPTOR: u8 = 6;
        const GET_CONFIGURATION: u8 = 8;
        const SET_CONFIGURATION: u8 = 9;
        const GET_INTERFACE: u8 = 10;
        const SET_INTERFACE: u8 = 11;
        const SET_SEL: u8 = 0x30;
        const SET_ISOCH_DELAY: u8 = 0x31;
        const ENDPOINT_HALT: u16 = 0;
        match (setup.request_type, setup.request) {
            (0x80, GET_DESCRIPTOR) => {
                descriptors::find(self.config.chip, self.config.speed, setup.value).ok_or(Error::Stall)
            }
            // Self powered.
            (0x80, GET_STATUS) => Ok(vec![1, 0]),
            (0x81, GET_STATUS) => Ok(vec![0, 0]),
            (0x82, GET_STATUS) => Ok(vec![u8::from(self.is_halted(setup.index)?), 0]),
            (0x80, GET_CONFIGURATION) => Ok(vec![u8::from(self.configured)]),
            (0x81, GET_INTERFACE) => Ok(vec![0]),
            (0x00, SET_CONFIGURATION) if setup.value <= 1 => {
                self.configured = setup.value == 1;
                self.clear_halts();
                Ok(Vec::new())
            }
            (0x01, SET_INTERFACE) if setup.value == 0 && setup.index == 0 => {
                self.clear_halts();
                Ok(Vec::new())
            }
            (0x02, CLEAR_FEATURE) if setup.value == ENDPOINT_HALT => {
                self.set_halted(setup.index, false)?;
                Ok(Vec::new())
            }
            (0x02, SET_FEATURE) if setup.value == ENDPOINT_HALT => {
                self.set_halted(setup.index, true)?;
                Ok(Vec::new())
            }
            (0x00..=0x02, CLEAR_FEATURE | SET_FEATURE) | (0x00, SET_ADDRESS | SET_SEL | SET_ISOCH_DELAY) => {
                Ok(Vec::new())
            }
            _ => Err(Error::Stall),
        }
    }

    fn clear_halts(&mut self) {
        (self.bulk_in.halted, self.bulk_out.halted, self.interrupt_halted) = (false, false, false);
    }

    /// Returns whether an endpoint is halted. The control endpoint never is (USB 2.0, section 9.4.5); an endpoint that
    /// does not exist stalls the request.
    fn is_halted(&self, index: u16) -> Result<bool, Error> {
        match u8::try_from(index) {
            Ok(endpoint::BULK_IN) => Ok(self.bulk_in.halted),
            Ok(endpoint::BULK_OUT) => Ok(self.bulk_out.halted),
            Ok(endpoint::INTERRUPT) => Ok(self.interrupt_halted),
            Ok(0x00 | 0x80) => Ok(false),
            _ => Err(Error::Stall),
        }
    }

    fn set_halted(&mut self, index: u16, halted: bool) -> Result<(), Error> {
        match u8::try_from(index) {
            Ok(endpoint::BULK_IN) => self.bulk_in.halted = halted,
            Ok(endpoint::BULK_OUT) => {
                self.bulk_out.halted = halted;
                self.bulk_out.restart();
            }
            Ok(endpoint::INTERRUPT) => self.interrupt_halted = halted,
            Ok(0x00 | 0x80) => {}
            _ => return Err(Error::Stall),
        }
        Ok(())
    }

    /// Completes all transfers of halted endpoints with a stall, those that were already waiting included (USB 2.0,
    /// section 8.4.5).
    pub(super) fn stall_halted(&mut self) {
        let mut ids = Vec::new();
        if self.bulk_in.halted {
            ids.extend(self.bulk_in.pending.drain(..).map(|(id, _)| id));
        }
        if self.bulk_out.halted {
            ids.extend(self.bulk_out.pending.drain(..).map(|(id, _, _)| id));
        }
        if self.interrupt_halted {
            ids.extend(self.interrupts.drain(..));
        }
        for id in ids {
            self.complete(id, Err(Error::Stall));
        }
    }
}
