//! Tests of connections: the order in which QEMU sends its messages, memory that comes and goes, restarts of either
//! side.

use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use segue::reason::Reason;
use segue_testkit::vhost::{Descriptor, GUEST_BASE, MEMORY_LEN, USER_BASE, feature, message, region, state};

use super::super::files::HELD;
use super::super::memory::UNMAPPED_AT_ONCE;
use super::*;

/// The feature bits that are offered, by their numbers in virtio 1.2.
const OFFERED: u64 = 0x01c0_0001_7801_bb8b;
/// The number of the message with a descriptor for errors.
const SET_VRING_ERR: u32 = 14;
/// Flags of a message that requires a reply: the version, and `need_reply`.
const ACKNOWLEDGE: u32 = 1 | 1 << 3;
/// Time in which one part of memory is unmapped, and no second one begins.
const ONE_PART: Duration = Duration::from_nanos(1);
/// Variable of a process that runs one test only: it takes many descriptors.
const ALONE: &str = "SEGUE_TEST_ALONE";

impl Bench {
    /// Sends a message and returns the payload of the reply.
    #[track_caller]
    fn request(&mut self, number: u32, payload: &[u8]) -> Vec<u8> {
        self.front.send(number, payload);
        self.port.listen().unwrap();
        let (answered, payload) = self.front.reply().expect("a reply");
        assert_eq!(answered, number);
        payload
    }

    /// Asserts that packets pass in both directions.
    #[track_caller]
    fn assert_traffic(&mut self, seed: usize) {
        let sent = frame(true, 500, seed, Fill::Good);
        self.front.send_packet(seed as u16 % 64, &PLAIN, &sent, &[]);
        assert_eq!(self.received(), std::slice::from_ref(&sent));
        let packet = testing::load_frame(&mut self.pages, &sent);
        assert_eq!(self.send(packet), Sent::All);
        let got = self.front.received();
        assert_eq!(got.iter().map(|one| one.1.clone()).collect::<Vec<_>>(), [sent]);
    }
}

#[test]
fn the_order_of_messages_is_that_of_qemu() {
    let mut bench = Bench::new(feature::USUAL);
    let offered = u64::from_le_bytes(bench.request(message::GET_FEATURES, &[]).try_into().unwrap());
    // CSUM, GUEST_CSUM, MTU; GUEST_TSO4, _TSO6, _ECN; HOST_TSO4, _TSO6, _ECN; MRG_RXBUF, STATUS; ANY_LAYOUT,
    // INDIRECT_DESC, EVENT_IDX, PROTOCOL_FEATURES; VERSION_1; GUEST_USO4, _USO6, HOST_USO. Nothing that is not there.
    assert_eq!(offered, OFFERED);
    assert_eq!(offered & feature::USUAL, feature::USUAL);
    let protocol = u64::from_le_bytes(bench.request(message::GET_PROTOCOL_FEATURES, &[]).try_into().unwrap());
    assert_eq!(protocol, 1 << 3 | 1 << 13 | 1 << 15);
    bench.front.send(message::SET_PROTOCOL_FEATURES, &protocol.to_le_bytes());
    assert_eq!(bench.request(message::GET_MAX_MEM_SLOTS, &[]), 64u64.to_le_bytes());
    assert_eq!(bench.request(message::GET_QUEUE_NUM, &[]), 1u64.to_le_bytes());
    bench.front.send(message::SET_OWNER, &[]);
    // Queues are enabled before any feature was chosen, several times.
    for _ in 0..5 {
        for queue in [TO_GUEST, FROM_GUEST] {
            bench.front.send(message::SET_VRING_ENABLE, &state(queue, 1));
        }
    }
    bench.port.listen().unwrap();
    assert!(!bench.port.is_ready());
    bench.front.agree();
    // The first region comes as an added one too.
    let memory = bench.front.memory.try_clone().unwrap();
    let payload = [vec![0; 8], region(GUEST_BASE, MEMORY_LEN, USER_BASE, 0)].concat();
    bench.front.send_with(message::ADD_MEM_REG, ACKNOWLEDGE, &payload, &[memory.as_fd()]);
    bench.port.listen().unwrap();
    assert_eq!(bench.front.reply(), Some((message::ADD_MEM_REG, vec![0; 8])));
    for queue in [TO_GUEST, FROM_GUEST] {
        bench.front.start_queue(queue);
    }
    bench.port.listen().unwrap();
    assert!(bench.port.is_ready(), "{:?}", bench.port.stops());
    bench.front.offer_buffers(2048);
    (0..3).for_each(|seed| bench.assert_traffic(seed));
    // The guest stops, as in a reboot, and starts again.
    for queue in [TO_GUEST, FROM_GUEST] {
        assert_eq!(bench.request(message::GET_VRING_BASE, &state(queue, 0)), state(queue, 3));
    }
    assert!(!bench.port.is_ready());
    assert_eq!(bench.number(GUEST_CONNECTED), 1);
    for queue in [TO_GUEST, FROM_GUEST] {
        bench.front.start_queue(queue);
    }
    bench.port.listen().unwrap();
    (3..6).for_each(|seed| bench.assert_traffic(seed));
    bench.front.send(message::RESET_DEVICE, &[]);
    bench.port.listen().unwrap();
    assert!(!bench.port.is_ready());
    assert_eq!(bench.port.stops().total(), 0);
}

