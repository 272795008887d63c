/* Packets in buffers of DPDK, chained: a train of any protocol that segue knows is cut into chains of a header and
 * indirect buffers, and packets are joined to a train in the same way, without a copy of payload.
 *
 * usage: mbufs CASES RESULTS; both are lists of records of a 32-bit length and bytes, as of
 * crates/segue-capi/c/judge.c. Prints how many of the trains rte_gso cuts, and how many there were.
 * Built by `cc mbufs.c $(pkg-config --cflags --libs libdpdk segue)`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_gso.h>
#include <rte_mbuf.h>

#include <segue.h>

enum { VNET = 10, ROOM = 300, BUFS = 8191, MOST_PIECES = 4096, MOST_PACKETS = 256 };
enum { NEEDS_CSUM = 1, GSO_TCPV4 = 1, GSO_TCPV6 = 4, GSO_UDP_L4 = 5, GSO_ECN = 0x80 };

static struct rte_mempool *data, *headers, *indirect;
static struct segue_piece given[MOST_PIECES], pieces[3 * MOST_PIECES];
static struct rte_mbuf *givers[MOST_PIECES]; /* the buffer of each given piece */
static struct segue_train trains[MOST_PACKETS];
static FILE *cases, *results;

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "mbufs: %s\n", what);
        exit(1);
    }
}

/* ---- buffers to pieces ---- */

/* Adds the buffers of a packet to the given pieces. */
static struct segue_chain chain_of(struct rte_mbuf *packet, size_t *used, uint32_t csum) {
    struct segue_chain chain = {&given[*used], packet->nb_segs, csum};
    for (; packet != NULL; packet = packet->next, ++*used) {
        check(*used < MOST_PIECES, "places for pieces");
        givers[*used] = packet;
        given[*used].base = rte_pktmbuf_mtod(packet, const uint8_t *);
        given[*used].len = rte_pktmbuf_data_len(packet);
    }
    return chain;
}

/* ---- pieces to buffers ---- */

/* An indirect buffer for a piece of a given one. *at is the number of the given piece that was found last. */
static struct rte_mbuf *borrowed(const struct segue_piece *piece, size_t used, size_t *at) {
    struct rte_mbuf *made = rte_pktmbuf_alloc(indirect);
    size_t tried = 0;
    while (piece->base < given[*at].base || piece->base >= given[*at].base + given[*at].len) {
        *at = (*at + 1) % used;
        check(++tried <= used, "a piece of what was given");
    }
    check(made != NULL, "an indirect buffer");
    rte_pktmbuf_attach(made, givers[*at]);
    made->data_off += (uint16_t)(piece->base - given[*at].base);
    made->data_len = (uint16_t)piece->len;
    made->pkt_len = made->data_len;
    return made;
}

/* A packet or train as a chain: its headers in a buffer of their own, behind skip bytes of the first piece, the rest
 * borrowed. */
static struct rte_mbuf *packet_of(const struct segue_train *train, size_t used, size_t skip, size_t *at) {
    const struct segue_piece *piece = &pieces[train->first];
    struct rte_mbuf *packet = rte_pktmbuf_alloc(headers), *last = packet;
    size_t number;
    check(packet != NULL, "a buffer for headers");
    memcpy(rte_pktmbuf_append(packet, (uint16_t)(piece->len - skip)), piece->base + skip, piece->len - skip);
    for (number = 1; number < train->count; number++) {
        last->next = borrowed(&piece[number], used, at);
        last = last->next;
        packet->nb_segs++;
        packet->pkt_len += last->data_len;
    }
    return packet;
}

/* ---- virtio-net headers and DPDK's offload flags ---- */

/* Sets the transmit offload flags of a packet according to its virtio-net header. */
static void request(struct rte_mbuf *packet, const uint8_t *vnet) {
    const uint8_t *bytes = rte_pktmbuf_mtod(packet, const uint8_t *);
    uint16_t l2 = 14, start = (uint16_t)(vnet[6] | vnet[7] << 8), size = (uint16_t)(vnet[4] | vnet[5] << 8);
    int is_tcp = vnet[8] == 16;
    if (!(vnet[0] & NEEDS_CSUM)) return;
    while (bytes[l2 - 2] == 0x81 || bytes[l2 - 2] == 0x88) l2 += 4; /* VLAN tags */
    packet->l2_len = l2;
    packet->l3_len = start - l2;
    packet->l4_len = is_tcp ? (bytes[start + 12] >> 4) * 4 : 8;
    packet->ol_flags |= bytes[l2] >> 4 == 4 ? RTE_MBUF_F_TX_IPV4 : RTE_MBUF_F_TX_IPV6;
    packet->ol_flags |= is_tcp ? RTE_MBUF_F_TX_TCP_CKSUM : RTE_MBUF_F_TX_UDP_CKSUM;
    if (vnet[1] != 0) {
        packet->ol_flags |= is_tcp ? RTE_MBUF_F_TX_TCP_SEG : RTE_MBUF_F_TX_UDP_SEG;
        packet->tso_segsz = size;
    }
}

