//! Tests of the heartbeat without a process beside.

use super::*;

const TICK: Duration = Duration::from_millis(250);
const LIMITS: Limits = Limits {
    cpu: Duration::from_millis(100),
    cpu_beside: Duration::from_millis(200),
    round: Duration::from_secs(1),
    wall: Duration::from_secs(1),
};

/// Returns the watch of a process with this heartbeat, without its file in `/proc`.
fn watch_of(heartbeat: &Heartbeat, limits: Limits) -> Watch {
    Watch {
        heartbeat: heartbeat.clone(),
        limits,
        stat: None,
        seen: vec![LastBeat::default(); Thread::all(heartbeat.workers).count()],
        cpu: None,
        is_asleep: false,
        ended: 0,
        was_away: false,
    }
}

fn watch() -> (Heartbeat, Watch) {
    let heartbeat = Heartbeat::new(1).unwrap();
    let watch = watch_of(&heartbeat, LIMITS);
    (heartbeat, watch)
}

#[test]
fn a_thread_that_neither_waits_nor_gets_on_is_a_fault_after_its_time() {
    let (heartbeat, mut watch) = watch();
    let mut checks = |heartbeat: &dyn Fn()| {
        let all: Vec<Option<Stall>> = (0..6).map(|_| (heartbeat(), watch.check(TICK, TICK)).1).collect();
        all.into_iter().flatten().next()
    };
    assert_eq!(checks(&|| ()), None, "nothing has begun");
    assert_eq!(checks(&|| heartbeat.beat(Thread::Control)), None);
    let found = checks(&|| ()).unwrap();
    assert_eq!((found.thread, found.how), (Thread::Control, How::Wall(Duration::from_secs(1))));
    heartbeat.over(Thread::Control);
    let during = heartbeat.unwatched(Thread::Health, || checks(&|| ()));
    assert_eq!(during, None, "others may take their time");
    assert_eq!(checks(&|| ()).map(|found| found.thread), Some(Thread::Health), "the thread itself may not");
    heartbeat.over(Thread::Health);
    heartbeat.of(Thread::Packets).store(6 | WAITS, Ordering::Relaxed);
    assert_eq!(checks(&|| ()), None, "one has ended, and one waits for packets");
}

#[test]
fn a_packet_loop_may_have_more_time_than_the_threads_beside_it_and_no_two_share_a_number() {
    let heartbeat = Heartbeat::new(2).unwrap();
    let threads: Vec<Thread> = Thread::all(2).collect();
    for (place, thread) in threads.iter().enumerate() {
        assert_eq!(thread.place(), place, "{thread}");
        let limits = Limits { round: 2 * LIMITS.wall, ..LIMITS };
        let mut watch = watch_of(&heartbeat, limits);
        heartbeat.beat(*thread);
        let found = (0..20).find_map(|_| watch.check(TICK, TICK)).unwrap();
        let is_loop = matches!(thread, Thread::Packets | Thread::Worker(_));
        let limit = if is_loop { limits.round } else { limits.wall };
        assert_eq!(found, Stall { thread: *thread, how: How::Wall(limit) });
        heartbeat.over(*thread);
    }
}

#[test]
fn a_round_that_does_not_end_is_seen_and_others_take_no_time() {
    let heartbeat = Heartbeat::new(1).unwrap();
    let packets = heartbeat.of(Thread::Packets);
    let long = Duration::from_secs(3600);
    for number in [NOT_BEGUN, OVER, 4 | WAITS] {
        packets.store(number, Ordering::Relaxed);
        assert!(!heartbeat.is_stuck(Thread::Packets, long), "{number}");
    }
    packets.store(4, Ordering::Relaxed);
    assert!(heartbeat.is_stuck(Thread::Packets, Duration::from_millis(1)));
    let looked = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while looked.load(Ordering::Relaxed) == 0 {
                heartbeat.beat(Thread::Packets);
            }
        });
        assert!(!heartbeat.is_stuck(Thread::Packets, long));
        looked.store(1, Ordering::Relaxed);
    });
}

#[test]
fn a_round_is_not_stuck_because_the_watching_thread_did_not_run() {
    let heartbeat = Heartbeat::new(1).unwrap();
    heartbeat.beat(Thread::Packets);
    let looks = std::cell::Cell::new(0);
    let pause = || {
        thread::sleep(Duration::from_millis(60));
        looks.set(looks.get() + 1);
        if looks.get() == 3 {
            heartbeat.beat(Thread::Packets);
        }
    };
    assert!(!heartbeat.stays(Thread::Packets, Duration::from_millis(50), pause));
    assert_eq!(looks.get(), 3);
    assert!(heartbeat.stays(Thread::Packets, Duration::from_millis(50), pause));
    assert_eq!(looks.get(), 8, "ten milliseconds a look");
}