#[test]
fn memory_comes_and_goes_while_the_rings_run() {
    let mut bench = Bench::ready(feature::USUAL);
    bench.front.offer_buffers(2048);
    bench.assert_traffic(0);
    let more = bench.front.memory.try_clone().unwrap();
    // The same file a second time, at another address of the guest.
    let second = region(0x8000_0000, 4 << 20, USER_BASE + (1 << 40), 2 << 20);
    let payload = [vec![0; 8], second].concat();
    bench.front.send_with(message::ADD_MEM_REG, ACKNOWLEDGE, &payload, &[more.as_fd()]);
    bench.port.listen().unwrap();
    assert_eq!(bench.front.reply(), Some((message::ADD_MEM_REG, vec![0; 8])));
    bench.assert_traffic(1);
    let sent = frame(true, 300, 9, Fill::Good);
    bench.front.send_packet(20, &PLAIN, &sent, &[]);
    let slot = bench.front.slot(20);
    let there = slot - GUEST_BASE - (2 << 20) + 0x8000_0000;
    let descriptor = Descriptor { address: there, len: 12 + sent.len() as u32, flags: 0, next: 0 };
    bench.front.describe(FROM_GUEST, 20, &descriptor);
    assert_eq!(bench.received(), [sent], "out of the second region");
    bench.front.send_with(message::REM_MEM_REG, ACKNOWLEDGE, &payload, &[]);
    bench.port.listen().unwrap();
    assert_eq!(bench.front.reply(), Some((message::REM_MEM_REG, vec![0; 8])));
    bench.assert_traffic(2);
    // A whole new table with the rings in it changes nothing either.
    bench.front.send_memory();
    bench.port.listen().unwrap();
    bench.assert_traffic(3);
    bench.front.describe(FROM_GUEST, 20, &descriptor);
    bench.front.offer(FROM_GUEST, 20);
    assert!(bench.received().is_empty());
    bench.assert_stopped(Stop::RingAddress);
}

/// Adds a region to the guest's memory, of the front end's file.
fn add_region(front: &mut Frontend, region: Vec<u8>) {
    let memory = front.memory.try_clone().unwrap();
    front.send_with(message::ADD_MEM_REG, 1, &[vec![0; 8], region].concat(), &[memory.as_fd()]);
}

