//! The contracts of the engine, as functions of a stream and of a merger.
//!
//! [`check`] runs a stream through a [`Merger`] and checks all of them. The property tests and the fuzz targets call it
//! with the engine, the mutation tests with something broken: the properties that catch those are the ones that guard
//! the engine.

use std::collections::{BTreeMap, HashMap, VecDeque};

use segue::checksum::Sum;
use segue::gro::{self, Config, Gro, Popped, Profile, Stats};
use segue::gso::{self, Arena, Frames, Limits, SegmentCsum};
use segue::packet::{Csum, Frag, Frame, Kind, LayerCsum, Offload, Packet, Pool, Start, Stop, Tunnels, Unit};
use segue::time::Nanos;
use segue_testkit::oracle::{self, Owed, Ports};
use segue_testkit::sum;

/// A packet over the buffers that the tests use.
pub(crate) type Boxed = Box<Packet<Vec<u8>>>;

/// A joiner of packets, such as the engine or a mutant of it.
pub(crate) trait Merger {
    /// Takes a packet in the form in which it arrives: parsed, unless the merger takes frames.
    fn receive(&mut self, arrival: &Arrival, setting: &Setting, now: Nanos, pool: &mut Pool<Vec<u8>>) {
        let packet = load(arrival, setting, &setting.tunnels(), pool);
        self.push(packet, now, pool);
    }
    /// Pushes a packet; see [`Gro::push`].
    fn push(&mut self, packet: Boxed, now: Nanos, pool: &mut Pool<Vec<u8>>);
    /// Pops a packet or train; see [`Gro::pop`].
    fn pop(&mut self) -> Option<Boxed>;
    /// Makes all held packets ready; see [`Gro::flush`].
    fn flush(&mut self);
    /// Makes expired packets ready; see [`Gro::expire`].
    fn expire(&mut self, now: Nanos);
    /// Returns the next deadline; see [`Gro::deadline`].
    fn deadline(&self) -> Option<Nanos>;
    /// Returns the number of held flows; see [`Gro::held`].
    fn held(&self) -> usize;
    /// Returns the number of held packets; see [`Gro::held_packets`].
    fn held_packets(&self) -> usize;
    /// Returns the counters; see [`Gro::stats`].
    fn stats(&self) -> Stats;
}

impl Merger for Gro<Vec<u8>> {
    fn push(&mut self, packet: Boxed, now: Nanos, pool: &mut Pool<Vec<u8>>) {
        Gro::push(self, packet, now, pool);
    }
    fn pop(&mut self) -> Option<Boxed> {
        Gro::pop(self)
    }
    fn flush(&mut self) {
        Gro::flush(self);
    }
    fn expire(&mut self, now: Nanos) {
        Gro::expire(self, now);
    }
    fn deadline(&self) -> Option<Nanos> {
        Gro::deadline(self)
    }
    fn held(&self) -> usize {
        Gro::held(self)
    }
    fn held_packets(&self) -> usize {
        Gro::held_packets(self)
    }
    fn stats(&self) -> Stats {
        Gro::stats(self).clone()
    }
}

/// The engine with input as from ports: each packet is pushed as an unparsed frame.
pub(crate) struct ByFrames(pub(crate) Gro<Vec<u8>>);

impl ByFrames {
    /// Creates an engine with the given configuration and the tunnel ports of `setting`.
    pub(crate) fn new(config: Config, setting: &Setting) -> ByFrames {
        ByFrames(Gro::new(Config { tunnels: setting.tunnels(), ..config }))
    }
}

