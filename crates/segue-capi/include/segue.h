/* segue.h: GRO, GSO, checksums and tunnels in user space. See segue(3).
 *
 * Results: functions that return ptrdiff_t return a number, or a negative error (segue_error_name). Nothing is sent or
 * received here, no clock is read, no thread is started.
 * Ownership: what a _new function returns is the caller's until its _free function; null says that there is none.
 * Memory that is passed is the caller's; none is kept past the call, so that no function calls back to release it. The
 * pieces of segue_join, segue_join_chains and segue_split_chain point into it.
 * Threads: an object is used by one thread at a time, any thread. The functions without an object need nothing.
 * Faults: a panic inside of the library ends as SEGUE_ERR_PANIC, as null from a _new function, or as 0 from a function
 * of checksums; free the object then.
 * Versions: configurations begin with their size, so that they can grow. The other structs keep their layout.
 *
 * Licence: Apache-2.0 OR MIT.
 */
#ifndef SEGUE_H
#define SEGUE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SEGUE_ERR_NULL (-1)     /* a pointer that must not be null is */
#define SEGUE_ERR_ARGUMENT (-2) /* an argument is out of its range */
#define SEGUE_ERR_ROOM (-3)     /* too few places for the results, or too little memory in one; nothing was written */
#define SEGUE_ERR_PANIC (-4)    /* a fault of the library */
#define SEGUE_ERR_CONFIG (-5)   /* a configuration that contradicts itself */
/* Other errors are reasons for which a packet was refused: -100 and below for virtio-net headers, -200 segmentation,
 * -300 encapsulation, -400 decapsulation. Their names are stable, and are those of the program's counters. */

/* The version of the library: major, minor, patch in a byte each. */
uint32_t segue_version(void);
/* The name of an error ("gso_size"), and a sentence about it. They live as long as the program. */
const char *segue_error_name(ptrdiff_t error);
const char *segue_error_text(ptrdiff_t error);
/* Panics inside of the library and returns SEGUE_ERR_PANIC, for tests. */
ptrdiff_t segue_test_panic(void);

/* ---- checksums (RFC 1071). A sum is a big-endian word in the machine's byte order, not complemented. ---- */

uint16_t segue_sum(const uint8_t *bytes, size_t len);
/* Copies and sums in one pass. The two must not overlap. */
uint16_t segue_sum_copy(uint8_t *to, const uint8_t *from, size_t len);
/* The sum of two runs of bytes, one behind the other; the first has first_len bytes. */
uint16_t segue_sum_append(uint16_t first, size_t first_len, uint16_t second);
/* The sum of the pseudo header; version is 4 or 6, len counts from the transport header on. */
uint16_t segue_pseudo(uint32_t version, const uint8_t *src, const uint8_t *dst, uint8_t protocol, size_t len);
/* A checksum field updated for the change of one word (RFC 1624). */
uint16_t segue_field_update(uint16_t field, uint16_t old_word, uint16_t new_word);

/* ---- split: one read of a device into packets ---- */

struct segue_out {
    uint8_t *base; /* memory for one packet */
    size_t room;   /* its length in bytes */
    size_t len;    /* result: the length of the packet */
};

struct segue_splitter;

/* header_len: bytes of the virtio-net header in front of each read: 10, 12, 20 or 24, with little-endian fields, or 0
 * for none. ethernet: 0 if packets begin with an IP header, else 1. Null for another header_len. */
struct segue_splitter *segue_splitter_new(size_t header_len, uint32_t ethernet);
void segue_splitter_free(struct segue_splitter *splitter);
/* Splits what one read returned and writes each packet, complete, behind offset bytes of one of outs. Returns the
 * number of packets. 64 kB in the smallest segments are 8192 packets; the MTU of the device bounds the usual number.
 * An error is about this read alone, which any user of the host can cause: count it, and read on. */
ptrdiff_t segue_split(struct segue_splitter *splitter, const uint8_t *unit, size_t len, struct segue_out *outs,
                      size_t count, size_t offset);

/* Splits, as segue_split does, a packet whose virtio-net header, of header_len bytes, lies elsewhere. */
ptrdiff_t segue_split_with(struct segue_splitter *splitter, const uint8_t *header, size_t header_len,
                           const uint8_t *packet, size_t len, struct segue_out *outs, size_t count, size_t offset);

/* ---- pieces of memory, and packets that lie in them ---- */

#define SEGUE_CSUM_UNKNOWN 0  /* verified before anything is joined */
#define SEGUE_CSUM_VERIFIED 1 /* the caller has checked it */
#define SEGUE_CSUM_OWED 2     /* the field holds the sum of the pseudo header */

struct segue_piece { /* has the layout of struct iovec */
    const uint8_t *base;
    size_t len;
};

struct segue_chain { /* a packet in several pieces, such as a descriptor chain or an rte_mbuf and those behind it */
    const struct segue_piece *pieces;
    size_t count;  /* number of pieces; headers may cross them */
    uint32_t csum; /* SEGUE_CSUM_ */
};

struct segue_train {
    size_t first;    /* index of its first piece */
    size_t count;    /* number of its pieces, to be written in one call */
    size_t len;      /* bytes in all of them */
    size_t segments; /* number of packets joined; 1 for a packet */
};