#[test]
fn much_memory_is_unmapped_in_steps_and_the_next_front_end_waits_for_it() {
    const STEPS: u64 = 8;
    const LEN: u64 = STEPS * UNMAPPED_AT_ONCE;
    let (supply, supplied) = segue_testkit::vhost::message_pair().unwrap();
    let port = VhostPort::new(Source::Supplied(supplied), &VhostConfig { mtu: 1500 }).unwrap();
    let supplied_front = || {
        let (front, inner) = UnixStream::pair().unwrap();
        segue_testkit::vhost::hand_over(&supply, &inner);
        Frontend::over(front, feature::USUAL)
    };
    let mut bench = Bench::of(port, supplied_front());
    bench.port.step = ONE_PART;
    bench.front.start();
    bench.port.listen().unwrap();
    bench.front.offer_buffers(2048);
    bench.front.memory.set_len(LEN).unwrap();
    let regions = [region(1 << 40, LEN, 1 << 50, 0), region(2 << 40, LEN, 2 << 50, 0)];
    regions.iter().for_each(|region| add_region(&mut bench.front, region.clone()));
    bench.port.listen().unwrap();
    bench.assert_traffic(0);
    assert!(!is_readable(bench.port.link_fd().unwrap()) && !bench.port.is_busy());
    // One goes by a message: the next message waits, and packets do not.
    bench.front.send(message::REM_MEM_REG, &[vec![0; 8], regions[0].clone()].concat());
    bench.front.send(message::GET_QUEUE_NUM, &[]);
    for step in 1..STEPS {
        bench.port.listen().unwrap();
        assert_eq!((bench.front.reply(), bench.port.is_busy()), (None, true), "{step}");
        bench.assert_traffic(step as usize);
        wait_until_readable(bench.port.link_fd().unwrap());
    }
    bench.port.listen().unwrap();
    assert_eq!(bench.front.reply().map(|(number, _)| number), Some(message::GET_QUEUE_NUM));
    assert!(!is_readable(bench.port.link_fd().unwrap()) && !bench.port.is_busy());
    bench.assert_traffic(9);
    // The other goes with the front end.
    let mut before = std::mem::replace(&mut bench.front, supplied_front());
    before.stream.shutdown(std::net::Shutdown::Write).unwrap();
    bench.port.listen().unwrap();
    assert_eq!((bench.port.stops().of(Stop::Ended), bench.number(GUEST_CONNECTED)), (1, 0));
    let mut steps = 1;
    while bench.number("front_ends") == 1 {
        assert!(!before.is_closed() && bench.port.is_busy(), "its memory is still mapped");
        wait_until_readable(bench.port.link_fd().unwrap());
        bench.port.listen().unwrap();
        steps += 1;
    }
    assert!(before.is_closed());
    assert_eq!(steps, STEPS + MEMORY_LEN.div_ceil(UNMAPPED_AT_ONCE));
    bench.front.start();
    bench.port.listen().unwrap();
    bench.front.offer_buffers(2048);
    bench.assert_traffic(3);
    assert!(!is_readable(bench.port.link_fd().unwrap()));
}

#[test]
fn many_regions_that_go_at_once_share_the_time_of_a_call() {
    let mut bench = Bench::ready(feature::USUAL);
    bench.port.step = ONE_PART;
    let regions: Vec<_> = (1..64_u64).map(|n| region(n << 40, 4096, 1 << 60 | n << 44, 0)).collect();
    regions.iter().for_each(|region| add_region(&mut bench.front, region.clone()));
    bench.port.listen().unwrap();
    for region in &regions {
        let payload = [vec![0; 8], region.clone()].concat();
        bench.front.send_with(message::REM_MEM_REG, ACKNOWLEDGE, &payload, &[]);
    }
    let mut removed = Vec::new();
    while removed.iter().sum::<usize>() < regions.len() {
        bench.port.listen().unwrap();
        removed.push(std::iter::from_fn(|| bench.front.reply()).count());
    }
    // The first call has had nothing to unmap before it read a message.
    assert_eq!(removed, [vec![2], vec![1; regions.len() - 2]].concat());
    assert_eq!(bench.port.stops().total(), 0);
}

