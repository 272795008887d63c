// Package segue joins and splits packets with the library of segue, one call of C for each batch.
//
// It needs segue.h and the library where cgo looks for them: install them (crates/segue-capi/install), or name their
// directories in CGO_CFLAGS and CGO_LDFLAGS.
package segue

/*
#cgo LDFLAGS: -lsegue -lpthread -ldl -lm
#include <stdlib.h>
#include <segue.h>
*/
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"runtime"
	"unsafe"
)

// Bits of TUNSETOFFLOAD: what a TUN device has agreed to take.
const (
	OffloadsTCP    = 0x0f               // checksums, TCP trains, also with CWR
	OffloadsTCPUDP = OffloadsTCP | 0x60 // and UDP trains (Linux 6.2)
)

// HeaderLen is the length in bytes of the virtio-net header of a TUN device.
const HeaderLen = 10

// Error is the reason why the library refused a call.
type Error int

// ErrRoom is the error of too few buffers, or of too short ones. Nothing was written.
const ErrRoom = Error(C.SEGUE_ERR_ROOM)

// IsPacket returns whether the error is about the packet that was passed, which is to be dropped and counted.
func (e Error) IsPacket() bool { return e <= -100 }

// Name returns the stable name of the error.
func (e Error) Name() string { return C.GoString(C.segue_error_name(C.ptrdiff_t(e))) }

func (e Error) Error() string {
	return "segue: " + e.Name() + ": " + C.GoString(C.segue_error_text(C.ptrdiff_t(e)))
}

// out is struct segue_out as Go writes it in C's memory. Its pointer is a number here: a Go pointer that C's memory
// kept from an earlier call would confuse the garbage collector when it is overwritten.
type out struct{ base, room, len uintptr }

// outs is an array of struct segue_out in C's memory, so that a call passes no Go pointer to a Go pointer.
type outs struct {
	base unsafe.Pointer
	cap  int
	pins runtime.Pinner
}

// take lists buffers, whose memory stays in place until drop. Each has len bytes in use from offset on, and room up to
// its capacity.
func (o *outs) take(bufs [][]byte, offset int) []out {
	if len(bufs) > o.cap {
		o.free()
		o.cap = len(bufs)
		o.base = C.malloc(C.size_t(o.cap) * C.sizeof_struct_segue_out)
	}
	list := unsafe.Slice((*out)(o.base), o.cap)[:len(bufs)]
	for i, buf := range bufs {
		list[i] = out{}
		if cap(buf) > 0 {
			start := unsafe.SliceData(buf)
			o.pins.Pin(start)
			list[i] = out{uintptr(unsafe.Pointer(start)), uintptr(cap(buf)), uintptr(max(len(buf)-offset, 0))}
		}
	}
	return list
}

func (o *outs) c() *C.struct_segue_out { return (*C.struct_segue_out)(o.base) }

func (o *outs) drop() { o.pins.Unpin() }

func (o *outs) free() {
	C.free(o.base)
	o.base, o.cap = nil, 0
}

// Splitter makes single packets of what was read from a TUN device. One goroutine uses it at a time.
type Splitter struct {
	c    *C.struct_segue_splitter
	outs outs
}

// NewSplitter returns a splitter for packets that begin with their IP header.
func NewSplitter() *Splitter {
	s := &Splitter{c: C.segue_splitter_new(HeaderLen, 0)}
	runtime.SetFinalizer(s, (*Splitter).Close)
	return s
}

// Close frees the splitter, which must not be used afterwards. The garbage collector does so too.
func (s *Splitter) Close() {
	runtime.SetFinalizer(s, nil)
	C.segue_splitter_free(s.c)
	s.c = nil
	s.outs.free()
}

// Split writes each packet of one read behind offset bytes of one of bufs, complete and within its length, and the
// length of the packet to sizes. It returns their number. header is the virtio-net header of the read.
func (s *Splitter) Split(header, packet []byte, bufs [][]byte, sizes []int, offset int) (int, error) {
	if len(header) != HeaderLen || len(sizes) < len(bufs) || offset < 0 {
		return 0, errors.New("segue: invalid argument")
	}
	list := s.outs.take(bufs, offset)
	defer s.outs.drop()
	for i, buf := range bufs {
		list[i].room = uintptr(len(buf)) // behind it may lie the next one
	}
	n := C.segue_split_with(s.c, (*C.uint8_t)(unsafe.SliceData(header)), C.size_t(len(header)),
		(*C.uint8_t)(unsafe.SliceData(packet)), C.size_t(len(packet)), s.outs.c(), C.size_t(len(list)), C.size_t(offset))
	runtime.KeepAlive(s)
	if n < 0 {
		return 0, Error(n)
	}
	for i := range list[:n] {
		sizes[i] = int(list[i].len)
	}
	return int(n), nil
}

// Joiner makes trains of packets, for a TUN device with a virtio-net header. One goroutine uses it at a time.
type Joiner struct {
	c     *C.struct_segue_joiner
	outs  outs
	list  *C.size_t
	count int
}

// NewJoiner returns a joiner for a device that has agreed to take these offloads.
func NewJoiner(offloads uint32) (*Joiner, error) {
	var key [16]byte
	if _, err := rand.Read(key[:]); err != nil {
		return nil, err
	}
	config := C.struct_segue_joiner_config{offloads: C.uint32_t(offloads), header_len: HeaderLen}
	config.size = C.sizeof_struct_segue_joiner_config
	config.key[0] = C.uint64_t(binary.NativeEndian.Uint64(key[:8]))
	config.key[1] = C.uint64_t(binary.NativeEndian.Uint64(key[8:]))
	j := &Joiner{c: C.segue_joiner_new(&config)}
	if j.c == nil {
		return nil, errors.New("segue: no such configuration")
	}
	runtime.SetFinalizer(j, (*Joiner).Close)
	return j, nil
}

// Close frees the joiner, which must not be used afterwards. The garbage collector does so too.
func (j *Joiner) Close() {
	runtime.SetFinalizer(j, nil)
	C.segue_joiner_free(j.c)
	j.c = nil
	j.outs.free()
	C.free(unsafe.Pointer(j.list))
	j.list, j.count = nil, 0
}

// Join joins the packets of one batch, each behind offset bytes of its buffer, and appends to write the places of those
// to be written to the device, each in one call and from HeaderLen bytes before offset on. A train lies in the buffer
// of its first packet, which is extended up to its capacity; packets that do not fit stay alone.
func (j *Joiner) Join(bufs [][]byte, offset int, write []int) ([]int, error) {
	for _, buf := range bufs {
		if offset < HeaderLen || offset >= len(buf) {
			return write, errors.New("segue: invalid offset")
		}
	}
	if len(bufs) > j.count {
		C.free(unsafe.Pointer(j.list))
		j.count = len(bufs)
		j.list = (*C.size_t)(C.malloc(C.size_t(j.count) * C.sizeof_size_t))
	}
	list := j.outs.take(bufs, offset)
	defer j.outs.drop()
	n := C.segue_join_in_place(j.c, j.outs.c(), C.size_t(len(list)), C.size_t(offset), j.list, C.size_t(j.count))
	runtime.KeepAlive(j)
	if n < 0 {
		return write, Error(n)
	}
	for _, at := range unsafe.Slice(j.list, j.count)[:n] {
		bufs[at] = bufs[at][:offset+int(list[at].len)]
		write = append(write, int(at))
	}
	return write, nil
}