/* Splits a packet or train whose virtio-net header of header_len bytes lies elsewhere (header_len 0: it has none),
 * and lists the packets; returns their number. Payload is not copied: the headers of a packet are one piece, the
 * first, which lies in the splitter until its next call; everything else lies in the chain. Every checksum is
 * complete; with SEGUE_CSUM_OWED in the chain those of the transport stay owed, for a device that completes them. A
 * packet that owes another checksum than that of TCP or UDP is refused (gso_csum_place); segue_split completes it.
 * Needs as many pieces as the chain has and two for each packet. */
ptrdiff_t segue_split_chain(struct segue_splitter *splitter, const uint8_t *header, size_t header_len,
                            const struct segue_chain *chain, struct segue_train *packets, size_t packet_count,
                            struct segue_piece *pieces, size_t piece_count);

/* ---- join: the packets of a batch into trains for a device ---- */

/* offloads: none; trains are IP packets of up to 64 kB with their checksum, for a host on which the connections end: it
 * cannot forward them */
#define SEGUE_PLAIN 0xffffffffu

struct segue_joiner_config {
    size_t size;         /* sizeof(struct segue_joiner_config) */
    uint64_t key[2];     /* random numbers of the system, secret; the library takes its own for zeros */
    uint32_t offloads;   /* the TUN_F_ bits that the device accepted (TUNSETOFFLOAD), or SEGUE_PLAIN */
    uint32_t header_len; /* bytes of the virtio-net header: 10, 12, 20 or 24; 0 with SEGUE_PLAIN */
    uint32_t ethernet;   /* 0: packets begin with an IP header; 1: with an Ethernet header */
    uint32_t profile;    /* 0: joins only what splits into the same bytes; 1: joins what Linux 6.18 joins;
                          * segue_joiner_new returns null for others */
};

struct segue_buf {
    const uint8_t *base; /* a packet */
    size_t len;
    uint32_t csum; /* SEGUE_CSUM_ */
};

struct segue_joiner;

struct segue_joiner *segue_joiner_new(const struct segue_joiner_config *config);
void segue_joiner_free(struct segue_joiner *joiner);
/* Joins a batch, in the order of arrival, and lists the trains; returns their number. The virtio-net header and the
 * headers of a train are one piece, the first, which lies in the joiner until its next call; everything else lies in
 * the packets. A packet that owes a checksum and is of another protocol than TCP and UDP, such as ICMP, or a fragment,
 * is passed on as it is; it is lost where TCP or UDP is behind more headers than are read, or has wrong lengths.
 * Needs as many trains as packets, and twice as many pieces. */
ptrdiff_t segue_join(struct segue_joiner *joiner, const struct segue_buf *packets, size_t count,
                     struct segue_train *trains, size_t train_count, struct segue_piece *pieces, size_t piece_count);

/* Joins, as segue_join does, packets in several pieces. Needs as many trains as packets, and as many pieces as are
 * given and one for each packet. */
ptrdiff_t segue_join_chains(struct segue_joiner *joiner, const struct segue_chain *packets, size_t count,
                            struct segue_train *trains, size_t train_count, struct segue_piece *pieces, size_t piece_count);

/* Joins a batch in the packets' own memory: each has len bytes behind offset bytes of its memory, in which the
 * virtio-net header has room. A train lies in the memory of its first packet, whose len grows; what does not fit
 * there stays alone. Lists the packets to be written, from their virtio-net header on, in one call each, and returns
 * their number. */
ptrdiff_t segue_join_in_place(struct segue_joiner *joiner, struct segue_out *packets, size_t count, size_t offset,
                              size_t *to_write, size_t write_count);

/* ---- tunnels ---- */

#define SEGUE_MODE_IP 0  /* IP in IP */
#define SEGUE_MODE_GRE 1 /* GRE without options */

#define SEGUE_CARRIER_IP 0          /* straight in IP */
#define SEGUE_CARRIER_FOU 1         /* in UDP */
#define SEGUE_CARRIER_GUE 2         /* in GUE */
#define SEGUE_CARRIER_GUE_REMCSUM 3 /* in GUE with remote checksum offload */

struct segue_tunnel_config {
    size_t size; /* sizeof(struct segue_tunnel_config) */
    uint32_t mode;
    uint32_t carrier;
    uint32_t version; /* 4 or 6, of the outer addresses */
    uint16_t port;    /* UDP port of both ends, 0 for the usual one */
    uint8_t local[16]; /* IPv4 uses the first 4 bytes */
    uint8_t remote[16];
    uint64_t key[2]; /* of the flow hash, which chooses the UDP source port: random numbers of the system, secret; the
                      * library takes its own for zeros, and where size says that they are not there */
};

struct segue_tunnel;

struct segue_tunnel *segue_tunnel_new(const struct segue_tunnel_config *config);
void segue_tunnel_free(struct segue_tunnel *tunnel);
/* Takes a virtio-net header of 10 bytes and an IP packet or train, and writes the packets of the tunnel from the
 * outer IP header on, complete. Returns their number. */
ptrdiff_t segue_encap(struct segue_tunnel *tunnel, const uint8_t *unit, size_t len, struct segue_out *outs, size_t count);
/* Takes a packet from its outer IP header on and writes the packet inside, complete. Addresses, ports and outer
 * checksums are checked. Returns 1. */
ptrdiff_t segue_decap(struct segue_tunnel *tunnel, const uint8_t *packet, size_t len, struct segue_out *out);

#ifdef __cplusplus
}
#endif
#endif
