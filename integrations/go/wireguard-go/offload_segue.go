// The functions of wireguard-go's package tun that join and split packets, on segue: the same names, arguments and
// results. integrations/theirs puts this file beside that package's own, whose functions it takes away.

package tun

import (
	"errors"
	"sync"
	"sync/atomic"

	segue "github.com/segue-net/segue/integrations/go"
)

var (
	splitters  = sync.Pool{New: func() any { return segue.NewSplitter() }}
	tcpJoiners = sync.Pool{New: func() any { return joiner(segue.OffloadsTCP) }}
	allJoiners = sync.Pool{New: func() any { return joiner(segue.OffloadsTCPUDP) }}
)

func joiner(offloads uint32) *segue.Joiner {
	j, err := segue.NewJoiner(offloads)
	if err != nil {
		panic(err) // the system has no random numbers
	}
	return j
}

// handleGRO joins the packets in bufs, and lists in toWrite those to be written. The tables are not used: what segue
// keeps is in its joiner.
func handleGRO(bufs [][]byte, offset int, _ *tcpGROTable, _ *udpGROTable, canUDPGRO bool, toWrite *[]int) error {
	pool := &tcpJoiners
	if canUDPGRO {
		pool = &allJoiners
	}
	j := pool.Get().(*segue.Joiner)
	defer pool.Put(j)
	var err error
	*toWrite, err = j.Join(bufs, offset, *toWrite)
	return err
}

// Unread is the number of trains that were read but cannot be split, such as those with a source route.
var Unread atomic.Uint64

// gsoSplit writes the packets of the train in to outBuffs. A train that cannot be split is dropped and counted: any
// user of the host can send one, and for an error other than ErrTooManySegments the device would be closed.
func gsoSplit(in []byte, hdr virtioNetHdr, outBuffs [][]byte, sizes []int, outOffset int, _ bool) (int, error) {
	var header [virtioNetHdrLen]byte
	if err := hdr.encode(header[:]); err != nil {
		return 0, err
	}
	// No more buffers are passed than the train can fill.
	if most := len(in)/max(int(hdr.gsoSize), 1) + 1; most < len(outBuffs) {
		outBuffs = outBuffs[:most]
	}
	s := splitters.Get().(*segue.Splitter)
	defer splitters.Put(s)
	n, err := s.Split(header[:], in, outBuffs, sizes, outOffset)
	var refused segue.Error
	if errors.Is(err, segue.ErrRoom) {
		err = ErrTooManySegments
	} else if errors.As(err, &refused) && refused.IsPacket() {
		Unread.Add(1)
		err = nil
	}
	return n, err
}
