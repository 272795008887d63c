package main

import (
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	sums16 "gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/stack/gro"
)

type gVisor struct {
	gro  gro.GRO
	left int
}

// DeliverNetworkPacket counts the packets that GRO releases.
func (one *gVisor) DeliverNetworkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) { one.left++ }

// DeliverLinkPacket has nothing to do: there is no packet socket.
func (one *gVisor) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}

func newGVisor() peer {
	one := &gVisor{}
	one.gro.Init(true)
	one.gro.Dispatcher = one
	return one
}

// buffers returns gVisor's packet buffers with the bytes of the given packets.
func buffers(packets [][]byte, known bool) []*stack.PacketBuffer {
	made := make([]*stack.PacketBuffer, len(packets))
	for i, packet := range packets {
		made[i] = stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)})
		made[i].NetworkProtocolNumber = header.IPv4ProtocolNumber
		made[i].RXChecksumValidated = known
	}
	return made
}

func (one *gVisor) once(packets []*stack.PacketBuffer) {
	for _, packet := range packets {
		one.gro.Enqueue(packet)
	}
	one.gro.Flush()
}

func release(packets []*stack.PacketBuffer) {
	for _, packet := range packets {
		packet.DecRef()
	}
}

func (one *gVisor) join(packets, warm [][]byte, known bool) time.Duration {
	batch := buffers(packets, known)
	defer release(batch)
	if warm != nil {
		before := buffers(warm, known)
		defer release(before)
		emptyCaches()
		one.once(before)
	}
	begin := time.Now()
	one.once(batch)
	return since(begin)
}

func (one *gVisor) sum(bytes []byte) time.Duration {
	begin := time.Now()
	for range sums {
		sink += sums16.Checksum(bytes, 0)
	}
	return since(begin)
}

// cut returns false: gVisor segments only inside of its TCP.
func (one *gVisor) cut([]byte) (time.Duration, bool) { return 0, false }
