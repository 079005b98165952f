/* bps.h - the C API of libbpsclient, the only surface the library exports.
 *
 * A client is one worker of a job. It joins through the scheduler, declares tensors, and push_pulls them:
 * every worker pushes its contribution, and every worker gets the reduction of all contributions.
 *
 *   bps_options options;
 *   bps_options_init(&options, sizeof options);
 *   options.job = "resnet50";                          // rank, size, scheduler: from the environment
 *   bps_client* client = NULL;
 *   bps_error error = BPS_ERROR_INIT;
 *   if (bps_open(&options, &client, &error)) {
 *     fprintf(stderr, "%s\n", error.message);
 *     exit(error.exit_code);
 *   }
 *
 * Rules for everything here:
 * - Functions return BPS_OK (0) or a status. Details go to the bps_error, which may be NULL.
 * - Any thread may call any function; exceptions for a bps_callback are noted. Many clients may live in one
 *   process.
 * - The library never exits, aborts, or installs signal handlers, and its threads block signals. Exception:
 *   if one of these threads, or one that does their work while it waits, gets no memory for a small record,
 *   the process ends (std::bad_alloc).
 * - Every wait has a deadline. timeout_ms < 0 means the client's default (operation_timeout_ms).
 * - Structs begin with their size, so programs built with an older header keep working.
 * - A child of fork() must not use a client of its parent: every call returns BPS_CLOSED.
 * - client/README.md is the guide; client/gpu.md has the rules for memory of GPUs.
 */
#ifndef BPS_BPS_H_
#define BPS_BPS_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define BPS_API __attribute__((visibility("default")))
#else
#define BPS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define BPS_VERSION_MAJOR 0
#define BPS_VERSION_MINOR 1
#define BPS_VERSION_PATCH 0

/* "0.1.0": the version of the library that is loaded. */
BPS_API const char* bps_version(void);

/* ---- errors ---- */

typedef enum bps_status {
  BPS_OK = 0,
  BPS_INVALID_ARGUMENT = 1, /* the caller's mistake; nothing has changed                           exit 64 */
  BPS_UNREACHABLE = 2,      /* the scheduler does not answer                                       exit 69 */
  BPS_OS = 3,               /* the operating system refused something                              exit 71 */
  BPS_DEADLINE = 4,         /* the wait expired; the operation goes on and may be waited for again exit 75 */
  BPS_PEER_LOST = 5,        /* a worker or server died; the job run has failed, start it again     exit 75 */
  BPS_PROTOCOL = 6,         /* a peer broke the protocol or has another version                    exit 76 */
  BPS_UNAUTHORISED = 7,     /* not allowed                                                         exit 77 */
  BPS_CONFIGURATION = 8,    /* ranks disagree, duplicate rank, tensor mismatch, bad setting        exit 78 */
  BPS_OUT_OF_MEMORY = 9,    /* does not fit the servers' memory budget, or no memory here          exit 71 */
  BPS_CANCELLED = 10,       /* ended by bps_close                                                  exit 64 */
  BPS_CLOSED = 11,          /* use after close, or in a forked child                               exit 64 */
  BPS_INTERNAL = 12         /* a bug in bps; please report it                                      exit 70 */
} bps_status;

/* In words, as strerror: "deadline expired" for BPS_DEADLINE. Never NULL; "unknown status" for other values.
 * The string is constant: do not free it. */
BPS_API const char* bps_status_string(bps_status status);

typedef struct bps_error {
  size_t struct_size; /* set by BPS_ERROR_INIT */
  bps_status status;
  int exit_code;      /* what a program that ends because of this should return (sysexits.h) */
  char message[1024]; /* the exact cause, one line */
  char advice[512];   /* what to do next; may be empty */
} bps_error;

#define BPS_ERROR_INIT                       \
  {                                          \
    sizeof(bps_error), BPS_OK, 0, {0}, { 0 } \
  }

/* ---- options ---- */

typedef enum bps_log_level {
  BPS_LOG_ERROR = 1,
  BPS_LOG_WARN = 2,
  BPS_LOG_INFO = 3,
  BPS_LOG_DEBUG = 4
} bps_log_level;

