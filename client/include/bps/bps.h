/* bps.h - the C API of libbpsclient, the only surface the library exports.
 *
 * A client is one worker of a job. It joins through the scheduler, declares tensors, and push_pulls them:
 * every worker pushes its contribution, and every worker gets the reduction of all of them.
 *
 *   bps_options options;
 *   bps_options_init(&options, sizeof options);
 *   options.job = "resnet50";                          // rank, size, scheduler: from the environment
 *   bps_client* client = NULL;
 *   bps_error error = BPS_ERROR_INIT;
 *   if (bps_open(&options, &client, &error)) { fprintf(stderr, "%s\n", error.message); exit(error.exit_code);
 * }
 *
 * Rules for everything here:
 * - Functions return BPS_OK (0) or a status; details go to the bps_error, which may be NULL.
 * - All functions may be called from any thread, except from a bps_callback where noted. Many clients may
 *   live in one process. The library never exits, aborts, or installs signal handlers; its threads block
 * signals. But where one of these is given no memory for a small record, the process ends (std::bad_alloc).
 * - Nothing waits without a deadline. timeout_ms < 0 means the client's default (operation_timeout_ms).
 * - Structs begin with their size, so that programs built with an older header keep working.
 * - A child of fork() must not use a client of its parent: every call returns BPS_CLOSED and says so.
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
  BPS_INVALID_ARGUMENT =
      1,                 /* the caller's mistake; nothing has changed                              exit 64 */
  BPS_UNREACHABLE = 2,   /* the scheduler does not answer                                          exit 69 */
  BPS_OS = 3,            /* the operating system refused something                                 exit 71 */
  BPS_DEADLINE = 4,      /* the wait expired; the operation goes on and may be waited for again    exit 75 */
  BPS_PEER_LOST = 5,     /* a worker or server died; the job run has failed, start it again        exit 75 */
  BPS_PROTOCOL = 6,      /* a peer broke the protocol or has another version                       exit 76 */
  BPS_UNAUTHORISED = 7,  /* not allowed                                                            exit 77 */
  BPS_CONFIGURATION = 8, /* ranks disagree, duplicate rank, tensor mismatch, bad setting           exit 78 */
  BPS_OUT_OF_MEMORY = 9, /* does not fit the servers' memory budget, or no memory here             exit 71 */
  BPS_CANCELLED = 10,    /* ended by bps_close                                                     exit 64 */
  BPS_CLOSED = 11,       /* use after close, or in a forked child                                  exit 64 */
  BPS_INTERNAL = 12      /* a bug in bps; please report it                                         exit 70 */
} bps_status;

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

/* Called on a library thread, which other clients of the process may share, or within a call of the
 * program's; must not call the library, nor wait for who may be in a call. */
typedef void (*bps_log_function)(bps_log_level level, const char* text, void* user);

typedef enum bps_mode {
  BPS_MODE_DEFAULT = -1, /* of a tensor: the job's; of a job: sync */
  BPS_MODE_SYNC = 0,     /* a round completes when every live worker has contributed */
  BPS_MODE_ASYNC = 1     /* the server holds the value, adds each delta on arrival, answers at once */
} bps_mode;

typedef enum bps_worker_loss {
  BPS_WORKER_LOSS_DEFAULT = -1, /* fail */
  BPS_WORKER_LOSS_FAIL = 0,     /* every operation on every other worker fails with BPS_PEER_LOST */
  BPS_WORKER_LOSS_SHRINK = 1 /* the others go on: rounds complete with those who are left, bps_handle_weight
                                says how many were summed, an average divides by that */
} bps_worker_loss;

#define BPS_STALENESS_UNBOUNDED INT64_C(-2)

/* A field left at the value that bps_options_init gives means "not set": then the environment
 * (BPS_SOME_NAME), then the file that BPS_CONFIG or config_file names (some-name = value), then the default
 * is used. Strings must live until bps_open returns. */
