// Command segue-bench-peers measures wireguard-go and gVisor as peers that are programs: ../src/program.rs has the
// lines that it reads and answers.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"time"
)

const (
	// Bytes of an Ethernet header.
	ethernet = 14
	// Most packets that a peer takes at once.
	atOnce = 128
	// Number of sums of the same bytes that are timed together.
	sums = 64
	// Payload of a segment, and segments of the train that is cut.
	size, segments = 1448, 44
)

// A peer does the work of a row once, and returns how long that took, or false if it does not do such work.
type peer interface {
	join(packets, warm [][]byte, known bool) time.Duration
	sum(bytes []byte) time.Duration
	cut(train []byte) (time.Duration, bool)
}

var caches = make([]uint64, 12<<20)

// emptyCaches evicts the processor's caches by reading and writing more than they hold.
func emptyCaches() {
	for i := 0; i < len(caches); i += 8 {
		caches[i]++
	}
}

// cost is the time that reading the clock takes.
var cost time.Duration

func since(begin time.Time) time.Duration {
	return max(time.Since(begin)-cost, 0)
}

func load(path string) [][]byte {
	data, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	var packets [][]byte
	for len(data) > 0 {
		size := binary.LittleEndian.Uint32(data)
		packets = append(packets, slices.Clone(data[4:4+size]))
		data = data[4+size:]
	}
	return packets
}

func median(times int, work func() time.Duration) time.Duration {
	spent := make([]time.Duration, times)
	for i := range spent {
		spent[i] = work()
	}
	slices.Sort(spent)
	return spent[times/2]
}

// kinds has the work of each kind of row in which a peer can take part.
var kinds = map[string]string{
	"known-1": "join", "known-8": "join", "known-64": "join", "verifying-1": "join", "verifying-8": "join",
	"verifying-64": "join", "cold-1": "join", "cold-8": "join", "acks": "join", "icmp": "join", "push": "join", "random": "join", "reversed": "join", "cut": "cut",
	"sum-40": "sum", "sum-1460": "sum", "sum-9000": "sum", "sum-65535": "sum",
}

func answer(one peer, packets [][]byte, row string, times int, cold, known bool) (float64, bool) {
	switch kinds[row] {
	case "join":
		ip := make([][]byte, len(packets))
		var warm [][]byte
		for i, packet := range packets {
			ip[i] = packet[ethernet:]
			if cold {
				warm = append(warm, slices.Clone(ip[i]))
			}
		}
		spent := median(times, func() time.Duration {
			var spent time.Duration
			for batch := range slices.Chunk(ip, atOnce) {
				spent += one.join(batch, warm, known)
			}
			return spent
		})
		return float64(spent.Nanoseconds()) / float64(len(packets)), true
	case "cut":
		if _, can := one.cut(packets[0][ethernet:]); !can {
			return 0, false
		}
		spent := median(times, func() time.Duration {
			spent, _ := one.cut(packets[0][ethernet:])
			return spent
		})
		return float64(spent.Nanoseconds()) / segments, true
	case "sum":
		spent := median(times, func() time.Duration { return one.sum(packets[0]) })
		return float64(spent.Nanoseconds()) / sums, true
	}
	return 0, false
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: segue-bench-peers wireguard-go|gVisor FOLDER")
		os.Exit(2)
	}
	runtime.LockOSThread()
	cost = median(1001, func() time.Duration { return time.Since(time.Now()) })
	one := map[string]func() peer{"wireguard-go": newWireGuard, "gVisor": newGVisor}[os.Args[1]]()
	input := bufio.NewScanner(os.Stdin)
	rows := map[string][][]byte{}
	for input.Scan() {
		var row, heat, sum string
		var times int
		fmt.Sscan(input.Text(), &row, &times, &heat, &sum)
		if _, has := rows[row]; !has && kinds[row] != "" {
			rows[row] = load(filepath.Join(os.Args[2], row))
		}
		// Nothing is collected while the time is taken.
		debug.SetGCPercent(-1)
		nanos, can := answer(one, rows[row], row, times, heat == "cold", sum == "known")
		debug.SetGCPercent(100)
		if can {
			fmt.Printf("%.3f\n", nanos)
		} else {
			fmt.Println("-")
		}
	}
}
