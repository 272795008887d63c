package tun

import (
	"bytes"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Test_segueKeepsOrder tests a difference from wireguard-go: packets out of order stay as and where they are.
func Test_segueKeepsOrder(t *testing.T) {
	packets := [][]byte{
		tcp4Packet(ip4PortA, ip4PortB, header.TCPFlagAck, 100, 101),
		tcp4Packet(ip4PortA, ip4PortB, header.TCPFlagAck, 100, 1),
		tcp4Packet(ip4PortA, ip4PortB, header.TCPFlagAck, 100, 201),
	}
	var before [][]byte
	for _, packet := range packets {
		before = append(before, bytes.Clone(packet))
	}
	var write []int
	if err := handleGRO(packets, offset, nil, nil, true, &write); err != nil || len(write) != 3 {
		t.Fatalf("%v, %v", write, err)
	}
	for i, at := range write {
		if i != at || !bytes.Equal(packets[i], before[i]) {
			t.Errorf("packet %d is at %d, or changed", i, at)
		}
	}
}

// Test_segueJoinsAndSplits tests that packets are joined to a train, and split from it with the same bytes.
func Test_segueJoinsAndSplits(t *testing.T) {
	for round := range 200 {
		var packets, before [][]byte
		for i := range 40 {
			packet := tcp6Packet(ip6PortA, ip6PortB, header.TCPFlagAck, 1000, uint32(1+1000*i))
			packets, before = append(packets, packet), append(before, bytes.Clone(packet))
		}
		var write []int
		if err := handleGRO(packets, offset, nil, nil, true, &write); err != nil || len(write) != 1 || write[0] != 0 {
			t.Fatalf("round %d: %v, %v", round, write, err)
		}
		outs, sizes := make([][]byte, 128), make([]int, 128)
		for i := range outs {
			outs[i] = make([]byte, 2048)
		}
		n, err := handleVirtioRead(packets[0], outs, sizes, offset)
		if err != nil || n != 40 {
			t.Fatalf("round %d: %d packets, %v", round, n, err)
		}
		for i := range n {
			if !bytes.Equal(outs[i][offset:offset+sizes[i]], before[i][offset:]) {
				t.Fatalf("round %d: packet %d differs", round, i)
			}
		}
		if n, err := handleVirtioRead(packets[0], outs[:39], sizes[:39], offset); err != ErrTooManySegments || n != 0 {
			t.Fatalf("round %d: %d packets in too few buffers, %v", round, n, err)
		}
	}
}
