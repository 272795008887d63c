/* Carries out the cases of a file with the C interface and writes the results to another.
 * usage: judge CASES RESULTS; both are lists of records of a 32-bit length and bytes. See tests/c.rs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "segue.h"

enum { MOST = 9000, ROOM = 70000 };

static FILE *cases, *results;
static int is_strict = 1; /* the joiner's profile */

static uint8_t *record(uint32_t *len) {
    uint8_t *bytes;
    if (fread(len, sizeof *len, 1, cases) != 1) return NULL;
    /* Exactly as long as the record, so that a sanitizer sees each byte read past it. */
    bytes = (uint8_t *)malloc(*len ? *len : 1);
    if (bytes == NULL || fread(bytes, 1, *len, cases) != *len) exit(3);
    return bytes;
}

static void put(const uint8_t *bytes, size_t len) {
    uint32_t word = (uint32_t)len;
    if (fwrite(&word, sizeof word, 1, results) != 1 || fwrite(bytes, 1, len, results) != len) exit(4);
}

static void put_outs(const struct segue_out *outs, ptrdiff_t count) {
    int32_t number = (int32_t)count;
    ptrdiff_t at;
    put((const uint8_t *)&number, sizeof number);
    for (at = 0; at < count; at++) put(outs[at].base, outs[at].len);
}

static struct segue_out *outs_new(size_t count, size_t room) {
    struct segue_out *outs = (struct segue_out *)calloc(count, sizeof *outs);
    size_t at;
    for (at = 0; outs != NULL && at < count; at++) {
        outs[at].base = (uint8_t *)malloc(room);
        outs[at].room = room;
        if (outs[at].base == NULL) exit(5);
    }
    return outs;
}

static void outs_free(struct segue_out *outs, size_t count) {
    size_t at;
    for (at = 0; at < count; at++) free(outs[at].base);
    free(outs);
}

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "judge: %s\n", what);
        exit(8);
    }
}

/* Returns the bytes as a chain of pieces of these sizes in turn, each in memory of its own. */
static struct segue_chain chain_new(const uint8_t *bytes, size_t len, uint32_t csum) {
    static const size_t sizes[] = {1, 33, 7, 90, 1000, 3, 4096};
    struct segue_piece *pieces = (struct segue_piece *)calloc(len + 1, sizeof *pieces);
    struct segue_chain chain = {pieces, 0, csum};
    size_t at, size;
    if (pieces == NULL) exit(10);
    for (at = 0; at < len; at += size) {
        uint8_t *memory;
        size = sizes[chain.count % (sizeof sizes / sizeof *sizes)];
        if (size > len - at) size = len - at;
        memory = (uint8_t *)malloc(size);
        if (memory == NULL) exit(11);
        memcpy(memory, bytes + at, size);
        pieces[chain.count].base = memory;
        pieces[chain.count++].len = size;
    }
    return chain;
}

static void chain_free(struct segue_chain *chain) {
    size_t at;
    for (at = 0; at < chain->count; at++) free((void *)(uintptr_t)chain->pieces[at].base);
    free((void *)(uintptr_t)chain->pieces);
}

/* Returns the bytes of a listed packet as one array. */
static uint8_t *gathered(const struct segue_train *train, const struct segue_piece *pieces) {
    uint8_t *flat = (uint8_t *)malloc(train->len);
    size_t piece, used = 0;
    if (flat == NULL) exit(12);
    for (piece = 0; piece < train->count; piece++) {
        const struct segue_piece *one = &pieces[train->first + piece];
        check(used + one->len <= train->len, "pieces of the length that is said");
        memcpy(flat + used, one->base, one->len);
        used += one->len;
    }
    check(used == train->len, "pieces of the length that is said");
    return flat;
}

/* Splits the same unit from a chain: the packets must be those of outs. With an owed checksum they must be so after the
 * checksum of TCP or UDP was completed. */
