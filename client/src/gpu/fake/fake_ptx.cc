#include "client/src/gpu/fake/fake_ptx.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "proto/reduce/oracle.h"

namespace bps {
namespace {

using Op = FakePtx::Op;
using Operand = FakePtx::Operand;

const std::map<std::string_view, Op> kOps = {
    {"ld.param.u64", Op::move},
    {"cvta.to.global.u64", Op::move},
    {"mov.b32", Op::move},
    {"mov.u32", Op::move},
    {"mov.u64", Op::move},
    {"cvt.u64.u32", Op::move},
    {"cvt.u32.u16", Op::move},
    {"cvt.u16.u32", Op::low_half},
    {"mul.wide.u32", Op::multiply},
    {"add.u32", Op::add32},
    {"add.u64", Op::add64},
    {"and.b32", Op::bit_and},
    {"or.b32", Op::bit_or},
    {"shl.b32", Op::left32},
    {"shl.b64", Op::left64},
    {"shr.u32", Op::right32},
    {"setp.ge.u64", Op::at_least},
    {"setp.gt.u32", Op::greater},
    {"selp.b32", Op::select},
    {"cvt.rn.f16.f32", Op::to_f16},
    {"cvt.f32.f16", Op::from_f16},
    {"ld.global.u16", Op::load16},
    {"ld.global.u32", Op::load32},
    {"ld.global.v4.u32", Op::load_four},
    {"st.global.u16", Op::store16},
    {"st.global.u32", Op::store32},
    {"st.global.v4.u32", Op::store_four},
    {"bra", Op::branch},
    {"ret", Op::end},
};
constexpr const char* kPlaces[] = {"%tid.x", "%ctaid.x", "%ntid.x", "%nctaid.x"};  // registers 1 to 4

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '%' || c == '.' || c == '$';
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n\r") - first + 1);
}

std::string without_comments(std::string_view text) {
  std::string rest;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comment = std::min(text.find("//", at), text.size());
    rest += text.substr(at, comment - at);
    at = std::min(text.find('\n', comment), text.size());
  }
  return rest;
}

// One kernel's body, in scopes of registers.
class Body {
 public:
  explicit Body(FakePtx::Kernel& kernel) : kernel_(kernel) {
    kernel_.registers = 1;
    scopes_.emplace_back();
    for (const char* const name : kPlaces)
      declare(name);
  }
  std::size_t declare(std::string_view name) {
    scopes_.back()[std::string(name)] = kernel_.registers;
    return kernel_.registers++;
  }
  // Up to the bracket that ends it. False: why() says what is not understood.
  bool take(std::string_view text) {
    std::size_t at = 0;
    for (std::size_t depth = 1; depth > 0;) {
      at = text.find_first_not_of(" \t\n\r", at);
      if (at == std::string_view::npos) return refuse("a body without an end");
      if (text[at] == '{') {
        ++depth, ++at;
        scopes_.emplace_back();
      } else if (text[at] == '}') {
        --depth, ++at;
        scopes_.pop_back();
      } else {
        const std::size_t end = text.find_first_of(":;", at);
        if (end == std::string_view::npos) return refuse(text.substr(at, 40));
        const std::string_view statement = trimmed(text.substr(at, end - at));
        if (text[end] == ':') {
          labels_[std::string(statement)] = kernel_.code.size();
        } else if (!take_statement(statement)) {
          return false;
        }
        at = end + 1;
      }
    }
    for (auto& [instruction, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) return refuse(label);
      kernel_.code[instruction].operands = {{0, found->second}};
    }
    return true;
  }
  const std::string& why() const { return why_; }