/* Writes the virtio-net header that a virtio driver makes from a packet's transmit offload flags. */
static void vnet_of(const struct rte_mbuf *packet, uint8_t *vnet) {
    uint16_t start = (uint16_t)(packet->l2_len + packet->l3_len), length = (uint16_t)(start + packet->l4_len);
    int is_tcp = (packet->ol_flags & RTE_MBUF_F_TX_L4_MASK) == RTE_MBUF_F_TX_TCP_CKSUM;
    memset(vnet, 0, VNET);
    if (!(packet->ol_flags & RTE_MBUF_F_TX_L4_MASK)) return;
    vnet[0] = NEEDS_CSUM;
    vnet[6] = (uint8_t)start, vnet[7] = (uint8_t)(start >> 8);
    vnet[8] = is_tcp ? 16 : 6;
    if (packet->ol_flags & (RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_UDP_SEG)) {
        const uint8_t *bytes = rte_pktmbuf_mtod(packet, const uint8_t *);
        int is_v4 = (packet->ol_flags & RTE_MBUF_F_TX_IPV4) != 0;
        vnet[1] = is_tcp ? (is_v4 ? GSO_TCPV4 : GSO_TCPV6) : GSO_UDP_L4;
        if (is_tcp && bytes[start + 13] & 0x80) vnet[1] |= GSO_ECN; /* CWR */
        vnet[2] = (uint8_t)length, vnet[3] = (uint8_t)(length >> 8);
        vnet[4] = (uint8_t)packet->tso_segsz, vnet[5] = (uint8_t)(packet->tso_segsz >> 8);
    }
}

/* ---- cases ---- */

static uint8_t *record(uint32_t *len) {
    uint8_t *bytes;
    if (fread(len, sizeof *len, 1, cases) != 1) return NULL;
    bytes = malloc(*len + 1);
    check(bytes != NULL && fread(bytes, 1, *len, cases) == *len, "a whole record");
    return bytes;
}

static void put(const void *bytes, size_t len) {
    uint32_t word = (uint32_t)len;
    check(fwrite(&word, sizeof word, 1, results) == 1 && fwrite(bytes, 1, len, results) == len, "a result");
}

/* Writes a packet as one run of bytes, behind its header if it has one. */
static void put_packet(const struct rte_mbuf *packet, size_t vnet_len) {
    uint8_t *flat = malloc(vnet_len + packet->pkt_len);
    const void *bytes;
    check(flat != NULL && rte_mbuf_check(packet, 1, &(const char *){NULL}) == 0, "a chain that DPDK accepts");
    if (vnet_len) vnet_of(packet, flat);
    bytes = rte_pktmbuf_read(packet, 0, packet->pkt_len, flat + vnet_len);
    check(bytes != NULL, "all bytes");
    if (bytes != flat + vnet_len) memcpy(flat + vnet_len, bytes, packet->pkt_len);
    put(flat, vnet_len + packet->pkt_len);
    free(flat);
}

/* Copies bytes to a chain of buffers, as a driver with small ones receives them. */
static struct rte_mbuf *received(const uint8_t *bytes, size_t len) {
    struct rte_mbuf *first = NULL;
    size_t at, part;
    for (at = 0; at < len; at += part) {
        struct rte_mbuf *buf = rte_pktmbuf_alloc(data);
        check(buf != NULL, "a buffer");
        part = len - at < ROOM ? len - at : ROOM;
        memcpy(rte_pktmbuf_append(buf, (uint16_t)part), bytes + at, part);
        check(first == NULL || rte_pktmbuf_chain(first, buf) == 0, "a chain");
        if (first == NULL) first = buf;
    }
    return first;
}

/* Whether DPDK's own GSO cuts the train. It would make IP fragments of UDP, not the datagrams that were asked for. */
static int is_cut_by_rte_gso(struct rte_mbuf *packet) {
    struct rte_mbuf *out[MOST_PACKETS];
    struct rte_gso_ctx ctx = {.direct_pool = headers, .indirect_pool = indirect, .gso_types = RTE_ETH_TX_OFFLOAD_TCP_TSO};
    int made, number;
    ctx.gso_size = (uint16_t)(packet->l2_len + packet->l3_len + packet->l4_len + packet->tso_segsz);
    made = rte_gso_segment(packet, &ctx, out, MOST_PACKETS);
    for (number = 0; number < made; number++) rte_pktmbuf_free(out[number]);
    return made > 1;
}

