// Ranges on the time line of NVIDIA's profilers, by a library of theirs, if it is there when the program
// runs: libnvToolsExt of older toolkits, or libnvtx3interop; the Python package nvidia-nvtx-cu12 has one or
// the other. Without them a range costs a comparison.
//
// Any thread; a range may end in another one than it began in.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

namespace bps {

class Nvtx {
 public:
  using Start = std::uint64_t (*)(const char* name);
  using End = void (*)(std::uint64_t range);

  Nvtx() = default;  // off
  Nvtx(Start start, End end) : start_(start), end_(end) {}
  // By the first that is there; off, if none is. It stays loaded.
  static Nvtx open(std::initializer_list<const char*> libraries = {"libnvToolsExt.so.1",
                                                                   "libnvtx3interop.so.1"});

  // Names are to be made only then.
  bool is_on() const { return start_ != nullptr; }

  // Ends with its life.
  class Range {
   public:
    Range() = default;
    Range(const Nvtx& nvtx, const std::string& name)
        : end_(nvtx.end_), id_(nvtx.is_on() ? nvtx.start_(name.c_str()) : 0) {}
    Range(Range&& other) noexcept : end_(std::exchange(other.end_, nullptr)), id_(other.id_) {}
    Range& operator=(Range&& other) noexcept {
      std::swap(end_, other.end_);
      std::swap(id_, other.id_);
      return *this;
    }
    ~Range() {
      if (end_ != nullptr) end_(id_);
    }

   private:
    End end_ = nullptr;
    std::uint64_t id_ = 0;
  };

  // "bps reduce weight"; nothing if it is off.
  Range range(const char* stage, const std::string& label) const;

 private:
  Start start_ = nullptr;
  End end_ = nullptr;
};

}  // namespace bps