typedef struct bps_options {
  size_t struct_size;
  const char* scheduler; /* "HOST:PORT", or "embedded:" = a scheduler and a server inside this process,
                            for world size 1. Default 127.0.0.1:4710 */
  const char* job;       /* default "default" */
  int32_t rank;       /* -1 = BPS_RANK, else torchrun, Slurm, OpenMPI or Kubernetes variables, else 0 of 1 */
  int32_t world_size; /* -1 = likewise */
  int32_t local_rank; /* -1 = likewise */
  int32_t local_size; /* -1 = likewise */
  const char* config_file;
  int64_t join_timeout_ms;      /* -1 = 60,000: how long to wait for the other workers */
  int64_t operation_timeout_ms; /* -1 = 300,000: deadline of calls that are given timeout_ms < 0 */
  int64_t
      partition_bytes; /* -1 = 258,048, less if a link is known to be slow; job setting: equal on all ranks */
  int64_t credit_bytes; /* -1 = 4 MiB, down to 512 KiB if bandwidth_bps says so, 2 MiB with transport "tcp" if
                           all servers are on this host: payload under way to the servers */
  int32_t retain;    /* -1 = 1. 1: answers land in library memory and are copied out when whole, inputs stay
                        untouched until then. 0: answers land straight in the output */
  int32_t mode;      /* bps_mode; job setting: default of its tensors */
  int64_t staleness; /* -1 = not set (unbounded); job setting: rounds a worker may be ahead of the slowest */
  int64_t
      bandwidth_bps; /* -1 = unknown: bits/s of this host's link: for placement, partition size and credit */
  const char*
      congestion_control; /* TCP congestion control of the lanes, e.g. "cubic"; default the system's */
  bps_log_function log;   /* NULL = warnings and errors go to stderr */
  void* log_user;
  const char* transport; /* "auto" (default): shared memory to servers on this host, RDMA to others that offer
                          * it, else TCP; "tcp"; "shm"; "rdma" */
  const char* key_file;  /* the key of the cluster, or of the job; default none: a cluster without keys */
  const char* tls_cert;  /* PEM files: this worker's certificate, */
  const char* tls_key;   /* its key, */
  const char* tls_ca;    /* and who must have signed those of scheduler and servers; default none: no TLS */
  int64_t scheduler_grace_ms; /* -1 = 60,000: how long to go on without the scheduler when it is lost, and to
                                 look for it; 0 = not at all */
  int32_t checksum;    /* -1 = 0. 1: payloads over TCP carry their CRC32C both ways; a damaged one is sent
                        * again. Refused with transport "rdma" */
  int32_t worker_loss; /* bps_worker_loss; job setting: equal on all ranks */
  int32_t
      unequal_sums; /* -1 = 0; job setting, of shrink. 0: a sum or product is an error (BPS_PEER_LOST, on all
                       ranks alike) if parts of its tensor hold more ranks than others. 1: it is not */
  const char* rdma_device; /* "mlx5_0" or "mlx5_0:1": RDMA device, and its port; default the one that leads to
                              a server */
  int32_t rdma_gid; /* -1 = any: index of the GID, and with it the address, that the device is used with */
  int32_t
      rdma_tclass; /* -1 = the system's: traffic class of what is sent over RDMA, 0 to 255: DSCP times 4 */
  const char*
      local_group; /* "off" (default); the ranks of a host sum among themselves first, and each byte crosses
                      the network once for all of them: "host", in its memory, and operations are on host
                      memory; "nccl", on their GPUs, and operations are on CUDA memory. Job setting: equal on
                      all ranks. Sums have other bits than without, the loss of a rank is the loss of its
                      host, and asynchronous tensors and averages of 8-bit and int32 elements are refused */
  int64_t pinned_max_bytes; /* -1 = 1 GiB: host memory that the library registers with the GPU's driver, at
                               most. 0: none; copies go by way of a small buffer then, and are slower */
  int32_t cuda_device; /* -1 = not set: the one GPU of this client, as the CUDA runtime counts them. Not set,
                          with local_group nccl: that of the context that is current in the thread which calls
                          bps_open, else local rank modulo the number of GPUs; otherwise the `device` of the
                          first CUDA buffer */
} bps_options;