impl Merger for ByFrames {
    fn receive(&mut self, arrival: &Arrival, setting: &Setting, now: Nanos, pool: &mut Pool<Vec<u8>>) {
        self.0.push_frame(frame(arrival, setting), now, pool);
    }
    fn push(&mut self, packet: Boxed, now: Nanos, pool: &mut Pool<Vec<u8>>) {
        self.0.push(packet, now, pool);
    }
    fn pop(&mut self) -> Option<Boxed> {
        // As a port that sends frames unparsed takes them.
        match self.0.pop_unparsed()? {
            Popped::Packet(packet) => Some(packet),
            Popped::Frame(frame) => Some(frame.parse(&Tunnels::NONE, &mut Pool::new(0))),
        }
    }
    fn flush(&mut self) {
        self.0.flush();
    }
    fn expire(&mut self, now: Nanos) {
        self.0.expire(now);
    }
    fn deadline(&self) -> Option<Nanos> {
        self.0.deadline()
    }
    fn held(&self) -> usize {
        self.0.held()
    }
    fn held_packets(&self) -> usize {
        self.0.held_packets()
    }
    fn stats(&self) -> Stats {
        self.0.stats().clone()
    }
}

/// The state of a packet's transport checksum that a port reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortCsum {
    /// The port does not know the state of the checksum.
    Nothing,
    /// The port has verified the checksum. Only for packets whose checksum is right.
    Verified,
    /// The port has summed the whole packet (`Csum::Complete`).
    Sum,
    /// The checksum is pending: the field is primed.
    Owed,
}

/// A packet as it arrives at a port.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// All bytes of the packet.
    pub bytes: Vec<u8>,
    /// Report of the port about the packet's checksum.
    pub port_csum: PortCsum,
}

impl Arrival {
    /// Creates an arrival with a checksum of unknown state.
    pub(crate) fn new(bytes: Vec<u8>) -> Arrival {
        Arrival { bytes, port_csum: PortCsum::Nothing }
    }
}

/// Circumstances under which a stream arrives.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// The kind of header that packets begin with.
    pub start: Start,
    /// UDP ports that carry tunnels.
    pub ports: Ports,
    /// Limits and profile of the merger.
    pub config: Config,
    /// Number of packets in a poll round, after which everything is flushed; 0 for a hold time instead.
    pub round: usize,
    /// Time between two packets, in nanoseconds.
    pub step: u64,
}

impl Setting {
    /// Creates the setting of bare IP packets without tunnels, in rounds of 64.
    pub(crate) fn new(config: Config) -> Setting {
        Setting { start: Start::Ip, ports: Ports::default(), config, round: 64, step: 1000 }
    }

    pub(crate) fn tunnels(&self) -> Tunnels {
        let gue = self.ports.gue.iter().fold(Tunnels::NONE, |tunnels, &port| tunnels.with_gue(port));
        let vxlan = self.ports.vxlan.iter().fold(gue, |tunnels, &port| tunnels.with(port, Kind::Vxlan));
        let geneve = self.ports.geneve.iter().fold(vxlan, |tunnels, &port| tunnels.with(port, Kind::Geneve));
        self.ports.fou.iter().fold(geneve, |tunnels, &(port, protocol)| tunnels.with_fou(port, protocol))
    }

    pub(crate) fn judge(&self, bytes: &[u8], port_csum: PortCsum) -> Result<(), String> {
        let start = match self.start {
            Start::Ip => oracle::Start::Ip,
            Start::Ethernet => oracle::Start::Ethernet,
        };
        let owed = Owed { inner: port_csum == PortCsum::Owed, outer: false };
        oracle::verify_owed(&bare(bytes.to_vec(), self), start, &self.ports, owed).map(|_| ())
    }
}

/// Contracts of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// Splitting restores the merged packets, byte for byte, except padding that a profile removes. In profile `lro`
    /// the same stream leaves that arrived.
    Transparency,
    /// A packet with a wrong checksum is never merged and leaves with the wrong checksum; no checksum is called good
    /// without verification.
    NeverLaunder,
    /// The packets of a flow leave in their order of arrival.
    Order,
    /// Every packet is released, and the counters agree. In profile `lro` swallowed acknowledgments are counted, and
    /// their sender can do without them.
    Conservation,
    /// The limits of size, number and time are kept.
    Bounds,
}

/// A breach of a contract.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    /// The contract that was broken.
    pub promise: Promise,
    /// A description of the breach.
    pub what: String,
}

impl Violation {
    pub(crate) fn new(promise: Promise, what: impl Into<String>) -> Violation {
        Violation { promise, what: what.into() }
    }
}

