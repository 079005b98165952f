/* Calls on groups of ranks, of buffers that nobody has declared; part of bps.h, which declares the groups. */
#ifndef BPS_CALLS_H_
#define BPS_CALLS_H_

#include <bps/bps.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- calls on groups ----
 *
 * The same exchanges, of buffers that nobody has declared and of any length, also none. Each returns at once;
 * a rank may have any number under way. All ranks of the group make the same calls on it, in the same order:
 * the n-th of one rank meets the n-th of the others. If two differ, in kind, type, length, operation, or
 * root, the group fails for good on all its ranks, at the latest 2 s after each of them has made its own and
 * all calls before are over. BPS_CONFIGURATION then names the number of the call, and what ranks have called.
 * bps_drop_group tells how to get the group back; BPS_WORLD stays failed. A rank that is slow fails nothing:
 * bps_wait names it when it expires. Calls that fail otherwise, because a root is lost, fail alone.
 *
 * The first calls of a size wait a round trip to the scheduler. Servers have a bounded memory for the calls
 * of a job (call-memory): what finds none waits. Buffers are the host's; `in` and `out` are the same memory
 * or apart. If a call fails, `out` may be half written. */

/* As bps_push_pull; `out` is not NULL. */
BPS_API bps_status bps_group_push_pull(bps_client* client, bps_group group, bps_dtype dtype,
                                       const bps_buffer* in, const bps_buffer* out, bps_reduce_op operation,
                                       bps_handle** handle, bps_error* error);

/* bps_group_push_pull of `n` buffers one after the other, in one call and with one handle: it ends when all
 * have, with the first error. bps_handle_ranks is the smallest of them. */
BPS_API bps_status bps_push_pull_many(bps_client* client, bps_group group, bps_dtype dtype,
                                      const bps_buffer* in, const bps_buffer* out, size_t n,
                                      bps_reduce_op operation, bps_handle** handle, bps_error* error);

/* As bps_broadcast, of bytes: whatever type they have. `root` is a rank of the job. */
BPS_API bps_status bps_group_broadcast(bps_client* client, bps_group group, const bps_buffer* buffer,
                                       int32_t root, bps_handle** handle, bps_error* error);

/* As bps_reduce. */
BPS_API bps_status bps_group_reduce(bps_client* client, bps_group group, bps_dtype dtype,
                                    const bps_buffer* in, const bps_buffer* out, bps_reduce_op operation,
                                    int32_t root, bps_handle** handle, bps_error* error);

/* As bps_reduce_scatter. `parts`: elements of each rank's part, in the order of the group's ranks, together
 * those of `in`; NULL: each as long as `out`. A group keeps the 64 tables of parts that it has used last;
 * calls of a new one wait a round trip to the scheduler. */
BPS_API bps_status bps_group_reduce_scatter(bps_client* client, bps_group group, bps_dtype dtype,
                                            const bps_buffer* in, const bps_buffer* out,
                                            const uint64_t* parts, size_t part_count, bps_reduce_op operation,
                                            int exact_order, bps_handle** handle, bps_error* error);

/* As bps_all_gather, of bytes: whatever type they have. `part_bytes`: as `parts` above, in bytes. `out` and
 * `part_bytes` NULL, on all ranks: no rank has to know how long the parts of others are. The parts arrive in
 * memory of the library. bps_handle_view gives them, one piece for each rank of the group; bps_handle_free
 * frees them. Such a call exchanges the lengths first, so it takes two round trips. */
BPS_API bps_status bps_group_all_gather(bps_client* client, bps_group group, const bps_buffer* in,
                                        const bps_buffer* out, const uint64_t* part_bytes, size_t part_count,
                                        bps_handle** handle, bps_error* error);

/* ---- messages ----
 *
 * Of bytes, in the host's memory, between the ranks of a group. A lost rank ends those that need it with
 * BPS_PEER_LOST. A message of which the two ends are not equally long fails: BPS_CONFIGURATION names both. */