BPS_API void bps_options_init(bps_options* options, size_t struct_size);

/* ---- client ---- */

typedef struct bps_client bps_client;

/* Joins the job; returns when all workers of it are there. On failure *client is NULL. options may be NULL.
 */
BPS_API bps_status bps_open(const bps_options* options, bps_client** client, bps_error* error);

/* Says "no later rounds from me" and ends everything. Operations under way are finished first, until the
 * timeout; what is left then ends with BPS_CANCELLED, and to the other workers this one has not left but is
 * lost (BPS_PEER_LOST), because they may wait for those rounds. When it returns no memory of the caller is
 * touched any more; but BPS_OS: the client is closed, and a GPU, for which this has waited up to 10 s more,
 * has not come to rest: see bps_buffer. A second close waits for the first, and returns what that returns.
 * Calls on a closed client return BPS_CLOSED. */
BPS_API bps_status bps_close(bps_client* client, int64_t timeout_ms, bps_error* error);

/* Gives the job up, as a program does that dies of an error of its own. To the other workers this one is lost
 * (BPS_PEER_LOST), whether or not operations are under way: a bps_close between two rounds would tell them
 * that it had meant to leave. Waits for no operation, but as long as bps_close for a GPU to come to rest;
 * otherwise as that. */
BPS_API bps_status bps_abandon(bps_client* client, bps_error* error);

/* Closes (with timeout 0) if still open, and frees the client. Handles stay valid. NULL is fine. */
BPS_API void bps_free(bps_client* client);

BPS_API int32_t bps_rank(const bps_client* client);
BPS_API int32_t bps_world_size(const bps_client* client);
/* The place among the ranks of this host, and their number: as the settings say; with local_group, as
 * counted. Those that give a BPS_LOCAL_GROUP_ID are counted within that group: not what chooses a GPU, if
 * several are on one machine. */
BPS_API int32_t bps_local_rank(const bps_client* client);
BPS_API int32_t bps_local_size(const bps_client* client);

/* Returns when every worker of the job has called it as often as this one. */
BPS_API bps_status bps_barrier(bps_client* client, int64_t timeout_ms, bps_error* error);

/* Counters since open, for progress lines and benchmarks. */
typedef struct bps_stats {
  size_t struct_size;
  uint64_t pushed_bytes; /* payload bytes sent, resends included */
  uint64_t pulled_bytes; /* payload bytes received */
  uint64_t rounds;       /* operations completed */
  uint64_t resent;       /* contributions sent again after a lost connection or a refusal (`later`) */
  uint64_t lanes;        /* connections to servers that are up now */
  uint64_t shm_lanes;    /* of these, over shared memory */
  uint64_t workers;      /* of the job that are not lost: the world size, until the job shrinks */
  uint64_t rdma_lanes;   /* of the lanes, over RDMA */
  /* What that takes; 0 without. What devices repeat with success they count themselves: bpsctl doctor --rdma.
   */
  uint64_t rdma_registrations;   /* times that this client registered memory with RDMA devices */
  uint64_t rdma_sends;           /* SENDs posted */
  uint64_t rdma_signalled_sends; /* of these, such that the device was to tell when they are done */
  uint64_t rdma_reads;           /* READs posted */
  uint64_t rdma_read_bytes;      /* bytes asked for by READs */
  uint64_t rdma_failed_requests; /* requests that failed and ended their connection */
  uint64_t
      rdma_unanswered_requests; /* of these, because the peer's device did not answer, however often asked */
  uint64_t rdma_unready_receivers; /* of these, because the peer had no buffer, however often asked */
} bps_stats;
BPS_API bps_status bps_get_stats(bps_client* client, bps_stats* stats);

/* What an open client works with, whoever has said it: the program, the environment, the config file, or
 * nobody. */
