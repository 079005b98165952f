#include "scheduler/state_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "proto/base/config/units.h"

namespace bps {
namespace {

constexpr const char* kAdvice = "check --state-dir";

Status write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return os_error("cannot write " + path, errno, kAdvice);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fsync(fd) != 0) return os_error("cannot write " + path, errno, kAdvice);
  return {};
}

}  // namespace

Result<std::unique_ptr<StateDir>> StateDir::open(const std::string& path, const Logger& log) {
  const bool is_new = ::mkdir(path.c_str(), 0700) == 0;
  if (!is_new && errno != EEXIST) return os_error("cannot make the folder " + path, errno, kAdvice);
  const std::string name = path + "/lock";
  UniqueFd lock(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (lock.get() < 0) return os_error("cannot open " + name, errno, kAdvice);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return os_error("cannot lock " + name, errno, kAdvice);
    return make_error(ErrorCode::configuration, fmt::format("another scheduler uses {}", path),
                      "give each scheduler a --state-dir of its own; of one cluster, run one scheduler");
  }
  std::unique_ptr<StateDir> dir(new StateDir(path, std::move(lock), log));
  if (is_new) {
    log.warn(
        "--state-dir {} did not exist, and is made: if a scheduler of this cluster has run before, this is "
        "not its folder",
        path);
  }
  if (Status status = dir->load(); !status) return status.error();
  auto thread = LoopThread::start("bps-state");
  if (!thread) return thread.error();
  dir->thread_ = std::move(thread).value();
  return dir;
}

StateDir::~StateDir() {
  if (thread_ != nullptr) thread_->stop();
}

Status StateDir::load() {
  const std::string path = path_ + "/state";
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno != ENOENT) return os_error("cannot read " + path, errno, kAdvice);
    log_.info("{} holds no state: a new cluster, or one whose servers and workers will report theirs", path_);
    return {};
  }
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return os_error("cannot read " + path, errno, kAdvice);
  if (!S_ISREG(about.st_mode)) return make_error(ErrorCode::os, path + " is not a file", kAdvice);
  std::string text;
  char piece[4096];
  for (ssize_t bytes = 0; text.size() <= kMaxStateBytes;
       text.append(piece, static_cast<std::size_t>(bytes))) {
    bytes = ::read(file.get(), piece, sizeof piece);
    if (bytes < 0) return os_error("cannot read " + path, errno, kAdvice);
    if (bytes == 0) break;
  }
  Result<SchedulerState> state = parse_state(text);
  if (state) {
    found_ = std::move(state).value();
    log_.info("{}: the scheduler before had term {} and {}", path, found_.term,
              counted(found_.runs.size(), "job"));
    return {};
  }
  put_aside(path, state.error().message);
  return {};
}

// The jobs that are running matter more than the file.
void StateDir::put_aside(const std::string& path, const std::string& why) const {
  const std::string aside = path + ".damaged";
  const bool is_aside = ::rename(path.c_str(), aside.c_str()) == 0;
  log_.warn("{}: {}; {}, and servers and workers will report what they have", path, why,
            is_aside ? "it is put aside as " + aside : "it will be overwritten");
}

Status StateDir::save_now(const SchedulerState& state) const {
  const std::string path = path_ + "/state";
  const std::string temporary = path + ".new";
  {
    const UniqueFd file(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file.get() < 0) return os_error("cannot write " + temporary, errno, kAdvice);
    if (Status status = write_all(file.get(), to_text(state), temporary); !status) return status;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0)
    return os_error(fmt::format("cannot rename {} to {}", temporary, path), errno, kAdvice);
  const UniqueFd folder(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0 || ::fsync(folder.get()) != 0)
    return os_error("cannot write " + path_, errno, kAdvice);
  return {};
}

void StateDir::save_first(const SchedulerState& state) { note(save_now(state)); }

void StateDir::save(const SchedulerState& state) {
  thread_->loop().post([this, state] { note(save_now(state)); });
}

void StateDir::note(const Status& saved) {
  if (!saved && !failing_) {
    log_.error("{}; a scheduler that is started after this one will not know of every job",
               to_string(saved.error()));
  }
  if (saved && failing_) log_.info("{} can be written again", path_);
  failing_ = !saved;
}

}  // namespace bps