#[test]
fn a_counter_of_calls_that_is_full_and_blocks_holds_nothing_up() {
    let (done, over) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bench = Bench::ready(feature::USUAL);
        bench.front.offer_buffers(2048);
        [TO_GUEST, FROM_GUEST].into_iter().for_each(|queue| bench.front.fill_calls(queue));
        (0..3).for_each(|seed| bench.assert_traffic(seed));
        done.send((bench.number("calls"), bench.port.stops().total())).unwrap();
    });
    let (calls, stops) = over.recv_timeout(Duration::from_secs(60)).expect("no call waits for the guest");
    assert!(calls >= 2 && stops == 0, "{calls} calls, {stops} stops");
}

#[test]
fn a_counter_of_calls_with_very_many_watchers_stops_the_port() {
    if std::env::var_os(ALONE).is_none() {
        let test = "vhost::tests::session::a_counter_of_calls_with_very_many_watchers_stops_the_port";
        let status = segue_lab::test_again(test, ALONE).unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    // Without event indexes there is a call for each packet.
    let mut bench = Bench::ready(feature::USUAL & !feature::EVENT_IDX);
    bench.front.offer_buffers(2048);
    bench.assert_traffic(0);
    // A hundred thousand of them.
    let counters: Vec<_> = (0..320).map(|_| bench.front.call_counter(TO_GUEST)).collect();
    let watchers: Vec<_> = (0..320).map(|_| super::super::sys::Events::new().unwrap()).collect();
    for (watcher, counter) in watchers.iter().flat_map(|watcher| counters.iter().map(move |one| (watcher, one))) {
        match watcher.add_level(counter.as_fd()) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                return segue_lab::skip_this_test("fs.epoll.max_user_watches leaves no 102,400 watches");
            }
            added => added.unwrap(),
        }
    }
    let begin = Instant::now();
    while bench.port.stops().total() == 0 {
        let packet = testing::load_frame(&mut bench.pages, &frame(true, 100, 0, Fill::Good));
        assert_eq!(bench.send(packet), Sent::All);
        bench.front.received();
        assert!(begin.elapsed() < Duration::from_secs(40));
    }
    bench.assert_stopped(Stop::CallBlocked);
}

#[test]
fn a_guest_goes_on_with_a_new_back_end() {
    let mut bench = Bench::ready(feature::USUAL);
    bench.front.offer_buffers(2048);
    (0..5).for_each(|seed| bench.assert_traffic(seed));
    // Two packets wait when the back end is killed.
    let waiting: Vec<Vec<u8>> = (10..12).map(|seed| frame(true, 100, seed, Fill::Good)).collect();
    (10..).zip(&waiting).for_each(|(n, one)| bench.front.send_packet(n, &PLAIN, one, &[]));
    let memory = bench.front.memory.try_clone().unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let port = VhostPort::new(Source::Connected(near), &VhostConfig { mtu: 1500 }).unwrap();
    let mut front = Frontend::with_memory(far, feature::USUAL, memory);
    [TO_GUEST, FROM_GUEST].into_iter().for_each(|queue| front.resume(queue));
    front.start();
    // It waits for a call that the first back end did not make any more, for chains that came back before.
    [TO_GUEST, FROM_GUEST].into_iter().for_each(|queue| front.set_suppression(queue, 0, 3));
    let mut next = Bench::of(port, front);
    next.port.listen().unwrap();
    assert_eq!([TO_GUEST, FROM_GUEST].map(|queue| next.front.calls(queue)), [1, 1]);
    assert_eq!(next.received(), waiting);
    next.front.offer_some(2048, 0);
    let sent = frame(true, 700, 3, Fill::Good);
    let packet = testing::load_frame(&mut next.pages, &sent);
    assert_eq!((next.send(packet), next.front.returned(TO_GUEST)), (Sent::All, vec![(5, 12 + sent.len() as u32)]));
}