typedef struct bps_client_info {
  size_t struct_size;
  const char* local_group;      /* "off", "host" or "nccl"; readable as long as the library is loaded */
  int32_t cuda_device;          /* the GPU of this client, as the CUDA runtime counts them; -1: none yet, see
                                   bps_options */
  int64_t operation_timeout_ms; /* deadline of calls that are given timeout_ms < 0 */
} bps_client_info;
BPS_API bps_status bps_get_client_info(bps_client* client, bps_client_info* info);

/* ---- tensors ---- */

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

/* bytes of one element; 0 for an unknown dtype */
BPS_API size_t bps_dtype_size(bps_dtype dtype);

typedef uint32_t bps_tensor; /* valid for the client that declared it */

#define BPS_PRIORITY_DEFAULT 0
#define BPS_WIRE_DTYPE_SAME (-1)

typedef struct bps_tensor_spec {
  size_t struct_size;
  const char* name; /* at most 512 bytes, unique in the job */
  bps_dtype dtype;
  uint64_t count; /* elements; 0 is allowed */
  int32_t
      priority; /* higher goes first; equal: the earlier declared goes first. The first declaration decides */
  int32_t mode; /* bps_mode */
  int64_t staleness;  /* async: -1 = the job's; 0.. = bound; BPS_STALENESS_UNBOUNDED */
  int32_t wire_dtype; /* bps_dtype, or BPS_WIRE_DTYPE_SAME; see below. 0 is BPS_F32: begin with
                         BPS_TENSOR_SPEC_INIT, not with zeros, which say f32 of any dtype and are refused for
                         others */
} bps_tensor_spec;

#define BPS_TENSOR_SPEC_INIT                                                               \
  {                                                                                        \
    sizeof(bps_tensor_spec), NULL, BPS_F32, 0, BPS_PRIORITY_DEFAULT, BPS_MODE_DEFAULT, -1, \
        BPS_WIRE_DTYPE_SAME                                                                \
  }

/* Declares n tensors. All workers declare alike, in any order; no worker waits for another. Declaring again
 * what is declared alike returns the same tensor. A name with another dtype or count fails, naming both
 * declarations, and fails that tensor on every rank. On failure the error names the first tensor that failed.
 *
 * wire_dtype BPS_BF16 or BPS_F16, with dtype BPS_F32: the program's memory is f32, and the network's and the
 * servers' bytes are halves; to other workers it is a tensor of that dtype. For CUDA memory, aligned to 4
 * bytes, which the GPU casts beside the copies, to nearest, ties to even; a host's GPUs sum in f32 before,
 * and servers sum in f32 and round once. What is broadcast is rounded at the root, too. A sum of a host
 * beyond 65504 is infinite in f16. Needs 8 MiB of the GPU and its driver's compiler; a GPU that cannot load
 * the kernels fails as one that fails otherwise, at the first such operation. They are loaded once, while no
 * stream waits for an operation (bps_handle_wait_stream), and what needs them begins after that: so declare
 * the first such tensor before streams wait. Refused with BPS_INVALID_ARGUMENT: another dtype, an
 * asynchronous tensor, local_group host, and host memory; with BPS_CONFIGURATION: a name that this client has
 * declared with another. */
BPS_API bps_status bps_declare(bps_client* client, const bps_tensor_spec* specs, size_t n,
                               bps_tensor* tensors, int64_t timeout_ms, bps_error* error);

/* ---- memory ---- */

/* Memory that every transport moves without copying it first. Any memory may be given to an operation; this
 * is the fastest. Zeroed, aligned to a page; allocate large pieces and cut them up. 0 bytes give NULL. */
BPS_API bps_status bps_allocate(bps_client* client, size_t bytes, void** pointer, bps_error* error);

/* Gives back what bps_allocate gave; NULL is fine. Also after bps_close, and even after bps_free of the
 * client: until then the memory stays. Operations under way that use it are not disturbed: it goes when they
 * are done. */
BPS_API bps_status bps_deallocate(bps_client* client, void* pointer);

/* ---- operations ---- */

