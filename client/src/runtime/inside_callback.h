// Marks the time that a thread spends in the program's own code, called by the library: a callback or a log
// function. Waiting there would wait for the very thread that has to go on, so it is refused.
#pragma once

namespace bps {

class InsideCallback {
 public:
  InsideCallback() { ++depth(); }
  ~InsideCallback() { --depth(); }
  InsideCallback(const InsideCallback&) = delete;
  InsideCallback& operator=(const InsideCallback&) = delete;

  // Is the calling thread inside one, of any client?
  static bool here() { return depth() > 0; }

 private:
  static int& depth() {
    static thread_local int value = 0;
    return value;
  }
};

}  // namespace bps