/* Called on a library thread, which clients of the process may share, or within a call of the program. It
 * must not call the library, nor wait for a thread that may be in such a call. */
typedef void (*bps_log_function)(bps_log_level level, const char* text, void* user);

/* Fill it by bps_options_init, then set fields and call bps_options_set. What is not set is decided by the
 * environment (BPS_SOME_NAME), then the file that BPS_CONFIG or config_file names (some-name = value), then
 * the default. client/README.md, "Settings", lists all. Copies are allowed. Strings are not copied: they must
 * live until bps_open returns. */
typedef struct bps_options {
  size_t struct_size;
  /* "HOST:PORT"; default 127.0.0.1:4710. "embedded:" = scheduler and server in this process, world size 1;
   * also where nothing that is set speaks of a cluster or a rank (client/README.md, "A program alone"). */
  const char* scheduler;
  const char* job; /* default "default": name of the job to join */
  /* -1 = BPS_RANK and so on, else the variables of torchrun, Slurm, OpenMPI or Kubernetes, else 0 of 1. */
  int32_t rank;
  int32_t world_size;
  int32_t local_rank;
  int32_t local_size;
  const char* config_file;      /* default none: a TOML file of settings */
  int64_t join_timeout_ms;      /* -1 = 60,000 ms: how long to wait for the other workers */
  int64_t operation_timeout_ms; /* -1 = 300,000 ms: deadline of calls with timeout_ms < 0 */
  bps_log_function log;         /* default NULL: warnings and errors go to stderr */
  void* log_user;               /* given to log */
  char settings[4096];          /* what bps_options_set was given; write it by that function only */
} bps_options;

BPS_API void bps_options_init(bps_options* options, size_t struct_size);

/* Sets any setting, by the name and with the text that variables and config file have for it: ("rdma-tclass",
 * "104"), ("scheduler-grace", "30s"). The last call for a name counts, and it beats a field for the same
 * setting. Both strings are copied, into at most 4,095 bytes for all settings of one bps_options. After an
 * error nothing has changed. BPS_INVALID_ARGUMENT: no such name, two lines, no room, or `settings` was
 * written otherwise. BPS_CONFIGURATION: the text is not a value of that setting. bps_open checks the rest:
 * some limits, and what settings mean together. */
BPS_API bps_status bps_options_set(bps_options* options, const char* name, const char* value,
                                   bps_error* error);

/* ---- client ---- */

typedef struct bps_client bps_client;

/* Joins the job. Returns when all workers of it have joined, or after join_timeout_ms with an error that
 * names the missing ranks. On failure *client is NULL. options may be NULL. */
BPS_API bps_status bps_open(const bps_options* options, bps_client** client, bps_error* error);

/* Leaves the job. Finishes the operations under way until the timeout. The rest ends with BPS_CANCELLED, and
 * this worker is then lost to the others (BPS_PEER_LOST). Afterwards the library touches no memory of the
 * caller. Exception BPS_OS: the client is closed, but a GPU has not come to rest within 10 s; leave its
 * memory alone. A second close waits for the first and returns its result. Later calls return BPS_CLOSED. */
BPS_API bps_status bps_close(bps_client* client, int64_t timeout_ms, bps_error* error);

/* Gives the job up after an error of the program. This worker is lost to the others (BPS_PEER_LOST), even
 * between two rounds, where bps_close would leave in order. Waits for no operation, but for a GPU as
 * bps_close does. Otherwise like bps_close. */
BPS_API bps_status bps_abandon(bps_client* client, bps_error* error);

/* Closes with timeout 0, if still open, and frees the client. Handles stay valid. NULL is allowed. */
BPS_API void bps_free(bps_client* client);

BPS_API int32_t bps_rank(const bps_client* client);
BPS_API int32_t bps_world_size(const bps_client* client);
/* Rank and number of ranks on this host: from the settings; with local-group, as counted. With
 * BPS_LOCAL_GROUP_ID they are counted within that group, so do not choose a GPU by them then. */
BPS_API int32_t bps_local_rank(const bps_client* client);
BPS_API int32_t bps_local_size(const bps_client* client);

/* Returns when every worker of the job has called it as often as this one, or with an error. Of an expired
 * wait (BPS_DEADLINE) exit_code is as with bps_wait. */