/* Starts to send `buffer` to one other rank of the group. The n-th send with this destination and tag meets
 * the n-th receive there; no other message, and no call of the group, waits for it. `buffer` must stay valid
 * and unchanged until the operation is done. That is when it has been received, or earlier: at most 64 KiB
 * are copied, as long as this client holds less than 16 MiB of such copies. The error of a message that was
 * copied is that of the next one with its tag. bps_close waits until it has been received. Messages with one
 * tag that are not equally long on both ranks fail that tag, for good, and nothing else. A group has at most
 * 16,384 pairs of tag and rank on each rank, of each direction. */
BPS_API bps_status bps_send(bps_client* client, bps_group group, const bps_buffer* buffer,
                            int32_t destination, uint64_t tag, bps_handle** handle, bps_error* error);

/* Starts to receive what one other rank of the group sends with this tag, into `buffer`. */
BPS_API bps_status bps_receive(bps_client* client, bps_group group, const bps_buffer* buffer, int32_t source,
                               uint64_t tag, bps_handle** handle, bps_error* error);

/* The next three are calls of all ranks of the group, in one order with its other calls (see above). They
 * consist of messages. If two ranks do not agree on the length of one, the group fails. The part that a rank
 * gives itself is copied before the function returns. Lengths of parts are in the order of the group's ranks;
 * NULL: all are equal. */

/* Starts to give each rank its part of the root's `in`, into its `out`. Elsewhere `in` and `part_bytes` are
 * ignored and may be NULL. At the root `out` is memory of its part alone, or the place in `in` where that is.
 */
BPS_API bps_status bps_scatter(bps_client* client, bps_group group, const bps_buffer* in,
                               const bps_buffer* out, const uint64_t* part_bytes, size_t part_count,
                               int32_t root, bps_handle** handle, bps_error* error);

/* Starts to bring all ranks' `in` to the root, one after the other in its `out`. Elsewhere `out` and
 * `part_bytes` are ignored and may be NULL. At the root `in` is memory of its part alone, or the place in
 * `out` where that goes. */
BPS_API bps_status bps_gather(bps_client* client, bps_group group, const bps_buffer* in,
                              const bps_buffer* out, const uint64_t* part_bytes, size_t part_count,
                              int32_t root, bps_handle** handle, bps_error* error);

/* Starts to give each rank its part of `in`, and to take a part from each into `out`. `in_bytes`: of what
 * this rank gives to each. `out_bytes`: of what it takes from each; both have `part_count` lengths. `in` and
 * `out` do not overlap. `out` and `out_bytes` NULL, on all ranks: as for bps_group_all_gather. */
BPS_API bps_status bps_all_to_all(bps_client* client, bps_group group, const bps_buffer* in,
                                  const bps_buffer* out, const uint64_t* in_bytes, const uint64_t* out_bytes,
                                  size_t part_count, bps_handle** handle, bps_error* error);

/* Starts to join: this rank has run out of data, and makes no calls on the group until all its ranks have
 * joined. Then the handle is done on all of them, and calls go on. Until then the library makes the calls of
 * the others here, with zeros: sums and averages are right, and averages divide by all ranks of the group.
 * What is under way when a rank joins counts as ever. A call that cannot do without the rank fails the group
 * on all ranks (BPS_CONFIGURATION, naming both): min, max, product and bitwise operations, one whose root it
 * is, one of which it has a part, scatter, gather and all_to_all. Where only givers know lengths, it gives
 * none. Messages go on. A scheduler that is lost meanwhile fails the group. */
BPS_API bps_status bps_join(bps_client* client, bps_group group, bps_handle** handle, bps_error* error);

/* Of a join that is done: the rank that has joined last. Else -1. */
BPS_API int32_t bps_handle_last_joined(const bps_handle* handle);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* BPS_CALLS_H_ */