/// Output of a run of the merger.
pub(crate) struct Run {
    /// Released packets and trains, in order.
    pub released: Vec<Released>,
    /// The counters at the end.
    pub stats: Stats,
    /// The arrival time of each packet.
    times: Vec<Nanos>,
}

/// A packet or train released by the engine.
pub(crate) struct Released {
    /// The packet or train itself.
    pub packet: Boxed,
    /// Time at which the train was released.
    pub at: Nanos,
}

impl Run {
    /// Returns the number of packets inside trains of at least two.
    pub(crate) fn joined(&self) -> u64 {
        self.stats.segments
    }
}

/// Runs a stream and checks every contract.
///
/// # Errors
/// The first breach that is found.
pub(crate) fn check(merger: &mut impl Merger, arrivals: &[Arrival], setting: &Setting) -> Result<Run, Violation> {
    let run = run(merger, arrivals, setting)?;
    match violations(&run, arrivals, setting).into_iter().next() {
        Some(violation) => Err(violation),
        None => Ok(run),
    }
}

/// Checks every contract of the engine on a stream, with parsed packets and with frames. Returns the run with packets.
///
/// # Errors
/// The first that is broken.
pub(crate) fn check_engine(config: Config, arrivals: &[Arrival], setting: &Setting) -> Result<Run, Violation> {
    check(&mut ByFrames::new(config, setting), arrivals, setting)?;
    check(&mut Gro::new(config), arrivals, setting)
}

/// Returns every violation of a contract by the engine on a stream, with parsed packets or with frames.
pub(crate) fn broken_engine(config: Config, arrivals: &[Arrival], setting: &Setting) -> Vec<Violation> {
    let mut found = broken(&mut Gro::new(config), arrivals, setting);
    found.extend(broken(&mut ByFrames::new(config, setting), arrivals, setting));
    found
}

/// Returns every violation of a contract by a merger on a stream.
pub(crate) fn broken(merger: &mut impl Merger, arrivals: &[Arrival], setting: &Setting) -> Vec<Violation> {
    match run(merger, arrivals, setting) {
        Ok(run) => violations(&run, arrivals, setting),
        Err(violation) => vec![violation],
    }
}

fn violations(run: &Run, arrivals: &[Arrival], setting: &Setting) -> Vec<Violation> {
    let views = match views(run, arrivals, setting) {
        Ok(views) => views,
        Err(violation) => return vec![violation],
    };
    let checks = [
        never_launder(run, &views, arrivals, setting),
        transparency(&views),
        conservation(run, &views, arrivals),
        order(&views, arrivals, setting),
        bounds(run, &views, setting),
    ];
    checks.into_iter().filter_map(Result::err).collect()
}

/// Runs a merger on a stream: pushes the packets, and keeps the deadlines.
fn run(merger: &mut impl Merger, arrivals: &[Arrival], setting: &Setting) -> Result<Run, Violation> {
    let mut pool = Pool::new(64);
    let mut run = Run { released: Vec::new(), stats: Stats::default(), times: Vec::new() };
    let mut now = Nanos(1);
    for (index, arrival) in arrivals.iter().enumerate() {
        let arrives = now.after(setting.step);
        while let Some(deadline) = merger.deadline().filter(|&deadline| deadline <= arrives) {
            merger.expire(deadline);
            drain(merger, deadline, &mut run);
            if merger.deadline().is_some_and(|next| next <= deadline) {
                return Err(Violation::new(Promise::Bounds, "what is due does not leave"));
            }
        }
        now = arrives;
        merger.receive(arrival, setting, now, &mut pool);
        run.times.push(now);
        drain(merger, now, &mut run);
        if merger.held() > setting.config.max_flows {
            return Err(Violation::new(Promise::Bounds, format!("{} flows are held", merger.held())));
        }
        if merger.held_packets() > setting.config.max_held_packets {
            return Err(Violation::new(Promise::Bounds, format!("{} packets are held", merger.held_packets())));
        }
        if setting.round != 0 && index % setting.round == setting.round - 1 {
            merger.flush();
            drain(merger, now, &mut run);
        }
    }
    if setting.config.hold != Nanos::ZERO {
        while let Some(deadline) = merger.deadline() {
            merger.expire(deadline);
            drain(merger, deadline, &mut run);
            if merger.deadline().is_some_and(|next| next <= deadline) {
                return Err(Violation::new(Promise::Bounds, "what is due does not leave"));
            }
        }
    }
    merger.flush();
    drain(merger, now, &mut run);
    if (merger.held(), merger.held_packets()) != (0, 0) {
        return Err(Violation::new(Promise::Bounds, "something is held after a flush"));
    }
    run.stats = merger.stats();
    Ok(run)
}

