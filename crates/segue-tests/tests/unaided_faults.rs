//! Tests of faults to which a program gives no help, so that an earlier one can be tried too: the thread that moves a
//! tunnel's packets panics or loops in its own code, or its process is stopped. Packets pass again, no report calls the
//! instance healthy in between, and no other instance is affected.
#![cfg(target_arch = "x86_64")]

use std::time::Duration;

use segue_tests::faults::{Fault, PATIENCE, Service, tail};
use segue_tests::spoil::Spoiled;
use segue_tests::{skip, test_name};

/// Longest time from a fault to packets again: five times the aim.
const LONGEST: Duration = Duration::from_secs(15);

/// Causes a fault of one of two tunnels.
#[track_caller]
fn pass_again_after(name: &str, fault: Fault) {
    let Some(service) = Service::start(name, 2, "", &[]) else { return };
    if segue_lab::which("nm").is_none() {
        return skip(name, "not installed: nm");
    }
    assert!(service.passes(1, PATIENCE) && service.passes(2, PATIENCE), "{}", tail(&service.near));
    let other = service.patient_pid("sg2");
    let took = service.fault(1, fault);
    println!("{fault:?}: {} ms", took.as_millis());
    assert!(took < LONGEST, "{took:?} until packets pass again");
    assert_eq!(service.patient_pid("sg2"), other, "the other tunnel has its process");
}

#[test]
fn packets_pass_again_after_a_panic_of_the_packet_thread_in_its_own_code() {
    pass_again_after(test_name!(), Fault::Round(Spoiled::Panic));
}

#[test]
fn packets_pass_again_after_an_endless_loop_of_the_packet_thread_in_its_own_code() {
    pass_again_after(test_name!(), Fault::Round(Spoiled::Loop));
}

#[test]
fn packets_pass_again_after_the_process_that_moves_them_was_stopped() {
    pass_again_after(test_name!(), Fault::Worker(libc::SIGSTOP));
}