typedef enum bps_operation {
  BPS_SUM = 0,
  BPS_AVERAGE = 1,
  BPS_MIN = 2,
  BPS_MAX = 3,
  BPS_PRODUCT = 4
} bps_operation;

typedef enum bps_memory_kind {
  BPS_MEMORY_HOST = 0,
  BPS_MEMORY_HOST_PINNED = 1,
  BPS_MEMORY_CUDA = 2
} bps_memory_kind;

/* A piece of memory; those of one operation are both the host's (HOST and HOST_PINNED are treated alike), or
 * both CUDA.
 *
 * CUDA memory is of the client's one GPU (see cuda_device), whichever context is current. What the call needs
 * of it the calling thread asks NVIDIA's driver: that waits for nothing on the GPU, but returns when the
 * driver does. libcuda.so.1 and, with local_group nccl, libnccl.so.2 are opened when they are first needed:
 * without them, or without a GPU, the call fails with BPS_CONFIGURATION, and all else goes on. Refused with
 * BPS_INVALID_ARGUMENT: CUDA memory for asynchronous tensors, for push_pull without `out`, and with
 * local_group host; host memory with local_group nccl; there, on all hosts, min and max of floats, in which
 * NCCL ignores NaN; memory that is not what the buffer says, also if it is two allocations that lie side by
 * side; a stream that is being captured into a graph. When a GPU fails, the job run has failed for this
 * worker: its operations end with the error, which names the GPU and the call. So it does when a call of NCCL
 * has not returned for 10 s, or one of the GPU's driver has not while a stream waited for an operation
 * (bps_handle_wait_stream); otherwise a call of the driver may take as long as what the program has queued on
 * the GPU, which operations then wait for: a warning tells of it after 5 s, and who waits for them has a
 * deadline. No operation ends before the GPU has stopped touching its memory, with one exception: a GPU that
 * has not come to rest 4 s after the job run has failed, or has been closed, may never. What it is at then
 * ends with BPS_OS, and the message says that the GPU may still read and write that memory: leave it alone
 * until the process has ended. */
typedef struct bps_buffer {
  size_t struct_size;
  void* pointer;
  size_t bytes;   /* exactly count * bps_dtype_size(dtype) of the tensor, whatever its wire_dtype */
  int32_t kind;   /* bps_memory_kind */
  int32_t device; /* of CUDA memory: the GPU, as the CUDA runtime counts them */
  void* stream; /* of CUDA memory: cudaStream_t or CUstream; work queued on it comes first. NULL: the default
                   stream */
} bps_buffer;

typedef struct bps_handle bps_handle; /* one operation */

/* Starts to reduce `in` of all workers into `out` of all workers; returns at once. in and out may be the same
 * memory, and must stay valid, `in` unchanged, until the operation is done. One operation per tensor at a
 * time. `out` NULL: the answer is read in place, through bps_handle_view, and the next operation on the
 * tensor is refused (BPS_INVALID_ARGUMENT) until bps_handle_release. */
BPS_API bps_status bps_push_pull(bps_client* client, bps_tensor tensor, const bps_buffer* in,
                                 const bps_buffer* out, bps_operation operation, bps_handle** handle,
                                 bps_error* error);

/* Starts to copy the root's `buffer` to all other workers. On an async tensor it sets the
 * value that deltas are then added to, and deltas wait for the first one. */
BPS_API bps_status bps_broadcast(bps_client* client, bps_tensor tensor, const bps_buffer* buffer,
                                 int32_t root, bps_handle** handle, bps_error* error);

/* *done = 1 if the operation has ended, well or not. */
BPS_API bps_status bps_poll(bps_handle* handle, int* done);

/* Waits for the end and returns its result. May be called again, and from several threads: the result is the
 * same. An expired wait (BPS_DEADLINE) cancels nothing and says what it waited for. */
BPS_API bps_status bps_wait(bps_handle* handle, int64_t timeout_ms, bps_error* error);