fn drain(merger: &mut impl Merger, at: Nanos, run: &mut Run) {
    while let Some(packet) = merger.pop() {
        run.released.push(Released { packet, at });
    }
}

/// Returns a packet unparsed, in the form in which its port delivers it.
pub(crate) fn frame(arrival: &Arrival, setting: &Setting) -> Frame<Vec<u8>> {
    let csum = match arrival.port_csum {
        PortCsum::Nothing => Csum::Unknown,
        PortCsum::Verified => Csum::Verified,
        PortCsum::Owed => Csum::Partial,
        PortCsum::Sum => {
            let layout = segue::wire::parse(&arrival.bytes, setting.start, &setting.tunnels());
            let from = layout.outer_ip().map_or(0, |ip| ip.start());
            Csum::Complete(Sum::of(&arrival.bytes[from..]))
        }
    };
    Frame { bytes: Frag::all(arrival.bytes.clone()), start: setting.start, csum }
}

/// Returns a packet parsed, with the state that its port reports.
pub(crate) fn load(arrival: &Arrival, setting: &Setting, tunnels: &Tunnels, pool: &mut Pool<Vec<u8>>) -> Boxed {
    frame(arrival, setting).parse(tunnels, pool)
}

/// The contents of a packet or train as sent on a wire.
pub(crate) struct View {
    pub(crate) is_train: bool,
    /// The frames that a port without offloads sends.
    pub(crate) segments: Vec<Vec<u8>>,
    /// Arrival of which each segment is the output; `None` for one that never arrived.
    pub(crate) came: Vec<Option<usize>>,
    /// The arrivals that the packet replaces.
    pub(crate) swallowed: Vec<usize>,
}

/// Returns a packet in the form expected by its receiver: without padding, if the profile removes that.
pub(crate) fn bare(mut bytes: Vec<u8>, setting: &Setting) -> Vec<u8> {
    if setting.config.profile != Profile::Strict {
        let layout = segue::wire::parse(&bytes, setting.start, &setting.tunnels());
        if layout.is_padded() {
            bytes.truncate(layout.end());
        }
    }
    bytes
}

fn views(run: &Run, arrivals: &[Arrival], setting: &Setting) -> Result<Vec<View>, Violation> {
    if setting.config.profile == Profile::Lro {
        return crate::terminating::views(run, arrivals, setting);
    }
    let mut waiting: HashMap<Vec<u8>, VecDeque<usize>> = HashMap::new();
    for (index, arrival) in arrivals.iter().enumerate() {
        waiting.entry(on_the_wire(arrival, setting)).or_default().push_back(index);
    }
    let mut views = Vec::new();
    for released in &run.released {
        let segments: Vec<_> = cut(&released.packet)?.into_iter().map(|segment| bare(segment, setting)).collect();
        let came = segments.iter().map(|segment| waiting.get_mut(segment)?.pop_front()).collect();
        let is_train = matches!(released.packet.offload.unit, Unit::Train { .. });
        views.push(View { is_train, segments, came, swallowed: Vec::new() });
    }
    Ok(views)
}

