// The scheduler is there again, perhaps another one (decision 0013): it is told what was said before, and
// asked again what it has not answered.
#include "client/src/engine/client_engine.h"

namespace bps {

void ClientEngine::on_taken_up() {
  data_.report([this](const Message& message) { link_.send(message); });
  Attached attached;
  attached.closed = data_.closed_lanes();
  attached.closing.assign(ranks_closing_.begin(), ranks_closing_.end());
  attached.barriers_arrived = next_barrier_;
  attached.barriers_done = barriers_done_;
  link_.send(attached);
  for (const LaneLost& said : data_.lost_links())
    link_.send(said);
  for (const TensorFailed& failed : tensors_failed_)
    link_.send(failed);
  for (const auto& [request, pending] : declares_)
    ask_again(request, pending);
  for (const auto& [number, done] : barriers_)
    link_.send(Barrier{number});
  if (has_left_) link_.send(Leave{});
}

// The piece that was asked and not answered: with the same number, and just as it was.
void ClientEngine::ask_again(std::uint64_t request, const PendingDeclare& pending) {
  const auto at = [&](std::size_t index) {
    return pending.tensors.begin() + static_cast<std::ptrdiff_t>(index);
  };
  link_.send(Declare{request, {at(pending.answered), at(pending.asked)}});
}

std::string ClientEngine::describe_scheduler() const {
  const std::string loss = link_.describe_loss();
  return loss.empty() ? loss : "; " + loss;
}

}  // namespace bps
