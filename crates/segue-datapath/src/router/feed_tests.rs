use std::io::{PipeReader, PipeWriter, Read, pipe};
use std::mem;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use super::feed::{Feed, FeedSender, feed};
use super::tables::Message;

/// Returns a message with `number` neighbours.
fn message(number: usize) -> Message {
    Message::Neighbours(Vec::with_capacity(number))
}

/// Returns a feed, and ends of pipes from which nothing can be read and to which nothing can be written.
fn feed_and_failing_ends() -> (FeedSender, Feed, PipeReader, PipeWriter) {
    let (sender, receiver) = feed().unwrap();
    let (reader, writer) = pipe().unwrap();
    (sender, receiver, OwnedFd::from(writer).into(), OwnedFd::from(reader).into())
}

#[test]
fn a_message_whose_byte_cannot_be_written_for_a_moment_arrives_afterwards_and_no_router_waits_for_the_byte() {
    let (sender, mut feed, _, failing) = feed_and_failing_ends();
    let writer = mem::replace(&mut *sender.wake.lock().unwrap(), failing);
    let wake = sender.wake.clone();
    let sending = thread::spawn(move || sender.send(message(1)));
    for _ in 0..20 {
        assert!(feed.next().is_none() && !sending.is_finished());
        thread::sleep(Duration::from_millis(1));
    }
    *wake.lock().unwrap() = writer;
    assert!(sending.join().unwrap(), "the router has not ended");
    assert!(matches!(feed.next(), Some(Message::Neighbours(_))));
    drop(feed);
}

#[test]
fn a_byte_that_cannot_be_read_for_a_moment_is_read_by_a_later_call() {
    let (sender, mut feed, failing, _) = feed_and_failing_ends();
    assert!(sender.send(message(1)) && sender.send(message(2)));
    let reader = mem::replace(&mut feed.wake, failing);
    assert!(feed.next().is_some());
    feed.wake = reader;
    assert!(feed.next().is_some());
    assert!(feed.next().is_none());
    drop(sender);
    let mut left = Vec::new();
    feed.wake.read_to_end(&mut left).unwrap();
    assert_eq!(left, [], "the router would be woken for ever");
}

#[test]
fn a_sender_learns_that_the_router_has_ended() {
    let (sender, feed) = feed().unwrap();
    drop(feed);
    assert!(!sender.send(message(1)));
}