/// Returns the expected output bytes for an arrival: its own, with the checksum completed if it was partial.
pub(crate) fn on_the_wire(arrival: &Arrival, setting: &Setting) -> Vec<u8> {
    let mut bytes = arrival.bytes.clone();
    if arrival.port_csum == PortCsum::Owed {
        let layout = segue::wire::parse(&bytes, setting.start, &setting.tunnels());
        if let Some(header) = layout.transport() {
            let field = header.start() + if header.kind == Kind::Tcp { 16 } else { 6 };
            let checksum = !sum::fold(&bytes[header.start()..layout.end()]);
            let is_zero_udp = header.kind == Kind::Udp && checksum == 0;
            bytes[field..field + 2].copy_from_slice(&if is_zero_udp { 0xffff } else { checksum }.to_be_bytes());
        }
    }
    bare(bytes, setting)
}

/// Returns the frames that a port without offloads sends, by all forms of `gso`, which must agree.
pub(crate) fn cut(packet: &Packet<Vec<u8>>) -> Result<Vec<Vec<u8>>, Violation> {
    let refused = |refusal| Violation::new(Promise::Conservation, format!("refused by gso: {refusal:?}"));
    let differs = |what: &str| Violation::new(Promise::Transparency, format!("{what} gives other bytes"));
    let segments = scatter(packet, &Limits::NONE).map_err(refused)?;
    let mut frames = Frames::new();
    gso::split_linear(packet, &Limits::NONE, &mut frames).map_err(refused)?;
    if !frames.frames().iter().map(|frame| frames.bytes(frame)).eq(segments.iter().map(|s| &s.bytes[..])) {
        return Err(differs("the linear form"));
    }
    let segments: Vec<Vec<u8>> = segments.into_iter().map(|s| s.bytes).collect();
    if let Unit::Train { csum, .. } = packet.offload.unit
        && packet.offload.layers().is_empty()
    {
        let some =
            Limits { csum: true, tso4: true, tso6: true, uso: true, max_bytes: 9000, max_segs: 5, ..Limits::NONE };
        let mut twice = Vec::new();
        for part in scatter(packet, &some).map_err(refused)? {
            let mut smaller = Packet::default();
            smaller.head.set(&part.bytes[..packet.head.len()]);
            smaller.layout = packet.layout;
            smaller.payload.push(Frag::all(part.bytes[packet.head.len()..].to_vec()));
            let unit = match (part.gso, part.csum) {
                (Some(gso), _) => Unit::Train { csum, gso },
                (None, SegmentCsum::Partial) => Unit::Whole(Csum::Partial),
                (None, _) => Unit::Whole(Csum::Unknown),
            };
            smaller.offload = Offload::plain(unit);
            twice.extend(scatter(&smaller, &Limits::NONE).map_err(refused)?.into_iter().map(|s| s.bytes));
        }
        if twice != segments {
            return Err(differs("a cut into smaller trains first"));
        }
    }
    Ok(segments)
}

struct Scattered {
    bytes: Vec<u8>,
    csum: SegmentCsum,
    gso: Option<segue::packet::Gso>,
}

fn scatter(packet: &Packet<Vec<u8>>, limits: &Limits) -> Result<Vec<Scattered>, gso::Refusal> {
    let mut arena = Arena::new();
    gso::split(packet, limits, &mut arena)?;
    let whole = arena.segments().iter().map(|segment| {
        let mut bytes = arena.head(segment).to_vec();
        let range = segment.payload.start as usize..segment.payload.end as usize;
        packet.payload.pieces(range).for_each(|piece| bytes.extend_from_slice(piece));
        Scattered { bytes, csum: segment.csum, gso: segment.gso }
    });
    Ok(whole.collect())
}

fn transparency(views: &[View]) -> Result<(), Violation> {
    for view in views {
        for (segment, came) in view.segments.iter().zip(&view.came) {
            if came.is_none() {
                let what = format!("a packet leaves that never came (train: {}): {segment:02x?}", view.is_train);
                return Err(Violation::new(Promise::Transparency, what));
            }
        }
    }
    Ok(())
}