 private:
  bool refuse(std::string_view what) {
    why_ = what;
    return false;
  }
  bool take_statement(std::string_view statement) {
    if (statement.substr(0, 4) == ".reg") return take_registers(statement);
    FakePtx::Instruction made;
    if (statement.front() == '@') {
      const std::size_t end = statement.find(' ');
      const auto predicate = find(statement.substr(1, end - 1));
      if (!predicate) return refuse(statement);
      made.predicate = *predicate;
      statement = trimmed(statement.substr(end));
    }
    const std::size_t end = std::min(statement.find(' '), statement.size());
    const auto op = kOps.find(statement.substr(0, end));
    if (op == kOps.end()) return refuse(statement);
    made.op = op->second;
    if (made.op == Op::branch) {
      branches_.emplace_back(kernel_.code.size(), trimmed(statement.substr(end)));
    } else if (!take_operands(statement.substr(end), made)) {
      return refuse(statement);
    }
    kernel_.code.push_back(std::move(made));
    return true;
  }
  bool take_registers(std::string_view statement) {
    statement = trimmed(statement.substr(4));
    statement = statement.substr(std::min(statement.find(' '), statement.size()));  // behind the type
    while (!(statement = trimmed(statement)).empty()) {
      const std::size_t end = std::min(statement.find(','), statement.size());
      const std::string_view name = trimmed(statement.substr(0, end));
      const std::size_t many = name.find('<');
      if (many == std::string_view::npos) {
        declare(name);
      } else {
        const int count = std::atoi(std::string(name.substr(many + 1)).c_str());
        for (int i = 0; i < count; ++i)
          declare(std::string(name.substr(0, many)) + std::to_string(i));
      }
      statement.remove_prefix(std::min(end + 1, statement.size()));
    }
    return true;
  }
  // Which of them are addresses or vectors is the instruction's.
  bool take_operands(std::string_view text, FakePtx::Instruction& to) {
    for (std::size_t at = 0; at < text.size();) {
      if (!is_name(text[at])) {
        ++at;
        continue;
      }
      std::size_t end = at;
      while (end < text.size() && is_name(text[end]))
        ++end;
      const std::string name(text.substr(at, end - at));
      const bool is_offset = at > 0 && text[at - 1] == '+';
      at = end;
      if (std::isdigit(static_cast<unsigned char>(name.front())) != 0) {
        const std::uint64_t value = std::stoull(name, nullptr, 0);
        if (is_offset) {
          to.operands.back().value = value;
        } else {
          to.operands.push_back({0, value});
        }
        continue;
      }
      const auto place = find(name);
      if (!place) return false;
      to.operands.push_back({*place, 0});
    }
    return true;
  }
  std::optional<std::size_t> find(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(std::string(name));
      if (found != scope->end()) return found->second;
    }
    return std::nullopt;
  }

  FakePtx::Kernel& kernel_;
  std::vector<std::map<std::string, std::size_t>> scopes_;
  std::map<std::string, std::size_t> labels_;
  std::vector<std::pair<std::size_t, std::string>> branches_;
  std::string why_;
};

constexpr std::uint64_t kLow = 0xffffffff;

// A GPU's conversion forgets what a NaN was.
std::uint64_t to_f16(std::uint64_t bits) {
  const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  return std::isnan(value) ? 0x7fff
                           : reduce::oracle::encode(static_cast<double>(value), reduce::oracle::kF16);
}
std::uint64_t from_f16(std::uint64_t bits) {
  const auto value = static_cast<float>(reduce::oracle::decode(bits, reduce::oracle::kF16));
  return std::isnan(value) ? 0x7fffffff : std::bit_cast<std::uint32_t>(value);
}

// One thread of a kernel.
class Thread {
 public:
  Thread(const FakePtx::Kernel& kernel, const FakePtx::MayTouch& may_touch,
         std::vector<std::uint64_t>& registers)
      : kernel_(kernel), may_touch_(may_touch), registers_(registers) {}

  CudaCode run() {
    for (std::size_t next = 0; next < kernel_.code.size();) {
      const FakePtx::Instruction& now = kernel_.code[next++];
      if (now.predicate != 0 && registers_[now.predicate] == 0) continue;
      if (now.op == Op::end) break;
      if (now.op == Op::branch) {
        next = now.operands[0].value;
      } else if (now.op >= Op::load16) {
        if (const CudaCode code = touch(now); code != CudaCode::success) return code;
      } else {
        registers_[now.operands[0].place] = compute(now);
      }
    }
    return CudaCode::success;
  }

