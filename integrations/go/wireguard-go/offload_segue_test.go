package tun

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
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

// udpTrain returns what a read of a device gives for 2000 bytes in datagrams of 1000, with these options of IPv4.
func udpTrain(options ...byte) []byte {
	start := 20 + len(options)
	packet := make([]byte, start+8+2000)
	packet[0], packet[8], packet[9] = 0x40|byte(start/4), 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
	copy(packet[12:], []byte{198, 18, 0, 1, 198, 18, 0, 2})
	copy(packet[20:], options)
	copy(packet[start:], []byte{0, 9, 0, 7})
	binary.BigEndian.PutUint16(packet[start+4:], 8+2000)
	read := make([]byte, virtioNetHdrLen)
	header := virtioNetHdr{
		flags:      unix.VIRTIO_NET_HDR_F_NEEDS_CSUM,
		gsoType:    unix.VIRTIO_NET_HDR_GSO_UDP_L4,
		hdrLen:     uint16(start + 8),
		gsoSize:    1000,
		csumStart:  uint16(start),
		csumOffset: 6,
	}
	if err := header.encode(read); err != nil {
		panic(err)
	}
	return append(read, packet...)
}

// slab returns two buffers of len bytes that follow each other, and all of the memory in which they lie.
func slab(len int) ([][]byte, []byte) {
	memory := bytes.Repeat([]byte("a"), 3*len)
	return [][]byte{memory[:len], memory[len : 2*len]}, memory
}

// isUntouched returns whether nothing was written to the memory of a slab.
func isUntouched(memory []byte) bool { return len(bytes.Trim(memory, "a")) == 0 }

// Test_segueCountsWhatCannotBeSplit tests that a train that cannot be split gives no packets, and no error.
func Test_segueCountsWhatCannotBeSplit(t *testing.T) {
	bufs, memory := slab(1500)
	before := Unread.Load()
	// Loose source and record route, with a stop that is left: any user may set it (IP_OPTIONS).
	read := udpTrain(131, 7, 4, 198, 18, 0, 3, 0)
	if n, err := handleVirtioRead(read, bufs, make([]int, 2), 0); n != 0 || err != nil {
		t.Fatalf("%d packets, %v", n, err)
	}
	if count := Unread.Load() - before; count != 1 || !isUntouched(memory) {
		t.Fatalf("%d are counted, or something was written", count)
	}
}

// Test_segueKeepsToLengths tests that no packet is written past the length of its buffer, whatever its capacity.
func Test_segueKeepsToLengths(t *testing.T) {
	sizes := make([]int, 2)
	bufs, _ := slab(1028)
	if n, err := handleVirtioRead(udpTrain(), bufs, sizes, 0); n != 2 || err != nil || sizes[0] != 1028 {
		t.Fatalf("%d packets, %v, %v", n, sizes, err)
	}
	// One byte too few: the first packet would reach into the second buffer.
	bufs, memory := slab(1027)
	if n, err := handleVirtioRead(udpTrain(), bufs, sizes, 0); n != 0 || !errors.Is(err, ErrTooManySegments) {
		t.Fatalf("%d packets, %v", n, err)
	}
	if !isUntouched(memory) {
		t.Fatal("something was written")
	}
}
