// The functions of libibverbs and librdmacm that are used, found when the program runs. Requests and polling
// are not among them: those are calls into the device's driver.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "proto/base/result.h"

namespace bps {

struct RdmaLibrary {
  // Opens the libraries once for the process, and keeps them.
  static Result<const RdmaLibrary*> get();

  decltype(&::ibv_fork_init) fork_init;
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_query_device) query_device;
  decltype(&(::ibv_query_port)) query_port;
  decltype(&::_ibv_query_gid_table) query_gid_table;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  decltype(&(::ibv_reg_mr)) reg_mr;
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_modify_qp) modify_qp;
  decltype(&::ibv_create_comp_channel) create_comp_channel;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_destroy_cq) destroy_cq;
  decltype(&::ibv_get_cq_event) get_cq_event;
  decltype(&::ibv_ack_cq_events) ack_cq_events;

  decltype(&::rdma_get_devices) get_devices;
  decltype(&::rdma_free_devices) free_devices;
  decltype(&::rdma_create_event_channel) create_event_channel;
  decltype(&::rdma_destroy_event_channel) destroy_event_channel;
  decltype(&::rdma_create_id) create_id;
  decltype(&::rdma_destroy_id) destroy_id;
  decltype(&::rdma_migrate_id) migrate_id;
  decltype(&::rdma_set_option) set_option;
  decltype(&::rdma_bind_addr) bind_addr;
  decltype(&::rdma_resolve_addr) resolve_addr;
  decltype(&::rdma_resolve_route) resolve_route;
  decltype(&::rdma_create_qp) create_qp;
  decltype(&::rdma_destroy_qp) destroy_qp;
  decltype(&::rdma_listen) listen;
  decltype(&::rdma_connect) connect;
  decltype(&::rdma_accept) accept;
  decltype(&::rdma_reject) reject;
  decltype(&::rdma_disconnect) disconnect;
  decltype(&::rdma_get_cm_event) get_cm_event;
  decltype(&::rdma_ack_cm_event) ack_cm_event;
};

}  // namespace bps
