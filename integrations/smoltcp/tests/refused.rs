//! Tests of writes that the device refuses: they cost no other packet.

use std::cell::RefCell;
use std::io::{self, IoSlice, Read, Write};
use std::rc::Rc;

use segue::easy::Splitter;
use segue::hash::Key;
use segue::packet::Start;
use segue::virtio::{Form, TUN_OFFLOADS};
use segue_smoltcp::Trains;
use smoltcp::phy::{Device, TxToken};
use smoltcp::time::Instant;

/// A device in memory that fails with the error, if there is one, which `error` returns for a write.
struct Refusing<F> {
    error: F,
    taken: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl<F> Read for Refusing<F> {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl<F: FnMut(&[u8]) -> Option<i32>> Write for Refusing<F> {
    fn write(&mut self, unit: &[u8]) -> io::Result<usize> {
        if let Some(number) = (self.error)(unit) {
            return Err(io::Error::from_raw_os_error(number));
        }
        self.taken.borrow_mut().push(unit.to_vec());
        Ok(unit.len())
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write(&pieces.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<u8>>())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the `number`th segment of a flow, as smoltcp sends it: without the checksum of TCP.
fn segment(flow: u8, number: u8) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 140, 0, number, 0x40, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, flow];
    let sum = segue::checksum::Field::complete(segue::checksum::Sum::of(&packet)).value();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    // Ports, sequence number, acknowledgment, header length and ACK, window, checksum, urgent pointer.
    packet.extend([0, 7, 0, flow, 0, 0, 1, 100 * number, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend([flow * 16 + number; 100]);
    packet
}

/// Sends two segments of each of three flows to a device that fails as `error` says. Returns the last bytes of the
/// packets that the device took, sorted, the number of writes that were lost, and the result.
fn send(error: impl FnMut(&[u8]) -> Option<i32> + 'static) -> (Vec<u8>, u64, io::Result<usize>) {
    let taken = Rc::default();
    let device = Refusing { error, taken: Rc::clone(&taken) };
    let mut trains = Trains::new(device, TUN_OFFLOADS[0], Key([1, 2]), 1500);
    for packet in [(3, 0), (3, 1), (4, 0), (4, 1), (5, 0), (5, 1)].map(|(flow, number)| segment(flow, number)) {
        let token = trains.transmit(Instant::ZERO).unwrap();
        token.consume(packet.len(), |place| place.copy_from_slice(&packet));
    }
    let (written, lost, mut came) = (trains.flush(), trains.lost, Vec::new());
    let mut splitter = Splitter::virtio(Form::Basic, Start::Ip);
    for unit in &*taken.borrow() {
        for packet in splitter.read(unit).unwrap().iter() {
            let mut bytes = Vec::new();
            packet.append_to(&mut bytes, (0, 0));
            came.push(bytes[139]);
        }
    }
    came.sort_unstable();
    (came, lost, written)
}

#[test]
fn a_write_that_the_device_refuses_costs_no_other_packet() {
    let all = [48, 49, 64, 65, 80, 81];
    let (came, lost, written) = send(|_| None);
    assert_eq!((came, lost, written.unwrap()), (all.to_vec(), 0, 3), "trains of two");
    let mut first = true;
    let (came, lost, written) = send(move |_| std::mem::take(&mut first).then_some(5));
    assert_eq!((came.len(), lost, written.unwrap()), (4, 1, 2), "EIO once");
    let (came, lost, written) = send(|_| Some(5));
    assert_eq!((came.len(), lost, written.unwrap()), (0, 3, 0), "EIO, as of a device that is down");
}

#[test]
fn a_train_that_the_device_refuses_comes_cut() {
    let mut refused = 0;
    let (came, lost, written) = send(move |unit| {
        refused += u32::from(unit[1] != 0);
        assert!(refused <= 1, "the kind is not tried again");
        (unit[1] != 0).then_some(22)
    });
    assert_eq!((came, lost, written.unwrap()), (vec![48, 49, 64, 65, 80, 81], 0, 6));
}

#[test]
fn a_device_that_was_deleted_is_an_error() {
    let (came, _, written) = send(|_| Some(77));
    assert_eq!((came.len(), written.unwrap_err().raw_os_error()), (0, Some(77)));
}