BPS_API bps_status bps_barrier(bps_client* client, int64_t timeout_ms, bps_error* error);

/* Counters since open, for progress lines and benchmarks. */
typedef struct bps_stats {
  size_t struct_size;
  uint64_t pushed_bytes; /* payload bytes sent, resends included */
  uint64_t pulled_bytes; /* payload bytes received */
  uint64_t rounds;       /* operations completed */
  uint64_t resent;       /* contributions sent again: a lost connection, or a refusal (`not_ready`) */
  uint64_t lanes;        /* connections to servers that are up now */
  uint64_t shm_lanes;    /* of these, over shared memory */
  uint64_t workers;      /* of the job that are not lost: the world size, until the job shrinks */
  uint64_t rdma_lanes;   /* of the lanes, over RDMA */
  /* Costs of RDMA; 0 without. `bpsctl doctor --rdma` shows what devices repeated with success. */
  uint64_t rdma_registrations;       /* times that this client registered memory with RDMA devices */
  uint64_t rdma_sends;               /* SENDs posted */
  uint64_t rdma_signalled_sends;     /* of these, with a completion from the device */
  uint64_t rdma_reads;               /* READs posted */
  uint64_t rdma_read_bytes;          /* bytes asked for by READs */
  uint64_t rdma_failed_requests;     /* requests that failed and ended their connection */
  uint64_t rdma_unanswered_requests; /* of these: the peer's device did not answer any retry */
  uint64_t rdma_unready_receivers;   /* of these: the peer had no buffer at any retry */
} bps_stats;
BPS_API bps_status bps_get_stats(bps_client* client, bps_stats* stats);

/* The settings of an open client, from whatever source. */
typedef struct bps_client_info {
  size_t struct_size;
  const char* local_group;      /* "off", "host" or "nccl"; valid while the library is loaded */
  int32_t cuda_device;          /* the GPU of this client, as the CUDA runtime counts; -1: none yet */
  int64_t operation_timeout_ms; /* deadline of calls with timeout_ms < 0 */
} bps_client_info;
BPS_API bps_status bps_get_client_info(bps_client* client, bps_client_info* info);

/* ---- tensors ---- */

/* What can be reduced. Elements of any other type can be copied, as so many BPS_U8. */
typedef enum bps_dtype {
  BPS_F32 = 0,
  BPS_F64 = 1,
  BPS_F16 = 2,
  BPS_BF16 = 3,
  BPS_I8 = 4,
  BPS_U8 = 5,
  BPS_I32 = 6,
  BPS_I64 = 7
} bps_dtype;

/* Bytes of one element; 0 for an unknown dtype. */
BPS_API size_t bps_dtype_size(bps_dtype dtype);

typedef uint32_t bps_tensor; /* valid for the client that declared it, until bps_drop */

typedef enum bps_mode {
  BPS_MODE_DEFAULT = -1, /* the job's mode */
  BPS_MODE_SYNC = 0,     /* a round completes when every live worker has contributed */
  BPS_MODE_ASYNC = 1     /* the server holds the value, adds each delta on arrival, answers at once */
} bps_mode;

#define BPS_STALENESS_UNBOUNDED INT64_C(-2)
#define BPS_PRIORITY_DEFAULT 0

typedef struct bps_tensor_spec {
  size_t struct_size;
  const char* name; /* at most 512 bytes, unique among the tensors of each rank */
  bps_dtype dtype;
  uint64_t count;    /* elements; 0 is allowed */
  int32_t priority;  /* default 0: higher goes first, then the earlier declared; see bps_declare */
  int32_t mode;      /* bps_mode */
  int64_t staleness; /* async: -1 = the job's; 0.. = bound; BPS_STALENESS_UNBOUNDED */
  /* For bps_reduce_scatter and bps_all_gather: the elements of each rank's part, in the order of the ranks,
   * together `count`; 0 is allowed. One number: so many for every rank. NULL: the tensor has no parts. Not of
   * an asynchronous tensor. */
  const uint64_t* parts;
  size_t part_count; /* 1, or the number of ranks that share the tensor */
  /* A group: the ranks of the job that share the tensor, in the order in which their contributions are added.
   * Only they declare it, and only they take part in its operations. This rank is one of them, no rank is
   * there twice. NULL: all ranks of the job, in rank order. Not of an asynchronous tensor, in CUDA memory, or
   * if the ranks of a host sum first (local-group). */
  const int32_t* ranks;
  size_t rank_count;
} bps_tensor_spec;