#[test]
fn processor_time_of_an_earlier_round_does_not_count_whenever_the_supervisor_did_not_run() {
    let (heartbeat, mut watch) = watch();
    let used = |cpu: Duration| Some(Usage { is_traced: false, has_ended: false, cpu, user: Duration::ZERO });
    heartbeat.beat(Thread::Packets);
    let late = |_: Option<&File>| {
        // Between the two reads the loop gets on, and waits for packets.
        heartbeat.beat(Thread::Packets);
        heartbeat.wait(Thread::Packets);
        used(Duration::ZERO)
    };
    assert_eq!(watch.check_by(late, TICK, TICK), None);
    assert_eq!(watch.check_by(|_| used(LIMITS.cpu), TICK, TICK), None);
    let found = watch.check_by(|_| used(2 * LIMITS.cpu), TICK, TICK);
    assert_eq!(found, Some(Stall { thread: Thread::Packets, how: How::Cpu(LIMITS.cpu) }));
    let much_later = |_: Option<&File>| {
        heartbeat.beat(Thread::Packets);
        heartbeat.wait(Thread::Packets);
        used(9 * LIMITS.cpu)
    };
    assert_eq!(watch.check_by(much_later, TICK, TICK), None, "used in the rounds between the two reads");
}

#[test]
fn processor_time_of_a_machine_that_stood_still_is_judged_by_the_next_check() {
    let (heartbeat, mut watch) = watch();
    let used =
        |times: u32| Some(Usage { is_traced: false, has_ended: false, cpu: times * LIMITS.cpu, user: Duration::ZERO });
    let hour = Duration::from_secs(3600);
    heartbeat.beat(Thread::Packets);
    assert_eq!(watch.check_by(|_| used(0), TICK, TICK), None);
    assert_eq!(watch.check_by(|_| used(2), hour, TICK), None);
    heartbeat.beat(Thread::Packets);
    assert_eq!(watch.check_by(|_| used(2), TICK, TICK), None, "it got on");
    assert_eq!(watch.check_by(|_| used(5), hour, TICK), None);
    let found = watch.check_by(|_| used(5), TICK, TICK);
    assert_eq!(found, Some(Stall { thread: Thread::Packets, how: How::Cpu(3 * LIMITS.cpu) }));
}

#[test]
fn all_processor_time_of_the_first_round_after_a_wait_counts() {
    let (heartbeat, mut watch) = watch();
    let used = |cpu: Duration| Some(Usage { is_traced: false, has_ended: false, cpu, user: Duration::ZERO });
    let packets = heartbeat.of(Thread::Packets);
    let begin = LIMITS.cpu;
    packets.store(8 | WAITS, Ordering::Relaxed);
    assert_eq!(watch.check_by(|_| used(begin), TICK, TICK), None);
    packets.store(8, Ordering::Relaxed);
    assert_eq!(watch.check_by(|_| used(begin + LIMITS.cpu / 2), TICK, TICK), None, "one look is not enough");
    let found = watch.check_by(|_| used(begin + LIMITS.cpu), TICK, TICK);
    assert_eq!(found, Some(Stall { thread: Thread::Packets, how: How::Cpu(LIMITS.cpu) }));
    // Of any later round, it is not known when it began.
    packets.store(10 | WAITS, Ordering::Relaxed);
    assert_eq!(watch.check_by(|_| used(2 * begin), TICK, TICK), None);
    packets.store(12, Ordering::Relaxed);
    assert_eq!(watch.check_by(|_| used(2 * begin + LIMITS.cpu / 2), TICK, TICK), None);
    assert_eq!(watch.check_by(|_| used(2 * begin + LIMITS.cpu), TICK, TICK), None);
}

