//! A UDP socket for gotatun that sends runs of datagrams by one call (UDP_SEGMENT).

use std::{io, net::SocketAddr};

use gotatun::{packet::Packet, udp::socket::*, udp::*};
use segue_port::udp::Sender;

/// gotatun's own sockets, or one of them, with another method of sending.
#[derive(Clone, Default)]
pub struct Runs<T>(pub T);

impl UdpTransportFactory for Runs<UdpSocketFactory> {
    type Send = Runs<UdpSocket>;
    type Recv = UdpSocket;

    async fn bind(&mut self, params: &UdpTransportFactoryParams) -> io::Result<(Runs<UdpSocket>, UdpSocket)> {
        self.0.bind(params).await.map(|(send, receive)| (Runs(send), receive))
    }
}

impl UdpSend for Runs<UdpSocket> {
    type SendManyBuf = Sender;

    async fn send_to(&self, packet: Packet, to: SocketAddr) -> io::Result<()> {
        self.0.send_to(packet, to).await
    }

    fn max_number_of_packets_to_send(&self) -> usize {
        256
    }

    async fn send_many_to(&self, sender: &mut Sender, packets: &mut Vec<(Packet, SocketAddr)>) -> io::Result<()> {
        sender.send_async(self.0.socket(), packets, |(sent, to)| (&sent[..], Some(*to))).await.map(|()| packets.clear())
    }

    fn local_addr(&self) -> io::Result<Option<SocketAddr>> {
        UdpSend::local_addr(&self.0)
    }

    fn set_fwmark(&self, mark: u32) -> io::Result<()> {
        self.0.set_fwmark(mark)
    }
}