#define BPS_TENSOR_SPEC_INIT \
  { sizeof(bps_tensor_spec), NULL, BPS_F32, 0, BPS_PRIORITY_DEFAULT, BPS_MODE_DEFAULT, -1, NULL, 0, NULL, 0 }

/* Declares n tensors. All ranks that share a tensor declare the same, in any order; no worker waits for
 * another. Declaring a tensor again returns the same id, until it is dropped. A name with another dtype,
 * count, list of parts or ranks fails, names both declarations, and fails that tensor on every rank. Groups
 * without a common rank may use the same names. The error names the first tensor that failed. The first
 * declaration of a tensor decides its priority. */
BPS_API bps_status bps_declare(bps_client* client, const bps_tensor_spec* specs, size_t n,
                               bps_tensor* tensors, int64_t timeout_ms, bps_error* error);

typedef struct bps_handle bps_handle; /* one operation, or drop */

/* Ends a tensor for this rank, and returns at once: this rank makes no later calls on it. Calls with this
 * bps_tensor return BPS_INVALID_ARGUMENT from now on. When every rank has dropped the tensor, has left, or is
 * lost, the servers free its memory. Until then the other ranks go on with it only as far as they need no
 * call of this rank: an operation that does fails with BPS_CONFIGURATION and names this rank, when all others
 * have called it (with `local_group`, when another rank of this host has). An asynchronous tensor needs none.
 *
 * The handle is done when the servers have freed the memory. bps_poll, bps_wait, bps_then and bps_handle_fd
 * work as for an operation. bps_handle_ranks is 0: there is no answer. `handle` may be NULL if nobody waits.
 * bps_close does not wait for a drop; one that is not done ends with BPS_CANCELLED. If the job run fails
 * first, the handle has its error.
 *
 * The name may be declared again at once, without a wait for the handle, also with another dtype and count.
 * That is another tensor. The n-th one of a name is the same on all ranks. So a tensor that has failed,
 * because ranks declared or called different things, is replaced: every rank that has a bps_tensor of it
 * drops that, and all ranks declare the name once more.
 *
 * BPS_INVALID_ARGUMENT, and nothing has changed: an operation on the tensor is under way, its view has not
 * been released, it has been dropped, or this client has not declared it. Allowed inside a callback. */
BPS_API bps_status bps_drop(bps_client* client, bps_tensor tensor, bps_handle** handle, bps_error* error);

/* ---- groups ---- */

/* A list of ranks that call on it without declaring tensors: see "calls on groups" below. */
typedef uint32_t bps_group;
#define BPS_WORLD 0u /* all ranks of the job, in rank order; it is always there */

typedef struct bps_group_spec {
  size_t struct_size; /* set by BPS_GROUP_SPEC_INIT */
  const char* name;   /* at most 384 bytes, without control characters, not beginning with 'bps.'; the
                       * same on all its ranks */
  /* In the order in which their contributions are added. This rank is one of them, no rank is there twice.
   * NULL: all ranks of the job. */
  const int32_t* ranks;
  size_t rank_count;
  int32_t priority; /* of its calls, as bps_tensor_spec.priority */
} bps_group_spec;

#define BPS_GROUP_SPEC_INIT \
  { sizeof(bps_group_spec), NULL, NULL, 0, BPS_PRIORITY_DEFAULT }

/* Makes a group, and returns at once, without a word to others. Only its ranks declare it, each before its
 * first call. If they give one name different lists of ranks, it fails on all of them, at the latest with
 * their calls. Groups without a common rank may use the same names. BPS_INVALID_ARGUMENT: the name is in use
 * here, this rank is not in the list, or the ranks of a host sum first (local-group). Any thread, also inside
 * a callback. */
BPS_API bps_status bps_declare_group(bps_client* client, const bps_group_spec* spec, bps_group* group,
                                     bps_error* error);

