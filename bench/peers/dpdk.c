/* DPDK's GRO in the lightweight mode, its GSO and its checksum, as a peer that is a program: src/program.rs has the
 * lines that it reads and answers. Without huge pages and devices. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_gro.h>
#include <rte_gso.h>
#include <rte_ip.h>
#include <rte_mbuf.h>

enum { AT_ONCE = 128, MOST = 4096, ETHER = 14, IPV4 = 20, SUMS = 64, SEGMENTS = 44, SIZE = 1448 };

/* The packets of a row. */
static uint8_t *frames[MOST];
static uint32_t lens[MOST];
static unsigned count;

static struct rte_mempool *pool, *large, *direct, *indirect;
static struct rte_mbuf *bufs[AT_ONCE];
static double nanos_a_tick, cost;

/* Reads the time stamp counter after everything before it has completed. */
static inline uint64_t ticks(void) {
    __builtin_ia32_lfence();
    uint64_t now = rte_rdtsc();
    __builtin_ia32_lfence();
    return now;
}

static void load(const char *folder, const char *row) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, row);
    for (unsigned i = 0; i < count; i++)
        free(frames[i]);
    count = 0;
    FILE *file = fopen(path, "rb");
    while (file && count < MOST && fread(&lens[count], 4, 1, file) == 1) {
        frames[count] = malloc(lens[count]);
        if (fread(frames[count], 1, lens[count], file) != lens[count])
            exit(1);
        count++;
    }
    if (file)
        fclose(file);
}

/* The length of the header behind IPv4's, or 0 if it is not TCP. */
static unsigned tcp_len(const uint8_t *frame) {
    return frame[ETHER + 9] == 6 ? (frame[ETHER + IPV4 + 12] >> 4) * 4 : 0;
}

/* Puts packets into the buffers, as a driver hands them over. Not timed. */
static void fill(unsigned first, unsigned number) {
    for (unsigned i = 0; i < number; i++) {
        struct rte_mbuf *m = bufs[i];
        uint32_t len = lens[first + i];
        m->data_off = RTE_PKTMBUF_HEADROOM;
        m->next = NULL;
        m->nb_segs = 1;
        m->data_len = len;
        m->pkt_len = len;
        m->ol_flags = 0;
        m->tx_offload = 0;
        m->l2_len = ETHER;
        m->l3_len = IPV4;
        m->l4_len = tcp_len(frames[first + i]);
        m->packet_type = RTE_PTYPE_L2_ETHER | RTE_PTYPE_L3_IPV4 | (m->l4_len ? RTE_PTYPE_L4_TCP : RTE_PTYPE_L4_ICMP);
        memcpy(rte_pktmbuf_mtod(m, void *), frames[first + i], len);
    }
}

/* Merges the packets of the row. Returns the ticks. */
static double join(void) {
    struct rte_gro_param param = {
        .gro_types = RTE_GRO_TCP_IPV4, .max_flow_num = AT_ONCE, .max_item_per_flow = AT_ONCE, .socket_id = 0};
    double spent = 0;
    for (unsigned first = 0; first < count; first += AT_ONCE) {
        unsigned number = RTE_MIN(count - first, (unsigned)AT_ONCE);
        struct rte_mbuf *burst[AT_ONCE];
        fill(first, number);
        memcpy(burst, bufs, number * sizeof *burst);
        uint64_t before = ticks();
        volatile uint16_t left = rte_gro_reassemble_burst(burst, number, &param);
        spent += ticks() - before - cost;
        (void)left;
    }
    return spent;
}

/* Cuts the train of the row into buffers that refer to it. Returns the ticks. */
static double scatter(void) {
    static struct rte_mbuf *train, *out[256];
    if (!train) {
        train = rte_pktmbuf_alloc(large);
        train->data_off = 0;
        memcpy(rte_pktmbuf_append(train, lens[0]), frames[0], lens[0]);
        train->l2_len = ETHER;
        train->l3_len = IPV4;
        train->l4_len = tcp_len(frames[0]);
    }
    struct rte_gso_ctx ctx = {.direct_pool = direct, .indirect_pool = indirect, .gso_types = RTE_ETH_TX_OFFLOAD_TCP_TSO,
                              .gso_size = ETHER + IPV4 + train->l4_len + SIZE};
    train->ol_flags = RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IPV4;
    uint64_t before = ticks();
    int made = rte_gso_segment(train, &ctx, out, 256);
    double spent = ticks() - before - cost;
    if (made != SEGMENTS)
        exit(1);
    for (int i = 0; i < made; i++)
        rte_pktmbuf_free(out[i]);
    return spent;
}

static double sum(void) {
    volatile uint16_t sink;
    uint64_t before = ticks();
    for (int i = 0; i < SUMS; i++) {
        __asm__ volatile("" ::: "memory");
        sink = rte_raw_cksum(frames[0], lens[0]);
    }
    (void)sink;
    return ticks() - before - cost;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double (*work)(void), int times) {
    double spent[1024];
    if (times > 1024)
        times = 1024;
    for (int i = 0; i < times; i++)
        spent[i] = work();
    qsort(spent, times, sizeof *spent, compare);
    return spent[times / 2];
}

static double nothing(void) {
    uint64_t before = ticks();
    return ticks() - before;
}

int main(int argc, char **argv) {
    char *args[] = {argv[0], "--no-huge", "-m", "512", "--no-pci", "--no-telemetry", "--no-shconf", "--log-level", "3", "-l", NULL, NULL};
    if (argc != 3)
        return 2;
    args[10] = argv[1];
    if (rte_eal_init(11, args) < 0) {
        fprintf(stderr, "DPDK does not start: %s\n", rte_strerror(rte_errno));
        return 1;
    }
    pool = rte_pktmbuf_pool_create("packets", AT_ONCE, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, 0);
    large = rte_pktmbuf_pool_create("large", 1, 0, 0, 65535, 0);
    direct = rte_pktmbuf_pool_create("direct", 1023, 256, 0, 512, 0);
    indirect = rte_pktmbuf_pool_create("indirect", 1023, 256, 0, 0, 0);
    if (!pool || !large || !direct || !indirect || rte_pktmbuf_alloc_bulk(pool, bufs, AT_ONCE))
        return 1;
    nanos_a_tick = 1e9 / rte_get_tsc_hz();
    cost = median(nothing, 1001);
    char row[64], cold[8], known[8], last[64] = "";
    int times;
    while (scanf("%63s %d %7s %7s", row, &times, cold, known) == 4) {
        int sums = !strncmp(row, "sum-", 4), scatters = !strcmp(row, "scatter");
        int joins = !strncmp(row, "known-", 6) || !strcmp(row, "acks") || !strcmp(row, "icmp") || !strcmp(row, "push") ||
                    !strcmp(row, "random") || !strcmp(row, "reversed");
        if (!sums && !scatters && !joins) {
            puts("-");
        } else {
            if (strcmp(row, last))
                load(argv[2], row);
            strcpy(last, row);
            double spent = median(sums ? sum : scatters ? scatter : join, times);
            printf("%.3f\n", spent * nanos_a_tick / (sums ? SUMS : scatters ? SEGMENTS : count));
        }
        fflush(stdout);
    }
    return 0;
}
