//! The invariants that hold in every interleaving, and for feeds in those with at most two preemptions.

use loom::sync::Arc;
use loom::thread;

use crate::board::{Board, Group, Sink};
use crate::knobs::{Dial, Knob, Knobs, Values};
use crate::router::feed::feed;
use crate::router::tables::Message;

fn knob(name: &str) -> Knob {
    let values = Values::Number { min: 0, max: 100 };
    Knob { name: name.into(), values, unit: "", help: "", fixed: None, needs: None, default: 0 }
}

/// Passes both knobs of a worker, `a` and `b`, to the dial.
fn walk(dial: &mut Dial<'_>, values: &mut [u64; 2]) {
    let [a, b] = values;
    dial.number(|| knob("a"), a);
    dial.number(|| knob("b"), b);
}

fn knobs() -> Arc<Knobs> {
    Arc::new(Knobs::of(|dial| walk(dial, &mut [0; 2])))
}

#[test]
fn a_generation_that_was_read_has_its_values_and_no_change_is_lost() {
    loom::model(|| {
        let knobs = knobs();
        let setter = {
            let knobs = Arc::clone(&knobs);
            thread::spawn(move || {
                assert_eq!(knobs.set("a", 5), Some(0));
                assert_eq!(knobs.set("b", 7), Some(0));
            })
        };
        let (mut seen, mut values) = (0, [0; 2]);
        for _ in 0..2 {
            knobs.follow(&mut seen, |dial| walk(dial, &mut values));
            assert!(seen < 1 || values[0] == 5, "{seen}: {values:?}");
            assert!(seen < 2 || values[1] == 7, "{seen}: {values:?}");
        }
        setter.join().unwrap();
        knobs.follow(&mut seen, |dial| walk(dial, &mut values));
        assert_eq!((seen, values), (2, [5, 7]));
    });
}

#[test]
fn of_two_that_set_one_knob_the_worker_ends_with_the_value_that_is_read() {
    loom::model(|| {
        let knobs = knobs();
        let setters = [5, 6].map(|value| {
            let knobs = Arc::clone(&knobs);
            thread::spawn(move || knobs.set("a", value).unwrap())
        });
        let (mut seen, mut values) = (0, [0; 2]);
        knobs.follow(&mut seen, |dial| walk(dial, &mut values));
        let before = setters.map(|setter| setter.join().unwrap());
        assert!(before == [0, 5] || before == [6, 0], "each says what it replaced: {before:?}");
        knobs.follow(&mut seen, |dial| walk(dial, &mut values));
        assert_eq!(Some(values[0]), knobs.get("a").map(|(_, value)| value));
    });
}

#[test]
fn a_counter_never_goes_back_and_the_last_values_are_exact() {
    loom::model(|| {
        let collect = |value: u64| {
            move |sink: &mut Sink<'_>| {
                sink.put("p", Group::Receive, "packets", value);
                sink.put("p", Group::Receive, "bytes", 100 * value);
            }
        };
        let board = Arc::new(Board::new(collect(0)));
        let worker = {
            let board = Arc::clone(&board);
            thread::spawn(move || (1..=2).for_each(|value| board.publish(collect(value))))
        };
        let read = || [board.value(0), board.value(1)];
        let (first, second) = (read(), read());
        assert!(first[0] <= second[0] && first[1] <= second[1], "{first:?} {second:?}");
        assert!(second[0] <= 2 && second[1] % 100 == 0, "{second:?}");
        worker.join().unwrap();
        assert_eq!(read(), [2, 200]);
    });
}

#[test]
fn a_router_that_waits_for_its_feed_gets_every_message_in_order() {
    // Three threads and their locks have more interleavings than a day has seconds: those with up to two preemptions,
    // which is where faults are found, and all of what follows from waiting.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let (sender, mut feed) = feed().unwrap();
        let senders = [10, 20].map(|first| {
            let sender = sender.clone();
            thread::spawn(move || {
                (0..if first == 10 { 2 } else { 1 }).for_each(|n| assert!(sender.send(Message(first + n))))
            })
        });
        let mut got = Vec::new();
        while got.len() < 3 {
            // Loom fails where this waits for ever.
            feed.wait();
            while let Some(Message(number)) = feed.next() {
                got.push(number);
            }
            // The byte may be there before its message.
            thread::yield_now();
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        assert!(feed.next().is_none() && feed.is_silent(), "no byte is left without its message");
        let of_first: Vec<u32> = got.iter().copied().filter(|number| *number < 20).collect();
        assert_eq!((of_first, got.len()), (vec![10, 11], 3));
    });
}
