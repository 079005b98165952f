// Files with secrets: a cluster's key, the key of a certificate. One that others could read or change is
// refused: nobody but its owner, who is this user or root, has any right to it. What was read is wiped.
//
// Failure: every error names the file and what to do; none shows what is in it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace bps {

// The content of a file, wiped when it goes. Move-only.
class SecretText {
 public:
  explicit SecretText(std::size_t max_bytes);
  ~SecretText();
  SecretText(SecretText&& other) noexcept;
  SecretText(const SecretText&) = delete;
  SecretText& operator=(const SecretText&) = delete;

  std::string_view text() const { return {bytes_.get(), size_}; }

 private:
  friend Result<SecretText> read_secret_file(const std::string&, std::string_view, std::size_t, std::string);
  std::unique_ptr<char[]> bytes_;
  std::size_t capacity_ = 0;
  std::size_t size_ = 0;
};

// All of it, at most `max_bytes`. `what` it is stands in errors before the path ("key file"), `advice` tells
// how to make one. Errors: `os` where the file cannot be read, else `configuration`.
Result<SecretText> read_secret_file(const std::string& path, std::string_view what, std::size_t max_bytes,
                                    std::string advice);

}  // namespace bps
