/* One worker with its cluster inside the process: reduces a tensor, meets an error, closes. */
#include <bps/bps.h>
#include <stdio.h>
#include <string.h>

#define COUNT 100000

static float gradient[COUNT];
static float sum[COUNT];

static int failed(const char* what, const bps_error* error) {
  fprintf(stderr, "%s: %s; %s\n", what, error->message, error->advice);
  return error->exit_code ? error->exit_code : 1;
}

static bps_buffer buffer_of(float* pointer, size_t bytes) {
  bps_buffer buffer;
  memset(&buffer, 0, sizeof buffer);
  buffer.struct_size = sizeof buffer;
  buffer.pointer = pointer;
  buffer.bytes = bytes;
  buffer.kind = BPS_MEMORY_HOST;
  return buffer;
}

static int reduce(bps_client* client, bps_tensor tensor) {
  const bps_buffer in = buffer_of(gradient, sizeof gradient);
  const bps_buffer out = buffer_of(sum, sizeof sum);
  bps_error error = BPS_ERROR_INIT;
  bps_handle* handle = NULL;
  if (bps_push_pull(client, tensor, &in, &out, BPS_SUM, &handle, &error)) return failed("push_pull", &error);
  const bps_status status = bps_wait(handle, 20000, &error);
  const uint32_t weight = bps_handle_ranks(handle);
  bps_handle_free(handle);
  if (status) return failed("wait", &error);
  if (weight != 1) return fprintf(stderr, "weight is %u\n", (unsigned)weight), 1;
  for (size_t i = 0; i < COUNT; ++i) {
    if (sum[i] != gradient[i]) return fprintf(stderr, "element %zu is wrong\n", i), 1;
  }
  return 0;
}

static int refuses_a_wrong_length(bps_client* client, bps_tensor tensor) {
  const bps_buffer wrong = buffer_of(gradient, sizeof gradient - 2);
  bps_error error = BPS_ERROR_INIT;
  bps_handle* handle = NULL;
  if (bps_push_pull(client, tensor, &wrong, &wrong, BPS_SUM, &handle, &error) != BPS_INVALID_ARGUMENT ||
      error.exit_code != 64 || error.message[0] == '\0' || handle != NULL) {
    return fprintf(stderr, "a push of the wrong length was not refused\n"), 1;
  }
  return 0;
}

int main(void) {
  bps_options options;
  bps_options_init(&options, sizeof options);
  options.scheduler = "embedded:";
  options.job = "consumer";
  bps_error error = BPS_ERROR_INIT;
  bps_client* client = NULL;
  if (bps_open(&options, &client, &error)) return failed("open", &error);

  bps_tensor_spec spec = BPS_TENSOR_SPEC_INIT;
  spec.name = "gradient";
  spec.dtype = BPS_F32;
  spec.count = COUNT;
  bps_tensor tensor;
  if (bps_declare(client, &spec, 1, &tensor, 20000, &error)) return failed("declare", &error);

  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < COUNT; ++i)
      gradient[i] = (float)(i % 1000) + (float)round;
    const int status = reduce(client, tensor);
    if (status) return status;
  }
  const int status = refuses_a_wrong_length(client, tensor);
  if (status) return status;
  if (bps_barrier(client, 20000, &error)) return failed("barrier", &error);
  if (bps_close(client, 20000, &error)) return failed("close", &error);
  if (bps_barrier(client, 20000, &error) != BPS_CLOSED) return fprintf(stderr, "used after close\n"), 1;
  bps_free(client);
  printf("C consumer of bps %s: ok\n", bps_version());
  return 0;
}
