#include "text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace lm {
namespace {

namespace fs = std::filesystem;

void append_file(const fs::path& path, std::string& text) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  text.append(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  if (in.bad()) throw std::runtime_error("reading " + path.string() + " failed");
}

// splitmix64: a few good random bits from any counter, the same on every machine.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

std::string read_text(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& name : paths) {
    std::error_code error;
    if (!fs::is_directory(name, error)) {
      append_file(name, text);
      continue;
    }
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(name, error)) {
      if (!entry.is_symlink() && entry.is_regular_file()) files.push_back(entry.path());
    }
    if (error) throw std::runtime_error("cannot list " + name + ": " + error.message());
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files)
      append_file(file, text);
  }
  return text;
}

std::string_view shard_of(std::string_view text, unsigned rank, unsigned world_size) {
  const std::size_t begin = text.size() * rank / world_size;
  const std::size_t end = text.size() * (rank + 1) / world_size;
  return text.substr(begin, end - begin);
}

Batch draw_batch(std::string_view shard, std::size_t context_bytes, std::size_t size, unsigned rank,
                 unsigned step) {
  Batch batch;
  batch.size = size;
  batch.context.reserve(size * context_bytes);
  batch.target.reserve(size);
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint64_t number = mix(mix((std::uint64_t{rank} << 32) | step) + i);
    const std::size_t start = number % (shard.size() - context_bytes);
    for (std::size_t j = 0; j < context_bytes; ++j) {
      batch.context.push_back(static_cast<std::uint8_t>(shard[start + j]));
    }
    batch.target.push_back(static_cast<std::uint8_t>(shard[start + context_bytes]));
  }
  return batch;
}

}  // namespace lm
