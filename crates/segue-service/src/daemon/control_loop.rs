//! The control loop: it handles signals and requests of the supervisor while another thread moves packets.

use std::io::{self, PipeReader};
use std::os::fd::AsFd;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_control::event::{LogEntry, LogEvent};
use segue_control::model::{Complaint, Instance};
use segue_host::signals::{SignalAction, Signals};
use segue_host::sys::{self, Want};

use super::kernel::Forwarding;
use super::show;
use crate::fault::Vitals;
use crate::handover::sys::is_passing;
use crate::handover::{Line, Ports, Record};
use crate::heartbeat::{BEAT_INTERVAL, Thread};
use crate::report::Report;
use crate::socket_file::SocketFile;

/// Interval at which the loop notes the processor time of several workers, or looks whether the kernel forwards.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which it looks whether the packet loop has ended, once that was requested.
const END_INTERVAL: Duration = Duration::from_millis(10);
/// Longest wait for the packet loop to end by itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// Event sources of the control loop, and the state from which it answers requests.
pub(super) struct ControlLoop<'a> {
    pub(super) signals: &'a mut Signals,
    pub(super) line: Option<&'a Line>,
    pub(super) ports: &'a Ports,
    pub(super) socket: &'a SocketFile,
    /// Becomes readable when a packet loop has ended, or is to end.
    pub(super) stopped: PipeReader,
    pub(super) hurry: Option<Box<dyn Fn() + Send>>,
    pub(super) forwarding: Option<Forwarding>,
    pub(super) vitals: &'a Vitals,
}

/// Handles events until a signal requests the end or the packet loop has ended.
pub(super) fn wait(
    control: &mut ControlLoop<'_>,
    ended: &AtomicBool,
    snapshot: &impl Fn() -> Instance,
    out: &dyn Report,
) -> Result<(), Error> {
    let mut forwards = false;
    let has_checks = control.forwarding.is_some() || control.vitals.heartbeat.workers() > 1;
    let mut interval = if has_checks { CHECK_INTERVAL } else { BEAT_INTERVAL };
    let mut is_stopped = false;
    loop {
        control.vitals.beat(Thread::Signals);
        control.vitals.heartbeat.note();
        segue_host::stdout::flush();
        let mut fds = vec![(control.signals.as_fd(), Want::Read)];
        fds.extend((!is_stopped).then_some((control.stopped.as_fd(), Want::Read)));
        let line_at = fds.len();
        fds.extend(control.line.map(|line| (line.as_fd(), Want::Read)));
        let ready = sys::poll(&fds, interval)
            .map_err(|error| Error::system("cannot wait", &error, "start again").why("the kernel refused to poll"))?;
        if ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        if !is_stopped && ready.get(1) == Some(&true) {
            (is_stopped, interval) = (true, END_INTERVAL);
        }
        let complaint = control.forwarding.as_ref().and_then(Forwarding::complaint);
        if let Some(Complaint { what, why, .. }) = complaint.as_ref().filter(|_| !forwards) {
            out.event(&LogEntry::new(LogEvent::Forwarding, format!("{what}: {}", why.as_deref().unwrap_or_default())));
        }
        forwards = complaint.is_some();
        if let (Some(line), Some(true)) = (control.line, ready.get(line_at)) {
            control.line = answer(line, control.ports).then_some(line);
        }
        while let Ok(Some((action, _))) = control.signals.receive() {
            match action {
                SignalAction::Stop => return Ok(()),
                SignalAction::StopNow => leave_now(control.socket),
                SignalAction::Counters => {
                    let instance = snapshot();
                    let text = format!("{}: {}", instance.name, show::counters_text(&instance));
                    out.event(&LogEntry::new(LogEvent::Counters, text).with("instance", &*instance.name));
                }
                SignalAction::Child | SignalAction::Hangup => {}
            }
        }
    }
}

/// Answers a request of the supervisor for the ports. Returns whether the line is still of use: it is not once the
/// supervisor has ended, which ends this process as well, by a signal, or has sent what is no record. After a failure
/// that lasts for a moment the supervisor may request them again.
fn answer(line: &Line, ports: &Ports) -> bool {
    let answered = line.receive(Duration::ZERO).and_then(|(record, _)| match record {
        Record::Request => ports.give(line),
        _ => Ok(()),
    });
    answered.map_or_else(|error| error.kind() != io::ErrorKind::UnexpectedEof && is_passing(&error), |()| true)
}

/// Ends the process at once; the kernel removes the interface with its descriptor.
fn leave_now(socket: &SocketFile) -> ! {
    socket.remove();
    process::exit(i32::from(Kind::Interrupted.exit_code()))
}

/// Waits for the packet loop to end; interrupts the loop's waits after a while.
pub(super) fn hurry(control: &ControlLoop<'_>, ended: &AtomicBool) {
    let Some(hurry) = &control.hurry else { return };
    let until = Instant::now() + PATIENCE;
    while !ended.load(Ordering::Relaxed) {
        if Instant::now() >= until {
            return hurry();
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_line_to_the_supervisor_is_kept_until_the_supervisor_has_ended_or_sends_something_else() {
        let pair = || Line::pair().map(|(near, far)| (near, Line::of(far))).unwrap();
        let (supervisor, own) = pair();
        let interfaces = vec![("sg0".to_owned(), File::open("/dev/null").unwrap().into())];
        let ports = Ports { interfaces, ..Ports::default() };
        assert!(answer(&own, &ports), "what was to be read is gone");
        supervisor.say(&Record::Request, None).unwrap();
        assert!(answer(&own, &ports));
        assert_eq!(Ports::take(&supervisor, 1).unwrap().interfaces.len(), 1);
        drop(supervisor);
        assert!(!answer(&own, &ports), "it would be readable for ever");
        let (supervisor, own) = pair();
        crate::handover::sys::send(&UnixStream::from(supervisor.as_fd().try_clone_to_owned().unwrap()), b"?", None)
            .unwrap();
        assert!(!answer(&own, &ports));
    }
}