static void split_chain(struct segue_splitter *splitter, const uint8_t *unit, size_t len, const struct segue_out *outs,
                        ptrdiff_t made) {
    enum { HEADER = 10, PLACES = 64 };
    uint32_t csum;
    for (csum = SEGUE_CSUM_UNKNOWN; csum <= SEGUE_CSUM_OWED; csum += SEGUE_CSUM_OWED) {
        struct segue_chain chain = chain_new(unit + HEADER, len - HEADER, csum);
        size_t room = 2 * (size_t)made + chain.count;
        struct segue_train packets[PLACES];
        struct segue_piece *pieces = (struct segue_piece *)calloc(room, sizeof *pieces);
        size_t start = unit[6] | (size_t)unit[7] << 8, field = start + (unit[8] | (size_t)unit[9] << 8);
        ptrdiff_t at;
        if (pieces == NULL) exit(13);
        check(segue_split_chain(splitter, unit, HEADER, &chain, packets, (size_t)made - 1, pieces, room) == SEGUE_ERR_ROOM,
              "too few places");
        check(segue_split_chain(splitter, unit, HEADER, &chain, packets, PLACES, pieces, (size_t)made) == SEGUE_ERR_ROOM,
              "too few pieces");
        check(segue_split_chain(splitter, unit, HEADER + 1, &chain, packets, PLACES, pieces, room) < 0, "a header's length");
        check(segue_split_chain(splitter, unit, HEADER, &chain, packets, PLACES, pieces, room) == made, "as many of a chain");
        for (at = 0; at < made; at++) {
            uint8_t *flat = gathered(&packets[at], pieces);
            check(packets[at].len == outs[at].len && packets[at].segments == 1, "as long from a chain");
            if (csum == SEGUE_CSUM_OWED) {
                uint16_t sum = (uint16_t)~segue_sum(flat + start, packets[at].len - start);
                if (sum == 0 && field == start + 6) sum = 0xffff; /* UDP */
                check(memcmp(flat + field, outs[at].base + field, 2) != 0 || sum == (flat[field] << 8 | flat[field + 1]),
                      "the checksum is owed");
                flat[field] = (uint8_t)(sum >> 8), flat[field + 1] = (uint8_t)sum;
            }
            check(memcmp(flat, outs[at].base, outs[at].len) == 0, "the same from a chain");
            free(flat);
        }
        chain_free(&chain), free(pieces);
    }
}

/* Joins the same packets, each in several pieces: the trains must be the same, in the same order. */
static void join_chains(struct segue_joiner *joiner, const struct segue_buf *bufs, uint32_t count, uint8_t *const *wanted,
                        const struct segue_train *trains, ptrdiff_t made) {
    struct segue_chain *chains = (struct segue_chain *)calloc(count, sizeof *chains);
    struct segue_train *again = (struct segue_train *)calloc(count, sizeof *again);
    struct segue_piece *pieces;
    size_t room = count;
    ptrdiff_t at;
    if (!chains || !again) exit(14);
    for (at = 0; at < (ptrdiff_t)count; at++) {
        chains[at] = chain_new(bufs[at].base, bufs[at].len, bufs[at].csum);
        room += chains[at].count;
    }
    pieces = (struct segue_piece *)calloc(room, sizeof *pieces);
    if (pieces == NULL) exit(15);
    check(segue_join_chains(joiner, chains, count, again, count, pieces, room - 1) == SEGUE_ERR_ROOM, "too few pieces");
    check(segue_join_chains(joiner, chains, count, again, count - 1, pieces, room) == SEGUE_ERR_ROOM, "too few trains");
    check(segue_join_chains(joiner, chains, count, again, count, pieces, room) == made, "as many trains of chains");
    for (at = 0; at < made; at++) {
        uint8_t *flat = gathered(&again[at], pieces);
        check(again[at].len == trains[at].len && again[at].segments == trains[at].segments, "as long of chains");
        check(memcmp(flat, wanted[at], trains[at].len) == 0, "the same train of chains");
        free(flat);
    }
    for (at = 0; at < (ptrdiff_t)count; at++) chain_free(&chains[at]);
    free(chains), free(again), free(pieces);
}

/* Completes the checksum of a packet whose virtio-net header asks for it, as a device does. */
static void complete(const uint8_t *header, uint8_t *packet, size_t len) {
    size_t start = header[6] | (size_t)header[7] << 8, field = start + (header[8] | (size_t)header[9] << 8);
    uint16_t sum;
    if (!(header[0] & 1)) return;
    check(header[1] == 0 && field + 2 <= len, "a lone packet's header");
    sum = (uint16_t)~segue_sum(packet + start, len - start);
    if (sum == 0 && header[8] == 6) sum = 0xffff; /* UDP */
    packet[field] = (uint8_t)(sum >> 8), packet[field + 1] = (uint8_t)sum;
}

