/* The parts of DPDK that the benchmark uses: packets in its buffers, its GRO in the lightweight mode, its GSO. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_gro.h>
#include <rte_gso.h>
#include <rte_ip.h>
#include <rte_mbuf.h>

enum { MAX_BURST = 128, ETHER = 14, IPV4 = 20 };

struct packets {
    struct rte_mbuf **bufs;
    uint16_t count, l4_len;
    struct rte_gro_param param;
};

/* Starts DPDK on the given core, without huge pages and devices. */
int shim_start(const char *core) {
    char *args[] = {"bench", "--no-huge", "-m", "512", "--no-pci", "--no-telemetry", "--no-shconf", "--log-level", "3",
                    "-l", (char *)core, NULL};
    return rte_eal_init(11, args) < 0 ? rte_errno : 0;
}

/* Copies frames, all Ethernet, IPv4 and TCP with headers of the same length, into buffers of DPDK. */
struct packets *shim_packets(const char *name, const uint8_t *const *frames, const uint32_t *lens, uint16_t count, uint16_t l4_len,
                             uint16_t flows) {
    struct packets *all = calloc(1, sizeof *all);
    struct rte_mempool *pool = rte_pktmbuf_pool_create(name, count, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, 0);
    if (!all || !pool)
        return NULL;
    all->bufs = calloc(count, sizeof *all->bufs);
    all->count = count;
    all->l4_len = l4_len;
    all->param = (struct rte_gro_param){
        .gro_types = RTE_GRO_TCP_IPV4, .max_flow_num = flows, .max_item_per_flow = MAX_BURST, .socket_id = 0};
    for (uint16_t i = 0; i < count; i++) {
        struct rte_mbuf *m = all->bufs[i] = rte_pktmbuf_alloc(pool);
        if (!m)
            return NULL;
        memcpy(rte_pktmbuf_append(m, lens[i]), frames[i], lens[i]);
    }
    return all;
}

/* Restores the packets from `first` on to the state in which a driver hands them over. Not timed. */
void shim_renew(struct packets *all, uint16_t first, uint16_t count) {
    for (uint16_t i = first; i < first + count; i++) {
        struct rte_mbuf *m = all->bufs[i];
        m->data_off = RTE_PKTMBUF_HEADROOM;
        struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod_offset(m, struct rte_ipv4_hdr *, ETHER);
        /* A head has the length of its train; the others were only cut off in front. */
        if (m->nb_segs > 1)
            ip->total_length = rte_cpu_to_be_16(m->data_len - ETHER);
        uint16_t len = rte_be_to_cpu_16(ip->total_length) + ETHER;
        m->next = NULL;
        m->nb_segs = 1;
        m->data_len = len;
        m->pkt_len = len;
        m->ol_flags = 0;
        m->packet_type = RTE_PTYPE_L2_ETHER | RTE_PTYPE_L3_IPV4 | RTE_PTYPE_L4_TCP;
        m->tx_offload = 0;
        m->l2_len = ETHER;
        m->l3_len = IPV4;
        m->l4_len = all->l4_len;
    }
}

/* Merges a burst of at most MAX_BURST packets, and returns how many packets and trains it became. */
uint16_t shim_gro(struct packets *all, uint16_t first, uint16_t count) {
    struct rte_mbuf *burst[MAX_BURST];
    memcpy(burst, all->bufs + first, count * sizeof *burst);
    return rte_gro_reassemble_burst(burst, count, &all->param);
}

struct train {
    struct rte_mbuf *buf;
    struct rte_gso_ctx ctx;
    struct rte_mbuf *out[256];
    int made;
};

/* A train in one buffer, with room for the segments that it is cut into. */
struct train *shim_train(const uint8_t *frame, uint32_t len, uint16_t l4_len, uint16_t size) {
    struct train *all = calloc(1, sizeof *all);
    struct rte_mempool *large = rte_pktmbuf_pool_create("large", 1, 0, 0, 65535, 0);
    struct rte_mempool *direct = rte_pktmbuf_pool_create("direct", 1023, 256, 0, 512, 0);
    struct rte_mempool *indirect = rte_pktmbuf_pool_create("indirect", 1023, 256, 0, 0, 0);
    if (!all || !large || !direct || !indirect || !(all->buf = rte_pktmbuf_alloc(large)))
        return NULL;
    all->buf->data_off = 0;
    memcpy(rte_pktmbuf_append(all->buf, len), frame, len);
    all->buf->l2_len = ETHER;
    all->buf->l3_len = IPV4;
    all->buf->l4_len = l4_len;
    all->buf->ol_flags = RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IPV4;
    all->ctx = (struct rte_gso_ctx){
        .direct_pool = direct, .indirect_pool = indirect, .gso_types = RTE_ETH_TX_OFFLOAD_TCP_TSO,
        .gso_size = ETHER + IPV4 + l4_len + size};
    return all;
}

/* Cuts the train, and returns the number of segments. */
int shim_gso(struct train *all) {
    all->made = rte_gso_segment(all->buf, &all->ctx, all->out, 256);
    return all->made;
}

/* Frees the segments that the train was cut into. Not timed. */
void shim_gso_renew(struct train *all) {
    for (int i = 0; i < all->made; i++)
        rte_pktmbuf_free(all->out[i]);
    all->made = 0;
    all->buf->ol_flags = RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IPV4;
}