/* What is queued on `stream` (cudaStream_t or CUstream, NULL: the default stream) after this call waits until
 * the operation, one on CUDA memory, has ended, well or not; the host goes on. How it ended is told by
 * bps_poll and bps_wait, as ever: after a failure the stream goes on, too, when the job run has failed and
 * perhaps before the operation has ended, and what it computes from the output is worth nothing. Where
 * streams cannot wait so (the driver does not offer it, or it could hold up the operation itself; of each
 * stream that has to be found out the first time, which holds the stream for 200 ms at most; more than 1000
 * waits are open, or the library has memory to register) the call waits in the stream's place, on the host,
 * for at most operation_timeout_ms; BPS_DEADLINE: nothing waits. The calling thread asks the driver for it,
 * as in bps_buffer. Before a program destroys the stream the operation must have ended. Refused inside a
 * callback.
 *
 * Order: whatever a program starts after this call, on this stream or another one, may begin only when this
 * operation has ended: with `stream` in its bps_buffer it does, the host may wait in the call, and a GPU has
 * few hardware queues, of which a stream that waits holds one up with all streams that share it
 * (CUDA_DEVICE_MAX_CONNECTIONS, 8 unless set, at most 32). So all ranks must start what they have streams
 * wait for, and what follows, in one order. Streams that wait by an event for one that waits hold up their
 * queues, too, and are not tried out: if the library's own are among those, the job run ends with an error
 * that says so, after 10 s; give CUDA_DEVICE_MAX_CONNECTIONS room for all streams, or wait on the host.
 *
 * While a stream waits, the program must make no call that waits for all streams of the GPU:
 * cudaDeviceSynchronize, cudaFree, cudaMalloc, cudaFreeHost, cudaMallocHost, cudaHostRegister,
 * cudaHostUnregister, the first use of a kernel (unless CUDA_MODULE_LOADING is EAGER), work on the legacy
 * default stream (NULL) for which other streams wait, the first use of another communicator of NCCL, and the
 * first operation on CUDA memory of another client in this process. It would wait for the operation, and may
 * keep the library from the driver meanwhile: then the job run ends with an error, after 10 s, and the
 * streams go on. Allocators that keep their memory, as frameworks have them, make few such calls after the
 * first steps; wait on the host (bps_wait) before others. */
BPS_API bps_status bps_handle_wait_stream(bps_handle* handle, void* stream, bps_error* error);

/* Runs on the client's callback thread, once; waiting inside is refused with BPS_INVALID_ARGUMENT. error is
 * NULL when all went well, and lives until the callback returns. */
typedef void (*bps_callback)(const bps_error* error, void* user);
BPS_API bps_status bps_then(bps_handle* handle, bps_callback callback, void* user, bps_error* error);

/* A file descriptor that becomes readable when the operation ends; owned by the handle, closed by
 * bps_handle_free. */
BPS_API bps_status bps_handle_fd(bps_handle* handle, int* fd, bps_error* error);

/* The number of ranks really summed (smallest over the partitions); 0 until the operation has ended well. */
BPS_API uint32_t bps_handle_weight(const bps_handle* handle);

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

/* Of a push_pull without `out` that has ended well: piece `index` of the answer, in the order of the tensor,
 * without gaps. The index after the last piece gives BPS_OK and 0 bytes, so that a loop ends there. The
 * memory stays readable until bps_handle_release or bps_handle_free, also after bps_close. The error of an
 * operation that has failed. */
BPS_API bps_status bps_handle_view(bps_handle* handle, size_t index, bps_view* view, bps_error* error);

/* Ends the reading in place, once, before bps_close; the tensor may have its next operation. BPS_OK says that
 * what was read up to now was the answer. BPS_PEER_LOST: a server died or broke off meanwhile and it may not
 * have been: throw away what was computed from it. */
BPS_API bps_status bps_handle_release(bps_handle* handle, bps_error* error);

/* Frees the handle, not the operation: if that is under way it goes on, and its buffers must stay valid until
 * a later bps_close. A view that was not released is, without the word whether it was right. NULL is fine. */
BPS_API void bps_handle_free(bps_handle* handle);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* BPS_BPS_H_ */