 private:
  std::uint64_t get(const Operand& operand) const { return registers_[operand.place] + operand.value; }
  std::uint64_t compute(const FakePtx::Instruction& now) const {
    const auto in = [&](std::size_t i) { return get(now.operands[i]); };
    switch (now.op) {
      case Op::move: return in(1);
      case Op::low_half: return in(1) & 0xffff;
      case Op::multiply: return in(1) * in(2);
      case Op::add32: return (in(1) + in(2)) & kLow;
      case Op::add64: return in(1) + in(2);
      case Op::bit_and: return in(1) & in(2);
      case Op::bit_or: return in(1) | in(2);
      case Op::left32: return (in(1) << in(2)) & kLow;
      case Op::left64: return in(1) << in(2);
      case Op::right32: return in(1) >> in(2);
      case Op::at_least: return in(1) >= in(2) ? 1 : 0;
      case Op::greater: return in(1) > in(2) ? 1 : 0;
      case Op::select: return in(3) != 0 ? in(1) : in(2);
      case Op::to_f16: return to_f16(in(1));
      case Op::from_f16: return from_f16(in(1));
      default: return 0;
    }
  }
  CudaCode touch(const FakePtx::Instruction& now) {
    const bool is_four = now.op == Op::load_four || now.op == Op::store_four;
    const bool is_load = now.op == Op::load16 || now.op == Op::load32 || now.op == Op::load_four;
    const std::size_t count = is_four ? 4 : 1;
    const std::size_t width = now.op == Op::load16 || now.op == Op::store16 ? 2 : 4;
    const std::uint64_t address = get(now.operands[is_load ? count : 0]);
    auto* const memory = reinterpret_cast<std::byte*>(address);
    if (address % (width * count) != 0) return CudaCode::misaligned_address;
    if (!may_touch_(memory, width * count)) return CudaCode::illegal_address;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t& value = registers_[now.operands[is_load ? i : i + 1].place];
      if (is_load) value = 0;
      if (is_load) {
        std::memcpy(&value, memory + i * width, width);
      } else {
        std::memcpy(memory + i * width, &value, width);
      }
    }
    return CudaCode::success;
  }

  const FakePtx::Kernel& kernel_;
  const FakePtx::MayTouch& may_touch_;
  std::vector<std::uint64_t>& registers_;
};

}  // namespace

std::shared_ptr<const FakePtx> FakePtx::parse(std::string_view source, std::string& why) {
  constexpr std::string_view kEntry = ".visible .entry ";
  const std::string text = without_comments(source);
  const std::string_view all = text;
  auto made = std::make_shared<FakePtx>();
  for (std::size_t at = all.find(kEntry); at != std::string_view::npos; at = all.find(kEntry, at)) {
    at += kEntry.size();
    const std::size_t open = all.find('(', at);
    const std::size_t close = all.find(')', at);
    const std::size_t body_at = all.find('{', at);
    if (body_at == std::string_view::npos || !(open < close && close < body_at)) {
      why = "an entry without a body";
      return nullptr;
    }
    Kernel& kernel = made->kernels_[std::string(trimmed(all.substr(at, open - at)))];
    Body body(kernel);
    std::string_view parameters = all.substr(open + 1, close - open - 1);
    while (!parameters.empty()) {
      const std::size_t end = std::min(parameters.find(','), parameters.size());
      const std::string_view parameter = trimmed(parameters.substr(0, end));
      if (parameter.substr(0, 12) != ".param .u64 ") {
        why = parameter;
        return nullptr;
      }
      kernel.parameters.push_back(body.declare(trimmed(parameter.substr(12))));
      parameters.remove_prefix(std::min(end + 1, parameters.size()));
    }
    if (!body.take(all.substr(body_at + 1))) {
      why = body.why();
      return nullptr;
    }
  }
  if (made->kernels_.empty()) {
    why = "no entry";
    return nullptr;
  }
  return made;
}

CudaCode FakePtx::run(const std::string& name, const CudaGrid& grid,
                      const std::vector<std::uint64_t>& arguments, const MayTouch& may_touch) const {
  const Kernel& kernel = kernels_.at(name);
  for (std::uint32_t block = 0; block < grid.blocks_x; ++block) {
    for (std::uint32_t thread = 0; thread < grid.threads_x; ++thread) {
      std::vector<std::uint64_t> registers(kernel.registers);
      registers[1] = thread;
      registers[2] = block;
      registers[3] = grid.threads_x;
      registers[4] = grid.blocks_x;
      for (std::size_t i = 0; i < arguments.size(); ++i)
        registers[kernel.parameters[i]] = arguments[i];
      const CudaCode code = Thread(kernel, may_touch, registers).run();
      if (code != CudaCode::success) return code;
    }
  }
  return CudaCode::success;
}

}  // namespace bps