#[test]
fn a_listener_takes_one_front_end_at_a_time_and_the_next_one_after_it() {
    let folder = std::env::temp_dir().join(format!("segue-vhost-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("guest.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let port = VhostPort::new(Source::Listener(listener), &VhostConfig { mtu: 1500 }).unwrap();
    assert_eq!(port.limits().mtu, 1500);
    let mut bench = Bench::of(port, Frontend::connect(&path, feature::USUAL));
    for round in 0..3 {
        bench.front.start();
        wait_until_readable(bench.port.link_fd().unwrap());
        bench.port.listen().unwrap();
        assert!(bench.port.is_ready(), "{round}");
        bench.front.offer_buffers(2048);
        bench.assert_traffic(round);
        let mut other = Frontend::connect(&path, feature::USUAL);
        bench.port.listen().unwrap();
        assert!(other.is_closed(), "two guests cannot have one port");
        bench.assert_traffic(round + 1);
        bench.front = Frontend::connect(&path, feature::USUAL);
        bench.port.listen().unwrap();
        assert_eq!(bench.port.stops().of(Stop::Ended), round as u64 + 1);
    }
    assert_eq!((bench.number("front_ends"), bench.number("front_ends_refused")), (4, 3));
    assert_eq!(bench.number(LAST_STOP), 1 + Stop::Ended.index() as u64);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Relays all available messages until a condition holds.
#[track_caller]
fn relay_until(relay: &mut relay::Relay, bench: &mut Bench, mut holds: impl FnMut(&mut Bench) -> bool) {
    let begin = Instant::now();
    while !holds(bench) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", bench.port.stops());
        relay.pass();
        bench.port.listen().unwrap();
    }
}

#[test]
fn a_relay_keeps_the_order_and_the_connection_where_a_socket_takes_nothing_for_a_while() {
    use std::io::{ErrorKind, Read, Write};
    let (mut front, far) = UnixStream::pair().unwrap();
    let (near, mut inner) = UnixStream::pair().unwrap();
    let mut relay = relay::Relay::new(far, near).unwrap();
    let numbered = |number: u64| -> Vec<u8> {
        let words = [message::SET_VRING_NUM, 1, 8];
        words.iter().flat_map(|word| word.to_le_bytes()).chain(number.to_le_bytes()).collect()
    };
    // The port reads nothing.
    let mut sent = 0;
    while !relay.is_held_up() {
        front.write_all(&numbered(sent)).unwrap();
        sent += 1;
        assert!(relay.pass(), "after {sent} messages");
    }
    // More wait at the front end, whose turn comes later.
    front.write_all(&numbered(sent)).unwrap();
    sent += 1;
    assert!(relay.pass() && relay.is_held_up());
    inner.set_nonblocking(true).unwrap();
    let (mut passed, mut bytes) = (Vec::new(), [0; 4096]);
    while passed.len() < sent as usize * 20 {
        match inner.read(&mut bytes) {
            Ok(len) if len > 0 => passed.extend_from_slice(&bytes[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => assert!(relay.pass()),
            ended => panic!("{ended:?}"),
        }
    }
    assert_eq!(passed, (0..sent).flat_map(numbered).collect::<Vec<u8>>());
    assert!(relay.pass() && !relay.is_held_up());
}

/// Returns a front end, its relay, and the connection of a port that reads nothing by itself.
fn relayed() -> (Frontend, relay::Relay, UnixStream) {
    let (front, far) = UnixStream::pair().unwrap();
    let (near, inner) = UnixStream::pair().unwrap();
    (Frontend::over(front, feature::USUAL), relay::Relay::new(far, near).unwrap(), inner)
}

/// Returns the number of descriptors of this process that are of the given file.
fn held(file: &Metadata) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let same = |other: Metadata| (other.dev(), other.ino()) == (file.dev(), file.ino());
    // Other tests close theirs meanwhile.
    all.filter(|fd| fd.as_ref().is_ok_and(|fd| std::fs::metadata(fd.path()).is_ok_and(same))).count()
}

/// Tests that the relay, and not the port, gives the pages of a guest's memory back.
#[test]
fn a_relay_holds_each_file_of_memory_for_longer_than_the_port() {
    let (mut front, mut relay, inner) = relayed();
    // The port reads each message, and drops what came with it.
    let read = |relay: &mut relay::Relay| {
        assert!(relay.pass());
        let mut fds = Vec::new();
        super::super::sys::receive(inner.as_fd(), &mut [0; 4096], &mut fds).unwrap();
        fds.len()
    };
    let other = || Frontend::over(UnixStream::pair().unwrap().0, 0).memory;
    let first = front.memory.metadata().unwrap();
    front.send_memory();
    assert_eq!(read(&mut relay), 1);
    front.memory = other();
    assert_eq!(held(&first), 1, "the relay alone has it");
    // Another table takes its place, and a region is added and taken away again.
    let second = front.memory.metadata().unwrap();
    front.send_memory();
    assert_eq!(read(&mut relay), 1);
    let (third, payload) = (other(), [vec![0; 8], region(0x9000_0000, 4096, 1 << 41, 0)].concat());
    front.send_with(message::ADD_MEM_REG, 1, &payload, &[third.as_fd()]);
    assert_eq!(read(&mut relay), 1);
    front.send_with(message::REM_MEM_REG, 1, &payload, &[third.as_fd()]);
    assert_eq!(read(&mut relay), 1);
    let gone = third.metadata().unwrap();
    drop(third);
    assert_eq!(held(&second), 2, "one of them is the front end's");
    let is_long = |left: Duration| (Duration::from_secs(60)..=HELD).contains(&left);
    assert!(relay.timeout().is_some_and(is_long) && relay.pass());
    assert_eq!((held(&first), held(&gone)), (1, 1), "it holds each once, although one came twice");
    // At the end it waits for the port's hangup.
    drop(front);
    assert!(!relay.pass());
    let remains = relay.end();
    let end = super::super::sys::receive(inner.as_fd(), &mut [0], &mut Vec::new()).unwrap();
    assert_eq!((end, held(&second)), (0, 1), "the port is told of the end");
    assert!(remains.wait().is_some_and(|(_, left)| left > HELD));
    drop(remains);
    assert_eq!([&first, &second, &gone].map(held), [0, 0, 0]);
}

/// Tests that the relay holds a file once, however often a front end sends its memory, and a limited number of files.
#[test]
fn a_front_end_may_send_its_memory_often_and_not_exchange_it_without_end() {
    let (mut front, mut relay, inner) = relayed();
    let drain = || super::super::sys::receive(inner.as_fd(), &mut [0; 4096], &mut Vec::new()).unwrap();
    let first = front.memory.metadata().unwrap();
    for _ in 0..200 {
        front.send_memory();
        assert!(relay.pass() && !relay.is_held_up());
        drain();
    }
    assert_eq!(held(&first), 3, "the front end's, and that of the memory now and of the memory before");
    let mut exchanges = 0;
    let refused = loop {
        front.memory = Frontend::over(UnixStream::pair().unwrap().0, 0).memory;
        front.send_memory();
        let goes_on = relay.pass();
        drain();
        if !goes_on {
            let mut bytes = [0; 4096];
            let len = super::super::sys::receive(inner.as_fd(), &mut bytes, &mut Vec::new()).unwrap();
            break bytes[..len].to_vec();
        }
        exchanges += 1;
    };
    assert_eq!((exchanges, refused), (128, Message::refusal(Stop::MemoryRegions).bytes));
    assert_eq!(held(&first), 1, "it is held until the port has let all of them go");
}

#[test]
fn a_relay_hands_over_front_ends_and_checks_their_descriptors() {
    type Wrong = fn(&mut Frontend);
    let wrongs: [(Stop, Wrong); 10] = [
        (Stop::MemoryLength, |front| {
            // One page of two is in the file.
            let memory = front.memory.try_clone().unwrap();
            let payload = [vec![0; 8], region(0x9000_0000, 8192, 1 << 41, MEMORY_LEN - 4096)].concat();
            front.send_with(message::ADD_MEM_REG, 1, &payload, &[memory.as_fd()]);
        }),
        (Stop::MemoryLength, |front| {
            let null = std::fs::File::open("/dev/null").unwrap();
            let payload = [vec![0; 8], region(0x9000_0000, 0, 1 << 41, 0)].concat();
            front.send_with(message::ADD_MEM_REG, 1, &payload, &[null.as_fd()]);
        }),
        (Stop::QueueKick, |front| {
            let (end, _other) = UnixStream::pair().unwrap();
            front.send_with(message::SET_VRING_CALL, 1, &0u64.to_le_bytes(), &[end.as_fd()]);
        }),
        // Anonymous files that are no event counters: a poll set and a timer.
        (Stop::QueueKick, |front| {
            let set = super::super::sys::Events::new().unwrap();
            front.send_with(message::SET_VRING_KICK, 1, &1u64.to_le_bytes(), &[set.as_fd()]);
        }),
        (Stop::MessageDescriptors, |front| {
            let timer = super::super::sys::Timer::new().unwrap();
            front.send_with(message::GET_FEATURES, 1, &[], &[timer.as_fd()]);
        }),
        // An access to files of other file systems, and a close of them, may wait for another process or a disk.
        (Stop::MemoryFile, |front| {
            let file = std::fs::File::open("/proc/self/exe").unwrap();
            let payload = [vec![0; 8], region(0x9000_0000, 4096, 1 << 41, 0)].concat();
            front.send_with(message::ADD_MEM_REG, 1, &payload, &[file.as_fd()]);
        }),
        (Stop::MemoryFile, |front| {
            let file = std::fs::File::open("/proc/self/exe").unwrap();
            let payload = [vec![0; 8], region(GUEST_BASE, MEMORY_LEN, USER_BASE, 0)].concat();
            front.send_with(message::REM_MEM_REG, 1, &payload, &[file.as_fd()]);
        }),
        (Stop::QueueKick, |front| {
            let file = std::fs::File::open("/proc/self/exe").unwrap();
            front.send_with(SET_VRING_ERR, 1, &0u64.to_le_bytes(), &[file.as_fd()]);
        }),
        (Stop::MessageLength, |front| front.send_raw(&[0xff; 12])),
        (Stop::MessageIncomplete, |front| {
            front.send_raw(&[1, 0, 0]);
            front.stream.shutdown(std::net::Shutdown::Write).unwrap();
        }),
    ];
    let (supply, supplied) = segue_testkit::vhost::message_pair().unwrap();
    let port = VhostPort::new(Source::Supplied(supplied), &VhostConfig { mtu: 1500 }).unwrap();
    let mut bench = Bench::of(port, Frontend::over(UnixStream::pair().unwrap().0, 0));
    for (n, (reason, wrong)) in wrongs.into_iter().enumerate() {
        let before = bench.port.stops().of(reason);
        let (front, far) = UnixStream::pair().unwrap();
        let (near, inner) = UnixStream::pair().unwrap();
        segue_testkit::vhost::hand_over(&supply, &inner);
        drop(inner);
        let mut relay = relay::Relay::new(far, near).unwrap();
        bench.front = Frontend::over(front, feature::USUAL);
        bench.front.start();
        relay_until(&mut relay, &mut bench, |bench| bench.port.is_ready());
        bench.front.send(message::GET_QUEUE_NUM, &[]);
        relay_until(&mut relay, &mut bench, |bench| {
            bench.front.reply().is_some_and(|(number, _)| number == message::GET_QUEUE_NUM)
        });
        bench.front.offer_buffers(2048);
        bench.assert_traffic(n);
        wrong(&mut bench.front);
        let begin = Instant::now();
        while relay.pass() {
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
        drop(relay);
        bench.port.listen().unwrap();
        assert_eq!(bench.port.stops().of(reason), 1 + before, "{:?}", bench.port.stops());
        assert_eq!(bench.port.stops().total(), n as u64 + 1);
    }
    // The process that supplies front ends is gone: the port stays.
    drop(supply);
    bench.port.listen().unwrap();
    bench.port.listen().unwrap();
    assert_eq!(bench.number("front_ends"), 10);
}