fn never_launder(run: &Run, views: &[View], arrivals: &[Arrival], setting: &Setting) -> Result<(), Violation> {
    let broken = |what: String| Err(Violation::new(Promise::NeverLaunder, what));
    let verdicts: Vec<Result<(), String>> = arrivals.iter().map(|a| setting.judge(&a.bytes, a.port_csum)).collect();
    // How often each wrong packet arrived, less how often it left.
    let mut wrong: BTreeMap<&[u8], isize> = BTreeMap::new();
    let leaving: Vec<Vec<u8>> = arrivals.iter().map(|arrival| on_the_wire(arrival, setting)).collect();
    for (bytes, _) in leaving.iter().zip(&verdicts).filter(|(_, verdict)| verdict.is_err()) {
        *wrong.entry(bytes).or_default() += 1;
    }
    let mut unseen = 0;
    for (released, view) in run.released.iter().zip(views) {
        for (segment, came) in view.segments.iter().zip(&view.came) {
            if let Some(count) = wrong.get_mut(&segment[..]) {
                *count -= 1;
            }
            let Some(index) = *came else { continue };
            let claims = match released.packet.offload.unit {
                Unit::Train { .. } => true,
                Unit::Whole(csum) => csum == Csum::Verified,
            };
            let layers = released.packet.offload.layers().iter();
            let claims = claims || layers.flat_map(|l| [l.udp, l.gre]).any(|csum| csum == LayerCsum::Done);
            match &verdicts[index] {
                Err(why) if view.is_train => return broken(format!("a wrong packet is in a train: {why}")),
                // Inside a layer that was verified, other fields may be wrong; in a plain packet none can.
                Err(why) if claims && released.packet.offload.unit == Unit::Whole(Csum::Verified) => {
                    return broken(format!("a wrong packet is called verified: {why}"));
                }
                _ => {}
            }
            let was_unknown = arrivals[index].port_csum == PortCsum::Nothing;
            if was_unknown && released.packet.offload.unit != Unit::Whole(Csum::Unknown) && claims {
                unseen += segment.len() - released.packet.head.len();
            }
        }
    }
    if let Some((bytes, count)) = wrong.iter().find(|(_, count)| **count > 0) {
        return broken(format!("{count} wrong packets did not leave as they came: {bytes:02x?}"));
    }
    if run.stats.checksummed_bytes < unseen as u64 {
        return broken(format!("{} bytes were summed to verify {unseen}", run.stats.checksummed_bytes));
    }
    Ok(())
}

fn conservation(run: &Run, views: &[View], arrivals: &[Arrival]) -> Result<(), Violation> {
    let broken = |what: String| Err(Violation::new(Promise::Conservation, what));
    let came_out: usize = views.iter().map(|view| view.segments.len() + view.swallowed.len()).sum();
    if came_out != arrivals.len() {
        return broken(format!("{} packets came, {came_out} left", arrivals.len()));
    }
    let stats = &run.stats;
    let trains = views.iter().filter(|view| view.is_train).count() as u64;
    let segments: usize = views.iter().filter(|view| view.is_train).map(|view| view.segments.len()).sum();
    let single = stats.flushes.total().wrapping_sub(stats.trains);
    let accounted = stats.alone.total().wrapping_add(single).wrapping_add(stats.segments).wrapping_add(stats.swallowed);
    let swallowed: usize = views.iter().map(|view| view.swallowed.len()).sum();
    if stats.swallowed != swallowed as u64 {
        return broken(format!("{} were swallowed, {swallowed} might have been", stats.swallowed));
    }
    if (stats.packets, stats.trains, stats.segments) != (arrivals.len() as u64, trains, segments as u64) {
        return broken(format!("{stats:?} for {} packets, {trains} trains, {segments} segments", arrivals.len()));
    }
    if accounted != stats.packets {
        return broken(format!("{accounted} of {} packets have a reason", stats.packets));
    }
    Ok(())
}