#[test]
fn a_packet_loop_that_has_ended_without_its_process_is_a_fault_whether_it_waited_or_not() {
    for number in [4, 4 | WAITS] {
        let (heartbeat, mut watch) = watch();
        heartbeat.of(Thread::Packets).store(number, Ordering::Relaxed);
        let zombie = || usage("7 (segue) Z 1 7 7 0 -1 4227404 262 0 0 0 0 7 0 0 20 0 4");
        for _ in 0..5 {
            assert_eq!(watch.check_by(|_| None, Duration::from_millis(150), TICK), None, "a long round");
        }
        for _ in 1..ENDED {
            assert_eq!(watch.check_by(|_| zombie(), 2 * TICK, 2 * TICK), None, "its process may be ending");
        }
        let found = watch.check_by(|_| zombie(), TICK, TICK);
        assert_eq!(found, Some(Stall { thread: Thread::Packets, how: How::Ended }), "{number}");
        heartbeat.over(Thread::Packets);
        assert_eq!(watch.check_by(|_| zombie(), TICK, TICK), None, "it was done");
        heartbeat.of(Thread::Packets).store(NOT_BEGUN, Ordering::Relaxed);
        assert!((0..9).all(|_| watch.check_by(|_| zombie(), TICK, TICK).is_none()), "a start that failed says why");
    }
}

#[test]
fn a_thread_beside_the_first_worker_that_has_ended_without_its_process_is_a_fault_whether_it_waited_or_not() {
    for (thread, waits) in
        [Thread::Worker(1), Thread::Health].into_iter().flat_map(|thread| [(thread, true), (thread, false)])
    {
        let heartbeat = Heartbeat::new(2).unwrap();
        let mut watch = watch_of(&heartbeat, LIMITS);
        let other = heartbeat.clone();
        let end = move || {
            other.beat(thread);
            if waits {
                other.wait(thread);
            }
        };
        thread::spawn(end).join().unwrap();
        assert_eq!(watch.check(TICK, TICK), None);
        // Its clock can be read for a moment after the thread was joined.
        let number = heartbeat.of(thread).load(Ordering::Relaxed);
        while CpuOfRound(heartbeat.cpu_of(thread).load(Ordering::Relaxed)).of(number) != GONE {
            heartbeat.note();
            thread::yield_now();
        }
        for _ in 1..ENDED {
            assert_eq!(watch.check(TICK, TICK), None, "its process may be ending");
        }
        assert_eq!(watch.check(TICK, TICK), Some(Stall { thread, how: How::Ended }), "{waits}");
        heartbeat.over(thread);
        heartbeat.note();
        assert!((0..9).all(|_| watch.check(TICK, TICK).is_none()), "it was done");
    }
}

#[test]
fn time_in_which_the_supervisor_did_not_run_counts_as_two_looks() {
    let (heartbeat, mut watch) = watch();
    heartbeat.beat(Thread::Packets);
    assert_eq!(watch.check(TICK, TICK), None);
    assert_eq!(watch.check(Duration::from_secs(3600), TICK), None, "the machine stood still");
    assert_eq!(watch.check(TICK, TICK), None);
    assert!(watch.check(TICK, TICK).is_some());
}

#[test]
fn a_packet_loop_in_the_middle_of_a_round_is_late_until_the_next_one() {
    let (heartbeat, mut watch) = watch();
    let mut looks =
        |count: usize| -> Vec<bool> { (0..count).map(|_| (watch.check(TICK, TICK), watch.is_late()).1).collect() };
    heartbeat.beat(Thread::Packets);
    assert_eq!(looks(4), [false, false, true, true]);
    heartbeat.beat(Thread::Packets);
    assert_eq!(looks(2), [false, false]);
    heartbeat.wait(Thread::Packets);
    assert_eq!(looks(6), [false; 6]);
}

#[test]
fn a_worker_sleeps_that_waits_and_uses_no_processor_time() {
    let (heartbeat, watch) = watch();
    let own = File::open("/proc/thread-self/stat").unwrap();
    let mut watch = Watch { stat: Some(own), ..watch };
    heartbeat.of(Thread::Packets).store(8 | WAITS, Ordering::Relaxed);
    assert!(!(watch.check(TICK, TICK), watch.is_asleep()).1, "nothing is known before the first look");
    // The clock of the thread has steps of 10 ms, one of which may end in between.
    assert!((0..100).any(|_| (watch.check(TICK, TICK), watch.is_asleep()).1));
    heartbeat.of(Thread::Packets).store(8, Ordering::Relaxed);
    assert!(!(0..100).any(|_| (watch.check(TICK, TICK), watch.is_asleep()).1), "it is in a round");
}