/* Joins the same packets in their own memory: the results must be the trains, in any order. */
static void join_in_place(struct segue_joiner *joiner, const struct segue_buf *bufs, uint32_t count, ptrdiff_t made,
                          const struct segue_train *trains, uint8_t *const *flat) {
    enum { HEADER = 10, OFFSET = 16 };
    struct segue_out *wanted = outs_new((size_t)made, ROOM), *outs = outs_new(count, ROOM);
    size_t *list = (size_t *)calloc(count, sizeof *list);
    ptrdiff_t at, other, found;
    if (!wanted || !outs || !list) exit(9);
    for (at = 0; at < made; at++) {
        memcpy(wanted[at].base, flat[at], trains[at].len);
        wanted[at].len = trains[at].len;
    }
    for (at = 0; at < (ptrdiff_t)count; at++) {
        memcpy(outs[at].base + OFFSET, bufs[at].base, bufs[at].len);
        outs[at].len = bufs[at].len;
    }
    check(segue_join_in_place(joiner, outs, count, OFFSET, list, count - 1) == SEGUE_ERR_ROOM, "a list too short");
    check(segue_join_in_place(joiner, outs, count, HEADER - 1, list, count) < 0, "no room for a header");
    check(segue_join_in_place(joiner, outs, count, ROOM, list, count) == SEGUE_ERR_ROOM, "no room for a packet");
    check(segue_join_in_place(joiner, outs, count, OFFSET, list, count) == made, "as many in place");
    for (at = 0; at < made; at++) {
        const struct segue_out *out = &outs[list[at]];
        check(at == 0 || list[at - 1] < list[at], "in order");
        found = -1;
        for (other = 0; found < 0 && other < made; other++) {
            if (wanted[other].len == out->len + HEADER
                && memcmp(wanted[other].base, out->base + OFFSET - HEADER, wanted[other].len) == 0) found = other;
        }
        check(found >= 0, "the same train in place");
        wanted[found].len = 0; /* each once */
    }
    /* Without room behind them packets stay alone, unchanged, but that a checksum may be the device's to complete:
     * that of the one packet which a train left over. */
    for (at = 0; at < (ptrdiff_t)count; at++) {
        outs[at].len = bufs[at].len;
        outs[at].room = OFFSET + bufs[at].len;
        memcpy(outs[at].base + OFFSET, bufs[at].base, bufs[at].len);
    }
    found = segue_join_in_place(joiner, outs, count, OFFSET, list, count);
    for (at = 0; at < found; at++) {
        const struct segue_out *out = &outs[list[at]];
        const struct segue_buf *buf = &bufs[list[at]];
        /* Two packets fit only where there was padding. */
        check(out->base[OFFSET - HEADER + 1] == 0 || out->len < buf->len, "all stay alone");
        /* Where a train was joined as Linux does, and cut again, each packet has the headers of the first. */
        if (out->base[OFFSET - HEADER + 1] != 0 || !is_strict) continue;
        complete(out->base + OFFSET - HEADER, out->base + OFFSET, out->len);
        check(out->len == buf->len && memcmp(out->base + OFFSET, buf->base, buf->len) == 0, "unchanged");
    }
    outs_free(wanted, (size_t)made), outs_free(outs, count), free(list);
}

static void join(struct segue_joiner *joiner, uint32_t count) {
    struct segue_buf *bufs = (struct segue_buf *)calloc(count, sizeof *bufs);
    struct segue_train *trains = (struct segue_train *)calloc(count, sizeof *trains);
    struct segue_piece *pieces = (struct segue_piece *)calloc(2 * (size_t)count, sizeof *pieces);
    uint8_t **memory = (uint8_t **)calloc(count, sizeof *memory), **flat = (uint8_t **)calloc(count, sizeof *flat);
    uint32_t at, len;
    int32_t number;
    ptrdiff_t made;
    if (!bufs || !trains || !pieces || !memory || !flat) exit(6);
    for (at = 0; at < count; at++) {
        memory[at] = record(&len);
        bufs[at].base = memory[at];
        bufs[at].len = len;
        bufs[at].csum = SEGUE_CSUM_UNKNOWN;
    }
    made = segue_join(joiner, bufs, count, trains, count, pieces, 2 * (size_t)count);
    number = (int32_t)made;
    put((const uint8_t *)&number, sizeof number);
    for (at = 0; made > 0 && at < (uint32_t)made; at++) {
        flat[at] = gathered(&trains[at], pieces);
        put(flat[at], trains[at].len);
    }
    join_chains(joiner, bufs, count, flat, trains, made);
    join_in_place(joiner, bufs, count, made, trains, flat);
    for (at = 0; at < count; at++) free(memory[at]), free(flat[at]);
    free(memory), free(flat), free(bufs), free(trains), free(pieces);
}

