// Command judge runs gVisor's GRO over the cases of crates/segue-tests/tests/foreign.rs.
//
//	judge CASES RESULTS
//
// Both files are lists of cases: the number of packets, then each behind its length, all numbers of 32 bits,
// little-endian. A packet begins with its IP header.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/stack/gro"
)

// Number of calls of Flush that empty a bucket: each releases its oldest packet, and a bucket holds eight.
const flushes = 8

// A receiver keeps the packets that GRO releases.
type receiver struct {
	packets [][]byte
}

// DeliverNetworkPacket keeps a packet, or the one into which GRO merged several.
func (one *receiver) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, packet *stack.PacketBuffer) {
	one.packets = append(one.packets, packet.Data().AsRange().ToSlice())
}

// DeliverLinkPacket has nothing to do: there is no packet socket.
func (one *receiver) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}

func join(packets [][]byte) [][]byte {
	var engine gro.GRO
	out := &receiver{}
	engine.Init(true)
	engine.Dispatcher = out
	for _, bytes := range packets {
		packet := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(bytes)})
		packet.NetworkProtocolNumber = header.IPv4ProtocolNumber
		if bytes[0]>>4 == 6 {
			packet.NetworkProtocolNumber = header.IPv6ProtocolNumber
		}
		engine.Enqueue(packet)
		packet.DecRef()
	}
	for range flushes {
		engine.Flush()
	}
	return out.packets
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	cases, err := os.Open(os.Args[1])
	must(err)
	file, err := os.Create(os.Args[2])
	must(err)
	in, out := bufio.NewReader(cases), bufio.NewWriter(file)
	for {
		var count uint32
		err := binary.Read(in, binary.LittleEndian, &count)
		if errors.Is(err, io.EOF) {
			break
		}
		must(err)
		packets := make([][]byte, count)
		for at := range packets {
			var size uint32
			must(binary.Read(in, binary.LittleEndian, &size))
			packets[at] = make([]byte, size)
			_, err := io.ReadFull(in, packets[at])
			must(err)
		}
		joined := join(packets)
		must(binary.Write(out, binary.LittleEndian, uint32(len(joined))))
		for _, packet := range joined {
			must(binary.Write(out, binary.LittleEndian, uint32(len(packet))))
			_, err := out.Write(packet)
			must(err)
		}
	}
	must(out.Flush())
	must(file.Close())
}