static int split(struct segue_splitter *splitter, const uint8_t *unit, size_t len) {
    struct rte_mbuf *packet = received(unit + VNET, len - VNET);
    size_t used = 0, at = 0;
    struct segue_chain chain = chain_of(packet, &used, SEGUE_CSUM_UNKNOWN);
    ptrdiff_t made = segue_split_chain(splitter, unit, VNET, &chain, trains, MOST_PACKETS, pieces, 3 * MOST_PIECES), number;
    int32_t count = (int32_t)made;
    int is_cut;
    put(&count, sizeof count);
    for (number = 0; number < made; number++) {
        struct rte_mbuf *one = packet_of(&trains[number], used, 0, &at);
        put_packet(one, 0);
        rte_pktmbuf_free(one);
    }
    request(packet, unit);
    is_cut = is_cut_by_rte_gso(packet);
    rte_pktmbuf_free(packet);
    return is_cut;
}

static void join(struct segue_joiner *joiner, uint32_t count) {
    struct segue_chain chains[MOST_PACKETS] = {{NULL, 0, 0}};
    struct rte_mbuf *packets[MOST_PACKETS], *made_of[MOST_PACKETS];
    size_t used = 0, at = 0;
    uint32_t number, len;
    ptrdiff_t made;
    int32_t word;
    check(count <= MOST_PACKETS, "places for packets");
    for (number = 0; number < count; number++) {
        uint8_t *bytes = record(&len);
        packets[number] = received(bytes, len);
        free(bytes);
        chains[number] = chain_of(packets[number], &used, SEGUE_CSUM_UNKNOWN);
    }
    made = segue_join_chains(joiner, chains, count, trains, MOST_PACKETS, pieces, 3 * MOST_PIECES);
    word = (int32_t)made;
    put(&word, sizeof word);
    for (number = 0; made > 0 && number < (uint32_t)made; number++) {
        made_of[number] = packet_of(&trains[number], used, VNET, &at);
        request(made_of[number], pieces[trains[number].first].base);
    }
    /* The trains have their own hold on the memory of the packets. */
    for (number = 0; number < count; number++) rte_pktmbuf_free(packets[number]);
    for (number = 0; made > 0 && number < (uint32_t)made; number++) {
        put_packet(made_of[number], VNET);
        rte_pktmbuf_free(made_of[number]);
    }
}

int main(int argc, char **argv) {
    static char *args[] = {"mbufs", "--no-huge", "-m", "64", "--no-pci", "--no-telemetry", "--no-shconf",
                           "--log-level", "3", "-l", "0"};
    struct segue_joiner_config config;
    struct segue_splitter *splitter = segue_splitter_new(VNET, 1);
    struct segue_joiner *joiner;
    uint8_t *bytes;
    uint32_t len;
    int cut = 0, all = 0;
    check(argc == 3 && (cases = fopen(argv[1], "rb")) && (results = fopen(argv[2], "wb")), "usage: mbufs CASES RESULTS");
    check(rte_eal_init((int)RTE_DIM(args), args) >= 0, "DPDK starts");
    data = rte_pktmbuf_pool_create("data", BUFS, 0, 0, RTE_PKTMBUF_HEADROOM + ROOM, 0);
    headers = rte_pktmbuf_pool_create("headers", BUFS, 0, 0, RTE_PKTMBUF_HEADROOM + 256, 0);
    indirect = rte_pktmbuf_pool_create("indirect", BUFS, 0, 0, 0, 0);
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.offloads = 0x6f;
    config.header_len = VNET;
    config.ethernet = 1;
    joiner = segue_joiner_new(&config);
    check(data && headers && indirect && splitter && joiner, "pools and objects");
    while ((bytes = record(&len)) != NULL) {
        char kind = (char)bytes[0];
        free(bytes);
        bytes = record(&len);
        check(bytes != NULL, "a case");
        if (kind == 's') {
            cut += split(splitter, bytes, len);
            all++;
        } else {
            uint32_t count;
            memcpy(&count, bytes, sizeof count);
            join(joiner, count);
        }
        free(bytes);
    }
    check(rte_mempool_avail_count(data) == BUFS && rte_mempool_avail_count(headers) == BUFS
              && rte_mempool_avail_count(indirect) == BUFS, "every buffer is back");
    segue_splitter_free(splitter), segue_joiner_free(joiner);
    printf("%d %d\n", cut, all);
    rte_eal_cleanup();
    return fclose(results) == 0 && fclose(cases) == 0 ? 0 : 1;
}
