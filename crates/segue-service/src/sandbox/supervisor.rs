//! The process that stays root and only waits.

use std::os::fd::AsFd;
use std::process;
use std::time::Duration;

use segue_host::signals::{SignalAction, Signals};
use segue_host::sys::{self, Ended, Pid, Want};

use crate::control_server::SocketFile;
use crate::report::to_stderr;

/// Waits for `child`, passes signals on to it, removes the socket, and ends with the child's status.
pub(super) fn run(child: Pid, signals: &mut Signals, socket: &SocketFile) -> ! {
    // The devices belong to the child alone: an interface must go when the child ends. This closes the old descriptor
    // of `signals` as well, which nothing uses again, since this function never returns.
    sys::close_from(3);
    match Signals::new() {
        Ok(again) => std::mem::forget(std::mem::replace(signals, again)),
        Err(_) => finish(Ended::Exit(1), socket),
    }
    let mut now = false;
    loop {
        // The child may have ended before SIGCHLD could be read, and a signal may come without it.
        match sys::wait(child, false) {
            Ok(Some(Ended::Signal(libc::SIGKILL))) if now => finish(Ended::Exit(130), socket),
            Ok(Some(ended)) => finish(ended, socket),
            Ok(None) => {}
            Err(_) => finish(Ended::Exit(1), socket),
        }
        let _ = sys::poll(&[(signals.as_fd(), Want::Read)], Duration::from_secs(60));
        while let Ok(Some((action, number))) = signals.receive() {
            match action {
                SignalAction::Child => {}
                SignalAction::StopNow => {
                    now = true;
                    let _ = sys::kill(child, libc::SIGKILL);
                }
                SignalAction::Stop | SignalAction::Counters | SignalAction::Hangup => {
                    let _ = sys::kill(child, number);
                }
            }
        }
    }
}

fn finish(ended: Ended, socket: &SocketFile) -> ! {
    socket.remove();
    process::exit(match ended {
        Ended::Exit(status) => status,
        Ended::Signal(number) => {
            to_stderr(&format!(
                "error: the process that moves packets was ended by signal {number}\n\
                 why:  a fault of segue, or somebody sent it\n\
                 try:  start again; report it with the output of segue --version -v -j\n"
            ));
            1
        }
    })
}