/// Returns the flow of an arrival; `None` for one that may belong to any.
pub(crate) fn flow(bytes: &[u8], setting: &Setting) -> Option<Vec<u8>> {
    let layout = segue::wire::parse(bytes, setting.start, &setting.tunnels());
    let mut flow = Vec::new();
    for header in layout.headers() {
        flow.push(header.kind as u8);
        let at = header.start();
        match header.kind {
            Kind::Ipv4 => flow.extend(&bytes[at + 12..at + 20]),
            Kind::Ipv6 => flow.extend(&bytes[at + 8..at + 40]),
            Kind::Tcp | Kind::Udp => flow.extend(&bytes[at..at + 4]),
            Kind::Vlan => flow.extend([bytes[at] & 0x0f, bytes[at + 1]]),
            // Flags and key; a key follows the checksum word.
            Kind::Gre => {
                flow.extend(&bytes[at..at + 2]);
                let key = at + 4 + if bytes[at] & 0x80 != 0 { 4 } else { 0 };
                flow.extend(if bytes[at] & 0x20 != 0 { &bytes[key..key + 4] } else { &[] });
            }
            Kind::Vxlan | Kind::Geneve => flow.extend(&bytes[at + 4..at + 7]),
            _ => {}
        }
    }
    match layout.stop() {
        Stop::Transport => Some(flow),
        // Packets of this flow are never merged: the only requirement is that they are no fragments of one.
        Stop::Protocol => Some([&b"other"[..], bytes].concat()),
        Stop::Foreign | Stop::Fragment | Stop::Malformed | Stop::TooDeep => None,
    }
}

fn order(views: &[View], arrivals: &[Arrival], setting: &Setting) -> Result<(), Violation> {
    let broken = |what: String| Err(Violation::new(Promise::Order, what));
    let mut newest: HashMap<Vec<u8>, usize> = HashMap::new();
    let (mut barrier, mut newest_of_all) = (None, None);
    for &index in views.iter().flat_map(|view| view.came.iter().flatten()) {
        if barrier.is_some_and(|barrier| index < barrier) {
            return broken(format!("packet {index} leaves behind {barrier:?}, which may be of its flow"));
        }
        match flow(&arrivals[index].bytes, setting) {
            Some(flow) => {
                if let Some(before) = newest.insert(flow, index).filter(|&before| before > index) {
                    return broken(format!("packet {index} leaves behind {before} of its flow"));
                }
            }
            None => {
                if newest_of_all.is_some_and(|newest| newest > index) {
                    return broken(format!("packet {index} of unknown flow leaves behind {newest_of_all:?}"));
                }
                barrier = Some(index);
            }
        }
        newest_of_all = newest_of_all.max(Some(index));
    }
    Ok(())
}

/// Returns the largest train in bytes, from its IP header.
fn most_bytes(packet: &Packet<Vec<u8>>, config: &Config) -> usize {
    let is_plain_tcp = matches!(packet.transport(), Some((Kind::Tcp, _))) && packet.offload.layers().is_empty();
    if is_plain_tcp { config.max_bytes.min(gro::MAX_TRAIN_BYTES) } else { config.max_bytes.min(65_535) }
}

fn bounds(run: &Run, views: &[View], setting: &Setting) -> Result<(), Violation> {
    let broken = |what: String| Err(Violation::new(Promise::Bounds, what));
    for (released, view) in run.released.iter().zip(views) {
        let packet = &released.packet;
        if let Unit::Train { .. } = packet.offload.unit {
            let ip = packet.layout.outer_ip().map_or(0, |ip| ip.start());
            let is_tcp = matches!(packet.transport(), Some((Kind::Tcp, _)));
            let most = if is_tcp { setting.config.max_packets } else { setting.config.max_udp_packets };
            if packet.len() - ip > most_bytes(packet, &setting.config) || view.segments.len() > most {
                return broken(format!("a train of {} bytes, {} packets", packet.len() - ip, view.segments.len()));
            }
        }
        if view.swallowed.len() >= setting.config.max_acks.max(1) {
            return broken(format!("an acknowledgment stands for {} others", view.swallowed.len()));
        }
        if setting.config.hold != Nanos::ZERO {
            for &index in view.came.iter().flatten().chain(&view.swallowed) {
                if released.at > run.times[index] + setting.config.hold {
                    return broken(format!("{:?} leaves at {:?}", run.times[index], released.at));
                }
            }
        }
    }
    Ok(())
}