#[test]
fn a_loop_is_told_by_the_processor_time_of_the_thread() {
    let (heartbeat, watch) = watch();
    let own = File::open("/proc/thread-self/stat").unwrap();
    let mut watch = Watch { stat: Some(own), ..watch };
    heartbeat.of(Thread::Packets).store(8 | WAITS, Ordering::Relaxed);
    let begin = read(watch.stat.as_ref().unwrap()).unwrap();
    assert_eq!(watch.check(TICK, TICK), None);
    let mut spun = 0u64;
    let stall = loop {
        (0..100_000).for_each(|n| spun = std::hint::black_box(spun.wrapping_mul(31) + n));
        if let Some(stall) = watch.check(Duration::ZERO, TICK) {
            break stall;
        }
    };
    let How::Cpu(used) = stall.how else { panic!("{stall:?}") };
    let end = read(watch.stat.as_ref().unwrap()).unwrap();
    assert!(used >= watch.limits.cpu && used <= end.cpu - begin.cpu, "{used:?}");
}

#[test]
fn a_loop_of_a_further_worker_is_told_by_the_time_that_its_instance_notes() {
    let heartbeat = Heartbeat::new(3).unwrap();
    let mut watch = watch_of(&heartbeat, LIMITS);
    for worker in [1, 2] {
        heartbeat.of(Thread::of_worker(worker)).store(8 | WAITS, Ordering::Relaxed);
    }
    let mut checks = || (0..2).find_map(|_| watch.check(TICK, TICK));
    assert_eq!(checks(), None);
    let own = ThreadClock::of_this_thread().unwrap();
    let other = heartbeat.clone();
    thread::spawn(move || other.measure(Thread::Worker(1))).join().unwrap().unwrap();
    heartbeat.over(Thread::Worker(1));
    heartbeat.measure(Thread::Worker(2)).unwrap();
    heartbeat.note();
    let begin = own.read().unwrap();
    let stall = spin(&heartbeat, &mut checks);
    let How::Cpu(used) = stall.how else { panic!("{stall:?}") };
    assert!(used >= LIMITS.cpu && used <= own.read().unwrap() - begin + TICK, "{used:?}");
    assert_eq!(stall.thread.to_string(), "packet loop of worker 2");
    // The next round begins anew, whatever the thread has used before.
    heartbeat.of(Thread::Worker(2)).store(10 | WAITS, Ordering::Relaxed);
    assert_eq!(checks(), None, "what was noted is of the round before");
    heartbeat.note();
    assert_eq!(checks(), None);
}

/// Uses the processor, and notes that, until a check finds a fault.
fn spin(heartbeat: &Heartbeat, checks: &mut impl FnMut() -> Option<Stall>) -> Stall {
    let mut spun = 0u64;
    loop {
        (0..100_000).for_each(|n| spun = std::hint::black_box(spun.wrapping_mul(31) + n));
        heartbeat.note();
        if let Some(stall) = checks() {
            return stall;
        }
    }
}

#[test]
fn a_loop_of_a_thread_beside_the_packets_is_told_by_its_time_unless_it_works_for_others() {
    let (heartbeat, mut watch) = watch();
    let mut checks = || watch.check(Duration::ZERO, TICK);
    heartbeat.beat(Thread::Control);
    heartbeat.unwatched(Thread::Control, || {
        let own = ThreadClock::of_this_thread().unwrap();
        let begin = own.read().unwrap();
        while own.read().unwrap() - begin < 2 * LIMITS.cpu_beside {
            heartbeat.note();
            assert_eq!(checks(), None);
        }
    });
    let stall = spin(&heartbeat, &mut checks);
    let How::Cpu(used) = stall.how else { panic!("{stall:?}") };
    assert!(used >= LIMITS.cpu_beside, "{used:?}");
    assert_eq!(stall.thread, Thread::Control);
    heartbeat.beat(Thread::Control);
    assert_eq!((checks(), checks()), (None, None), "a new round");
}

#[test]
fn a_line_of_the_kernel_is_read_whatever_the_name_holds() {
    let line = "7 (a) R 1) t 1 7 7 0 -1 4194560 107 0 0 0 123 45 0 0 20 0 3 0 99 2 3";
    let [cpu, user] = [1680, 1230].map(Duration::from_millis);
    assert_eq!(usage(line), Some(Usage { is_traced: true, has_ended: false, cpu, user }));
    for bad in ["", "7 (a", "7 (a) R", "7 (a) R 1 7 7 0 -1 4194560 107 0 0 0 x 45"] {
        assert_eq!(usage(bad), None, "{bad}");
    }
}
