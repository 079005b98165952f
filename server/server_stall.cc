// Which rounds are open: for the scheduler, who asks, and for the log.
#include <algorithm>

#include "server/server.h"

namespace bps {
namespace {

constexpr Duration kShortestWatch = std::chrono::milliseconds(100);

}  // namespace

void Server::survey(JobRun job, std::optional<TensorId> tensor, bool with_names, Surveyed done) {
  struct Part {
    OpenRoundList open;
    TensorNames names;
  };
  const auto parts = std::make_shared<std::vector<Part>>(shards_.size());
  shards_.on_all(
      [parts, job, tensor, with_names](Shard& shard, std::uint32_t index) {
        Part& part = (*parts)[index];
        shard.survey(job, tensor, part.open, with_names ? &part.names : nullptr);
      },
      [parts, done = std::move(done)] {
        OpenRoundList all;
        TensorNames names;
        for (Part& part : *parts) {
          OpenRounds open = part.open.take(0);
          all.add_more(open.more);
          for (OpenRound& round : open.rounds)
            all.add(std::move(round));
          names.merge(part.names);
        }
        done(std::move(all), names);
      });
}

// Over the connection that it came by, or not at all.
void Server::answer(const AskOpenRounds& query) {
  survey(query.job_run, query.tensor, false,
         [this, connection = link_.connection_number(), query](OpenRoundList open, const TensorNames&) {
           if (connection == link_.connection_number())
             link_.send(open.take(query.request, query.older_than_ms));
         });
}

// Twice in that time, so that nothing waits much longer without a word.
void Server::watch_later() {
  if (options_.stall_warn <= Duration::zero()) return;
  loop_.cancel(watch_timer_);
  watch_timer_ = loop_.after(std::max(options_.stall_warn / 2, kShortestWatch), [this] {
    watch_timer_ = {};
    watch();
    watch_later();
  });
}

void Server::watch() {
  const auto limit_ms =
      static_cast<std::uint64_t>(std::chrono::ceil<std::chrono::milliseconds>(options_.stall_warn).count());
  for (const JobRun job : ledger().runs()) {
    survey(job, std::nullopt, true, [this, job, limit_ms](OpenRoundList open, const TensorNames& names) {
      for (const std::string& line : stalls_.look(job, open.take(0, limit_ms), names))
        log_.warn("{}", line);
    });
  }
}

}  // namespace bps