static void faults(void) {
    struct segue_joiner_config config;
    const uint8_t words[4] = {0x12, 0x34, 0xff, 0x01};
    uint8_t copy[4];
    memset(&config, 0, sizeof config);
    check(segue_test_panic() == SEGUE_ERR_PANIC, "a panic is an error code");
    check(strcmp(segue_error_name(SEGUE_ERR_ROOM), "room") == 0, "errors have names");
    check(strcmp(segue_error_name(12345), "unknown") == 0, "unknown errors too");
    check(segue_error_text(-200)[0] != 0, "and sentences");
    check(segue_splitter_new(11, 0) == NULL, "no header has 11 bytes");
    check(segue_joiner_new(&config) == NULL && segue_joiner_new(NULL) == NULL, "a configuration says its size");
    check(segue_tunnel_new(NULL) == NULL, "a tunnel needs a configuration");
    check(segue_split(NULL, words, 4, NULL, 0, 0) == SEGUE_ERR_NULL, "null is an error");
    check(segue_decap(NULL, NULL, 9, NULL) == SEGUE_ERR_NULL, "null is an error");
    check(segue_split_chain(NULL, NULL, 0, NULL, NULL, 0, NULL, 0) == SEGUE_ERR_NULL, "null is an error");
    check(segue_join_chains(NULL, NULL, 1, NULL, 1, NULL, 1) == SEGUE_ERR_NULL, "null is an error");
    check(segue_sum(words, 4) == 0x1136 && segue_sum(NULL, 0) == 0, "sums");
    check(segue_sum_copy(copy, words, 4) == 0x1136 && memcmp(copy, words, 4) == 0, "copied sums");
    check(segue_sum_append(segue_sum(words, 1), 1, segue_sum(words + 1, 3)) == 0x1136, "appended sums");
    check(segue_field_update(0x1234, 1, 1) == 0x1234, "an update by nothing");
    segue_splitter_free(NULL), segue_joiner_free(NULL), segue_tunnel_free(NULL);
}

static struct segue_joiner *joiner_new(uint32_t ethernet, uint32_t profile) {
    struct segue_joiner_config config;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.offloads = 0x6f;
    config.header_len = 10;
    config.ethernet = ethernet;
    config.profile = profile;
    return segue_joiner_new(&config);
}

/* Creates the two endpoints of a tunnel: mode, carrier and version in a byte each, then the addresses of the first
 * endpoint and of the other. */
static void tunnels_new(struct segue_tunnel **into, struct segue_tunnel **spare, struct segue_tunnel **out_of,
                        const uint8_t *bytes) {
    struct segue_tunnel_config config;
    segue_tunnel_free(*into), segue_tunnel_free(*spare), segue_tunnel_free(*out_of);
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.mode = bytes[0];
    config.carrier = bytes[1];
    config.version = bytes[2];
    memcpy(config.local, bytes + 3, 16);
    memcpy(config.remote, bytes + 19, 16);
    config.key[0] = 1, config.key[1] = 2;
    *into = segue_tunnel_new(&config);
    *spare = segue_tunnel_new(&config);
    memcpy(config.local, bytes + 19, 16);
    memcpy(config.remote, bytes + 3, 16);
    *out_of = segue_tunnel_new(&config);
    check(*into != NULL && *spare != NULL && *out_of != NULL, "a tunnel");
}

static uint8_t *taken;

/* Takes the memory of the last packet, and marks that of the first one. */
static void take(struct segue_out *outs, ptrdiff_t made) {
    memset(outs[0].base, 0xa5, 64);
    taken = outs[made - 1].base;
    outs[made - 1].base = NULL;
}

