#include "proto/transport/rdma/real/rdma_library.h"

#include <dlfcn.h>

#include <string>

namespace bps {
namespace {

Result<RdmaLibrary> open() {
  const auto open_one = [](const char* name) { return ::dlopen(name, RTLD_NOW | RTLD_LOCAL); };
  void* const verbs = open_one("libibverbs.so.1");
  void* const cm = verbs == nullptr ? nullptr : open_one("librdmacm.so.1");
  if (cm == nullptr) {
    const char* const why = ::dlerror();
    return make_error(
        ErrorCode::os,
        std::string("the RDMA libraries cannot be opened: ") + (why != nullptr ? why : "no library"),
        "install libibverbs1, librdmacm1 and ibverbs-providers");
  }
  RdmaLibrary library;
  std::string missing;
  const auto find = [&](void* from, const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(from, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  find(verbs, "ibv_fork_init", library.fork_init);
  find(verbs, "ibv_get_device_name", library.get_device_name);
  find(verbs, "ibv_query_device", library.query_device);
  find(verbs, "ibv_query_port", library.query_port);
  find(verbs, "_ibv_query_gid_table", library.query_gid_table);
  find(verbs, "ibv_alloc_pd", library.alloc_pd);
  find(verbs, "ibv_dealloc_pd", library.dealloc_pd);
  find(verbs, "ibv_reg_mr", library.reg_mr);
  find(verbs, "ibv_dereg_mr", library.dereg_mr);
  find(verbs, "ibv_modify_qp", library.modify_qp);
  find(verbs, "ibv_create_comp_channel", library.create_comp_channel);
  find(verbs, "ibv_destroy_comp_channel", library.destroy_comp_channel);
  find(verbs, "ibv_create_cq", library.create_cq);
  find(verbs, "ibv_destroy_cq", library.destroy_cq);
  find(verbs, "ibv_get_cq_event", library.get_cq_event);
  find(verbs, "ibv_ack_cq_events", library.ack_cq_events);
  find(cm, "rdma_get_devices", library.get_devices);
  find(cm, "rdma_free_devices", library.free_devices);
  find(cm, "rdma_create_event_channel", library.create_event_channel);
  find(cm, "rdma_destroy_event_channel", library.destroy_event_channel);
  find(cm, "rdma_create_id", library.create_id);
  find(cm, "rdma_destroy_id", library.destroy_id);
  find(cm, "rdma_migrate_id", library.migrate_id);
  find(cm, "rdma_set_option", library.set_option);
  find(cm, "rdma_bind_addr", library.bind_addr);
  find(cm, "rdma_resolve_addr", library.resolve_addr);
  find(cm, "rdma_resolve_route", library.resolve_route);
  find(cm, "rdma_create_qp", library.create_qp);
  find(cm, "rdma_destroy_qp", library.destroy_qp);
  find(cm, "rdma_listen", library.listen);
  find(cm, "rdma_connect", library.connect);
  find(cm, "rdma_accept", library.accept);
  find(cm, "rdma_reject", library.reject);
  find(cm, "rdma_disconnect", library.disconnect);
  find(cm, "rdma_get_cm_event", library.get_cm_event);
  find(cm, "rdma_ack_cm_event", library.ack_cm_event);
  if (!missing.empty())
    return make_error(ErrorCode::os, "the installed RDMA libraries have no " + missing,
                      "install a newer rdma-core");
  // Before anything is opened. On kernels that do not copy pinned pages when a process forks, a child takes
  // pages from under the device, and sums would be wrong; with this the child does without registered memory.
  // It fails where another library of the program was first, and then that one has chosen.
  library.fork_init();
  return library;
}

}  // namespace

Result<const RdmaLibrary*> RdmaLibrary::get() {
  static const Result<RdmaLibrary> library = open();
  if (!library) return library.error();
  return &*library;
}

}  // namespace bps