/* Ends a group for this rank: it makes no later calls on it. Calls under way go on. The handle is done when
 * all its ranks have dropped it, or are gone, and the servers have freed its memory; otherwise as bps_drop.
 * The name may be used again at once. BPS_WORLD cannot be dropped. */
BPS_API bps_status bps_drop_group(bps_client* client, bps_group group, bps_handle** handle, bps_error* error);

/* ---- memory ---- */

/* Memory that every transport moves without a copy: the fastest for operations, which take any memory.
 * Zeroed, aligned to a page. Allocate large pieces and divide them. 0 bytes give NULL. */
BPS_API bps_status bps_allocate(bps_client* client, size_t bytes, void** pointer, bps_error* error);

/* Frees memory of bps_allocate; NULL is allowed. Also after bps_close and bps_free of the client. Memory that
 * an operation uses is freed when the operation is done. */
BPS_API bps_status bps_deallocate(bps_client* client, void* pointer);

/* ---- operations ---- */

typedef enum bps_reduce_op {
  BPS_SUM = 0,
  BPS_AVERAGE = 1, /* of integers: truncates toward zero. An error on all ranks if i64 overflows on the way */
  BPS_MIN = 2,
  BPS_MAX = 3,
  BPS_PRODUCT = 4,
  BPS_AND = 5, /* bit by bit, of integers only */
  BPS_OR = 6,
  BPS_XOR = 7
} bps_reduce_op;

typedef enum bps_memory_kind {
  BPS_MEMORY_HOST = 0,
  BPS_MEMORY_HOST_PINNED = 1,
  BPS_MEMORY_CUDA = 2
} bps_memory_kind;

/* How an input counts in a sum or an average of floats:
 *
 *   BPS_SUM:      postscale * (prescale_0 * x_0 + prescale_1 * x_1 + ...)
 *   BPS_AVERAGE:  postscale * (weight_0 * prescale_0 * x_0 + ...) / (weight_0 + weight_1 + ...)
 *
 * Everything is rounded to the type of the sum, each step once: f32, of f64 tensors f64. Two things are made
 * in f64 before that: weight * prescale, and the sum of the weights. A weight that is negative, NaN or
 * infinite, a factor that is not finite, and weights whose sum is 0 or infinite end this operation on all
 * ranks with BPS_INVALID_ARGUMENT; the next one goes on. Ranks with different postscales call different
 * things, so the tensor fails (see bps_push_pull).
 *
 * Other operations, copies, integers, asynchronous tensors, CUDA memory, a reduce_scatter of f32 or f64
 * without exact_order, and jobs whose ranks sum on their host first (local-group) take none. */
typedef struct bps_scale {
  size_t struct_size; /* set by BPS_SCALE_INIT */
  double weight;      /* of averages, for example a number of samples; ranks may differ */
  double prescale;    /* ranks may differ */
  double postscale;   /* the same on all ranks */
} bps_scale;
#define BPS_SCALE_INIT \
  { sizeof(bps_scale), 1, 1, 1 }

/* A piece of memory. Both of an operation are the host's (HOST and HOST_PINNED are alike), or both CUDA.
 * CUDA memory is of the client's one GPU, whichever context is current. Without driver, GPU or NCCL the call
 * fails with BPS_CONFIGURATION; memory that is not allowed with BPS_INVALID_ARGUMENT. If a GPU fails, the job
 * run fails for this worker, and the error names GPU and call. BPS_OS: the GPU may still use that memory;
 * leave it alone until the process has ended. client/gpu.md has the rules. */
typedef struct bps_buffer {
  size_t struct_size;
  void* pointer;
  size_t bytes;   /* count * bps_dtype_size(dtype) of the tensor, or of this rank's part; see bps_push_pull */
  int32_t kind;   /* bps_memory_kind */
  int32_t device; /* CUDA: the GPU, as the CUDA runtime counts */
  void* stream;   /* CUDA: cudaStream_t or CUstream, whose queued work comes first; NULL: default stream */
  const bps_scale* scale; /* of the input of a reduction; read during the call; NULL: all 1 */
} bps_buffer;