/* Gives the memory back, and checks that nothing was written: all packets are, or none. */
static void give_back(struct segue_out *outs, ptrdiff_t made) {
    int at;
    outs[made - 1].base = taken;
    for (at = 0; at < 64; at++) check(outs[0].base[at] == 0xa5, "nothing is written where one packet has no memory");
}

static void split(struct segue_splitter *splitter, const uint8_t *unit, uint32_t len) {
    enum { PLACES = 64 };
    struct segue_out *outs = outs_new(PLACES, ROOM), *again = outs_new(PLACES, ROOM);
    ptrdiff_t at, number, made = segue_split(splitter, unit, len, outs, PLACES, 0);
    put_outs(outs, made);
    number = segue_split_with(splitter, unit, 10, unit + 10, len - 10, again, PLACES, 2);
    check(number == made, "as many with a header elsewhere");
    for (at = 0; at < number; at++) {
        check(again[at].len == outs[at].len && !memcmp(again[at].base + 2, outs[at].base, outs[at].len), "the same");
    }
    check(segue_split_with(splitter, unit, 11, unit, len, again, PLACES, 0) < 0, "a header's length");
    if (made > 0) {
        split_chain(splitter, unit, len, outs, made);
        check(segue_split(splitter, unit, len, outs, (size_t)made - 1, 0) == SEGUE_ERR_ROOM, "no place for a packet");
        check(segue_split(splitter, unit, len, outs, PLACES, ROOM) == SEGUE_ERR_ROOM, "no room for a packet");
        take(outs, made);
        check(segue_split(splitter, unit, len, outs, PLACES, 0) == SEGUE_ERR_NULL, "no memory for the last packet");
        give_back(outs, made);
    }
    outs_free(outs, PLACES), outs_free(again, PLACES);
}

int main(int argc, char **argv) {
    struct segue_splitter *splitter = segue_splitter_new(10, 1);
    struct segue_joiner *joiner = joiner_new(0, 0);
    struct segue_tunnel *into = NULL, *spare = NULL, *out_of = NULL;
    uint8_t *bytes;
    uint32_t len;
    if (argc != 3 || !(cases = fopen(argv[1], "rb")) || !(results = fopen(argv[2], "wb"))) return 2;
    faults();
    check(splitter && joiner, "objects");
    /* Each case is a record with its kind, then what that needs. */
    while ((bytes = record(&len)) != NULL) {
        char kind = (char)bytes[0];
        struct segue_out *outs, *inside;
        ptrdiff_t at, count;
        free(bytes);
        bytes = record(&len);
        switch (kind) {
        case 's': split(splitter, bytes, len); break;
        case 'j': {
            uint32_t packets;
            memcpy(&packets, bytes, sizeof packets);
            join(joiner, packets);
            break;
        }
        case 'J': /* another joiner from here on */
            segue_joiner_free(joiner);
            joiner = joiner_new(bytes[0], bytes[1]);
            is_strict = bytes[1] == 0;
            check(joiner != NULL, "a joiner");
            break;
        case 'T': tunnels_new(&into, &spare, &out_of, bytes); break;
        case 't': /* through the tunnel */
            outs = outs_new(64, 4096), inside = outs_new(1, 4096);
            count = segue_encap(into, bytes, len, outs, 64);
            put_outs(outs, count);
            if (count > 0) {
                struct segue_out *again = outs_new(64, 4096);
                take(again, count);
                /* Another tunnel: packets have numbers. */
                check(segue_encap(spare, bytes, len, again, 64) == SEGUE_ERR_NULL, "no memory for the last packet");
                give_back(again, count);
                outs_free(again, 64);
            }
            for (at = 0; at < count; at++) {
                put_outs(inside, segue_decap(out_of, outs[at].base, outs[at].len, inside));
            }
            outs_free(outs, 64), outs_free(inside, 1);
            break;
        case 'd': /* a packet of the tunnel, from another sender */
            inside = outs_new(1, 4096);
            put_outs(inside, segue_decap(out_of, bytes, len, inside));
            outs_free(inside, 1);
            break;
        default: check(0, "a kind of case");
        }
        free(bytes);
    }
    segue_splitter_free(splitter), segue_joiner_free(joiner);
    segue_tunnel_free(into), segue_tunnel_free(spare), segue_tunnel_free(out_of);
    return fclose(results) == 0 && fclose(cases) == 0 ? 0 : 9;
}
