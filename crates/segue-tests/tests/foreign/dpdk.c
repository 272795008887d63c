/* DPDK's GRO in the lightweight mode, over the cases of foreign.rs.
 *
 * usage: dpdk CASES RESULTS; both are lists of cases: the number of packets, then each behind its length, all numbers
 * of 32 bits, little-endian.
 * What rte_gro has to know of a packet, DPDK's own parser finds.
 * Built by `cc dpdk.c $(pkg-config --cflags --libs libdpdk)`. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <rte_eal.h>
#include <rte_gro.h>
#include <rte_mbuf.h>
#include <rte_net.h>

/* Largest number of packets of a case, and of bytes of a packet. */
enum { MOST = 128, ROOM = 16384 };

static struct rte_mempool *pool;
static FILE *cases, *results;

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "dpdk: %s\n", what);
        exit(1);
    }
}

/* Reads a number; 0 at the end of the file. */
static int read_number(uint32_t *number) { return fread(number, sizeof *number, 1, cases) == 1; }

static void write_number(uint32_t number) {
    check(fwrite(&number, sizeof number, 1, results) == 1, "a result is written");
}

/* Reads a packet into a buffer, as a driver hands it over. */
static struct rte_mbuf *read_packet(void) {
    struct rte_mbuf *packet = rte_pktmbuf_alloc(pool);
    struct rte_net_hdr_lens lens = {0};
    uint32_t len;
    check(packet != NULL && read_number(&len) && len <= ROOM, "a packet of a known length");
    char *bytes = rte_pktmbuf_append(packet, (uint16_t)len);
    check(bytes != NULL && fread(bytes, 1, len, cases) == len, "the bytes of a packet");
    packet->packet_type = rte_net_get_ptype(packet, &lens, RTE_PTYPE_ALL_MASK);
    packet->l2_len = lens.l2_len;
    packet->l3_len = lens.l3_len;
    packet->l4_len = lens.l4_len;
    return packet;
}

static void write_packet(const struct rte_mbuf *packet) {
    write_number(packet->pkt_len);
    for (; packet != NULL; packet = packet->next) {
        const char *bytes = rte_pktmbuf_mtod(packet, const char *);
        check(fwrite(bytes, 1, packet->data_len, results) == packet->data_len, "bytes are written");
    }
}

int main(int argc, char **argv) {
    char *args[] = {argv[0], "--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--no-shconf", "--log-level", "3"};
    struct rte_gro_param param = {
        .gro_types = RTE_GRO_TCP_IPV4, .max_flow_num = MOST, .max_item_per_flow = MOST, .socket_id = 0};
    struct rte_mbuf *packets[MOST];
    uint32_t count;
    check(argc == 3 && (cases = fopen(argv[1], "rb")) && (results = fopen(argv[2], "wb")), "usage: dpdk CASES RESULTS");
    check(rte_eal_init((int)RTE_DIM(args), args) >= 0, "DPDK starts");
    pool = rte_pktmbuf_pool_create("packets", 1023, 0, 0, RTE_PKTMBUF_HEADROOM + ROOM, 0);
    check(pool != NULL, "there is room for packets");
    while (read_number(&count)) {
        check(count <= MOST, "a case of few packets");
        for (uint32_t at = 0; at < count; at++)
            packets[at] = read_packet();
        uint16_t left = rte_gro_reassemble_burst(packets, (uint16_t)count, &param);
        write_number(left);
        for (uint16_t at = 0; at < left; at++) {
            write_packet(packets[at]);
            rte_pktmbuf_free(packets[at]);
        }
    }
    check(fclose(results) == 0, "the results are written");
    return 0;
}