/* Starts to reduce `in` of all workers into `out` of all workers, and returns at once. Both may be the same
 * memory. They must stay valid, and `in` unchanged, until the operation is done. One operation per tensor at
 * a time, else BPS_INVALID_ARGUMENT. Buffers of fewer elements than were declared, none among them, call on
 * the first ones of the tensor: equally many on all workers. So may a broadcast and a reduce, but not on
 * asynchronous tensors, of CUDA memory, or where the ranks of a host sum first (local-group). `out` NULL:
 * read the answer in place with bps_handle_view; the tensor takes no other operation until
 * bps_handle_release.
 *
 * All workers call the same on a tensor, in the same order. If they do not, or one of them has dropped it or
 * closed, the tensor fails for good on all of them: this operation or the next one ends with
 * BPS_CONFIGURATION, naming both sides. Other tensors go on, and bps_drop tells how to get this one back. On
 * an asynchronous tensor only the operation that is wrong fails. */
BPS_API bps_status bps_push_pull(bps_client* client, bps_tensor tensor, const bps_buffer* in,
                                 const bps_buffer* out, bps_reduce_op operation, bps_handle** handle,
                                 bps_error* error);

/* Starts to copy the root's `buffer` to all other workers. It must stay valid, and at the root unchanged,
 * until the operation is done: at the root when all others have its bytes, elsewhere when they are in
 * `buffer`. If it fails, `buffer` may be half written. On an asynchronous tensor it sets the value that
 * deltas are added to, and is done at the root when the server has it; deltas wait for the first broadcast.
 */
BPS_API bps_status bps_broadcast(bps_client* client, bps_tensor tensor, const bps_buffer* buffer,
                                 int32_t root, bps_handle** handle, bps_error* error);

/* Starts to reduce `in` of all workers into `out` of the root: the same bits that bps_push_pull would give
 * it. `out` is ignored elsewhere and may be NULL there. `in` and `out` as of bps_push_pull; the operation is
 * done when the root has the result. A root that is lost ends it with BPS_PEER_LOST on all others, also if
 * its process ends without bps_close right after its own operation was done. A sum or product whose
 * partitions hold different numbers of ranks, because one was lost, fails on all, but perhaps not on those
 * that only give if a server was lost as well. BPS_INVALID_ARGUMENT: the tensor is asynchronous, the memory
 * is CUDA memory, or the ranks of a host sum first (local-group). */
BPS_API bps_status bps_reduce(bps_client* client, bps_tensor tensor, const bps_buffer* in,
                              const bps_buffer* out, bps_reduce_op operation, int32_t root,
                              bps_handle** handle, bps_error* error);

/* Starts to reduce `in` of all workers, of which each takes its part (bps_tensor_spec) into `out`. Sums,
 * averages and products of f32 and f64 are made in rank order, but for the rank whose part it is: that one
 * comes last, because it adds its own elements itself. `exact_order` 1: in rank order, and all is sent, so
 * the bits are those of bps_push_pull, as those of all other types are always. `out` is memory of that part
 * alone, or the place in `in` where the part is. Both must stay valid, and `in` unchanged, until the
 * operation is done: when this rank has its part, and nobody needs its `in` any more. A worker that is lost
 * before its part is over ends it on all others with BPS_PEER_LOST, also where the job goes on without it,
 * and so all later calls: drop the tensor, and declare it with no elements for that rank. Otherwise a loss
 * means what it means for bps_reduce. BPS_INVALID_ARGUMENT: the tensor has no parts, the memory is CUDA
 * memory, or the ranks of a host sum first (local-group). */
BPS_API bps_status bps_reduce_scatter(bps_client* client, bps_tensor tensor, const bps_buffer* in,
                                      const bps_buffer* out, bps_reduce_op operation, int exact_order,
                                      bps_handle** handle, bps_error* error);

/* Starts to copy the parts of all workers (bps_tensor_spec), each in its `in`, into `out` of all workers.
 * `in` is memory of that part alone, or the place in `out` where the part is. Both must stay valid, and `in`
 * unchanged, until the operation is done: when `out` is whole here, and nobody needs `in` any more. If it
 * fails, `out` may be half written. Otherwise as bps_reduce_scatter. */
