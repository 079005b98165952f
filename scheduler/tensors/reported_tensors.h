// What nodes that come back report of tensors, against what the catalog has: does it fit, and what have they
// missed?
//
// Pure: the catalog is the caller's.
#pragma once

#include <vector>

#include "scheduler/report.h"
#include "scheduler/tensors/tensor_catalog.h"

namespace bps {

// A server holds this part of a tensor that workers know. False: they do not.
bool is_known(const TensorCatalog& tensors, const TensorSlices& held);
// A worker's numbers of a tensor are those that it has in the catalog.
bool matches(const TensorCatalog& tensors, const KnownTensor& known);
// Where it is to go that knows only what it reports; of tensors that it does not know, too, or not.
std::vector<PartitionMove> news_for(const TensorCatalog& tensors, const WorkerReport& report,
                                    bool only_known);
// What has failed, and the worker does not report it; declared by it or not.
std::vector<TensorFailed> failures_for(const TensorCatalog& tensors, const WorkerReport& report);
// All have dropped it.
bool has_ended(const TensorCatalog& tensors, TensorId id);
// Those that the worker reports as dropped, in messages of legal size.
std::vector<DropTensors> ended_for(const TensorCatalog& tensors, const WorkerReport& report);
// Of what a server reports that it holds, what it is not to have.
DropTensors unwanted(const TensorCatalog& tensors, ServerId server, const RunReport& report);

}  // namespace bps
