// What bpsctl prints, for people and as JSON: one object with the names that the protocol gives its fields.
#pragma once

#include <string>

#include "proto/base/endpoint.h"
#include "proto/base/loop/event_loop.h"
#include "proto/wire/messages.h"

namespace bps {

std::string render(const ClusterState& state, const Endpoint& scheduler);
std::string render(const Waits& waits, Duration older_than = {});
// `begins`: the first that is said of it.
std::string render(const Drained& drained, ServerId server, bool begins);
std::string render(const ClusterEnded& ended);

std::string render_json(const ClusterState& state, const Endpoint& scheduler);
std::string render_json(const Waits& waits);
std::string render_json(const Drained& drained, ServerId server);
std::string render_json(const ClusterEnded& ended);

}  // namespace bps