BPS_API bps_status bps_all_gather(bps_client* client, bps_tensor tensor, const bps_buffer* in,
                                  const bps_buffer* out, bps_handle** handle, bps_error* error);

/* *done = 1 if the operation has ended, with success or not, and its callbacks have run. Inside a callback:
 * if it has ended. */
BPS_API bps_status bps_poll(bps_handle* handle, int* done);

/* Waits for the end, and for the callbacks that bps_then has been given; returns the result. So a callback
 * may use what belongs to the waiting thread, as long as the wait has not expired. May be called again, and
 * from several threads, with the same result. An expired wait (BPS_DEADLINE) cancels nothing and names the
 * ranks that it waited for. If these have waited for each other's operations for 10 s (or stall-warn, if
 * longer), its exit_code is 78 instead of 75: a restart would end in the same way. */
BPS_API bps_status bps_wait(bps_handle* handle, int64_t timeout_ms, bps_error* error);

/* What is queued on `stream` (cudaStream_t or CUstream, NULL: the default stream) after this call finds the
 * output of the operation, one on CUDA memory. The call waits on the host until the last copy to the GPU has
 * been queued, at most operation_timeout_ms. Then it makes the stream wait for the event behind that copy.
 * BPS_DEADLINE: the stream does not wait; call again. BPS_INVALID_ARGUMENT: the stream is being captured into
 * a graph. bps_poll and bps_wait tell how the operation ended; after a failure the stream goes on, and what
 * it computes from the output is worth nothing. Any thread, and several at once; refused inside a callback.
 */
BPS_API bps_status bps_handle_wait_stream(bps_handle* handle, void* stream, bps_error* error);

/* Runs once on the client's callback thread. A wait inside is refused (BPS_INVALID_ARGUMENT). Nor may it wait
 * for a thread that is in bps_wait for the same operation, which waits for the callback. error is NULL on
 * success, and valid until the callback returns. */
typedef void (*bps_callback)(const bps_error* error, void* user);
BPS_API bps_status bps_then(bps_handle* handle, bps_callback callback, void* user, bps_error* error);

/* A file descriptor that becomes readable when the operation has ended and its callbacks have run.
 * bps_handle_free closes it. */
BPS_API bps_status bps_handle_fd(bps_handle* handle, int* fd, bps_error* error);

/* The number of ranks in the answer, smallest over the partitions that have elements in it; 0 until the
 * operation has succeeded, and of a drop. 1 of a broadcast, an all_gather, a reduce at ranks other than its
 * root, and a reduce_scatter where the part is empty. Of a tensor without elements: the ranks that share it.
 */
BPS_API uint32_t bps_handle_ranks(const bps_handle* handle);

/* A piece of an answer that is read in place. */
typedef struct bps_view {
  size_t struct_size;
  const void* pointer; /* not to be written */
  size_t bytes;
  uint64_t offset; /* of the piece in the tensor, in bytes */
  size_t pieces;   /* of the whole answer */
} bps_view;

#define BPS_VIEW_INIT \
  { sizeof(bps_view), NULL, 0, 0, 0 }

/* Of a successful call without `out`. Of a push_pull: piece `index` of the answer, in the order of the
 * tensor, without gaps. Of parts whose lengths only their givers knew: the part of the group's rank `index`.
 * The index after the last piece gives BPS_OK and 0 bytes. The memory stays readable until bps_handle_release
 * or bps_handle_free, also after bps_close. After a failure: the operation's error. */
BPS_API bps_status bps_handle_view(bps_handle* handle, size_t index, bps_view* view, bps_error* error);

/* Ends the reading in place, once, before bps_close. The tensor may then have its next operation. BPS_OK:
 * what was read was the answer. BPS_PEER_LOST: a server was lost meanwhile; discard what was computed from
 * it. Parts, see above, are not freed before bps_handle_free. */
BPS_API bps_status bps_handle_release(bps_handle* handle, bps_error* error);

/* Frees the handle, not the operation, whose buffers must stay valid until it is done or bps_close. A view is
 * released, without a report whether it was right. NULL is allowed. */
BPS_API void bps_handle_free(bps_handle* handle);

#ifdef __cplusplus
} /* extern "C" */
#endif

#include <bps/calls.h>

#endif /* BPS_BPS_H_ */
