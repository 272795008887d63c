package main

import (
	"encoding/binary"
	"time"
	"unsafe"

	_ "golang.zx2c4.com/wireguard/tun"
)

// The functions of wireguard-go that join, cut and sum, which its package does not export.

//go:linkname handleGRO golang.zx2c4.com/wireguard/tun.handleGRO
func handleGRO(bufs [][]byte, offset int, tcp, udp unsafe.Pointer, canUDPGRO bool, toWrite *[]int) error

//go:linkname newTCPGROTable golang.zx2c4.com/wireguard/tun.newTCPGROTable
func newTCPGROTable() unsafe.Pointer

//go:linkname newUDPGROTable golang.zx2c4.com/wireguard/tun.newUDPGROTable
func newUDPGROTable() unsafe.Pointer

//go:linkname resetTCP golang.zx2c4.com/wireguard/tun.(*tcpGROTable).reset
func resetTCP(table unsafe.Pointer)

//go:linkname resetUDP golang.zx2c4.com/wireguard/tun.(*udpGROTable).reset
func resetUDP(table unsafe.Pointer)

//go:linkname handleVirtioRead golang.zx2c4.com/wireguard/tun.handleVirtioRead
func handleVirtioRead(in []byte, bufs [][]byte, sizes []int, offset int) (int, error)

//go:linkname checksum golang.zx2c4.com/wireguard/tun.checksum
func checksum(b []byte, initial uint64) uint16

// Bytes of a virtio-net header.
const virtio = 10

type wireGuard struct {
	tcp, udp unsafe.Pointer
	toWrite  []int
	// Buffers with room for a train, for the packets that count and for those before them.
	buffers [2][][]byte
	outs    [][]byte
	sizes   []int
	read    []byte
}

func newWireGuard() peer {
	one := &wireGuard{tcp: newTCPGROTable(), udp: newUDPGROTable(), sizes: make([]int, atOnce)}
	for range atOnce {
		one.outs = append(one.outs, make([]byte, 2048))
		for i := range one.buffers {
			one.buffers[i] = append(one.buffers[i], make([]byte, 0, 65535+virtio))
		}
	}
	return one
}

// fill puts packets into buffers, each behind the room for a virtio-net header.
func fill(buffers, packets [][]byte) [][]byte {
	taken := make([][]byte, len(packets))
	for i, packet := range packets {
		taken[i] = append(buffers[i][:virtio], packet...)
	}
	return taken
}

func (one *wireGuard) once(packets [][]byte) {
	if err := handleGRO(packets, virtio, one.tcp, one.udp, true, &one.toWrite); err != nil {
		panic(err)
	}
	resetTCP(one.tcp)
	resetUDP(one.udp)
	one.toWrite = one.toWrite[:0]
}

func (one *wireGuard) join(packets, warm [][]byte, _ bool) time.Duration {
	batch := fill(one.buffers[0], packets)
	if warm != nil {
		before := fill(one.buffers[1], warm)
		emptyCaches()
		one.once(before)
	}
	begin := time.Now()
	one.once(batch)
	return since(begin)
}

var sink uint16

func (one *wireGuard) sum(bytes []byte) time.Duration {
	begin := time.Now()
	for range sums {
		sink += checksum(bytes, 0)
	}
	return since(begin)
}

func (one *wireGuard) cut(train []byte) (time.Duration, bool) {
	// VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4.
	header := []byte{1, 1}
	for _, word := range []uint16{52, size, 20, 16} {
		header = binary.NativeEndian.AppendUint16(header, word)
	}
	one.read = append(append(one.read[:0], header...), train...)
	begin := time.Now()
	made, err := handleVirtioRead(one.read, one.outs, one.sizes, 0)
	spent := since(begin)
	if err != nil || made != segments {
		panic(err)
	}
	return spent, true
}
