// bps_options, as programs of any version fill it, to what the client understands.
#pragma once

#include <optional>
#include <string_view>

#include "client/include/bps/bps.h"
#include "client/src/runtime/settings.h"
#include "proto/base/log/log.h"
#include "proto/base/result.h"

namespace bps {

struct OpenOptions {
  GivenSettings given;
  bps_log_function log = nullptr;
  void* log_user = nullptr;
};

// All fields as bps_options_init leaves them, of this version's size.
bps_options unset_options();

// Keeps the setting in options.settings. Errors: of check_setting; `invalid_argument` if there is no room.
Status set_option(bps_options& options, std::string_view name, std::string_view value);

// Null: nothing is given. Fields that the program's header did not have yet are not set.
Result<OpenOptions> read_options(const bps_options* options);

// To the program's log function, else warnings and errors to stderr; `level` if given decides what.
Logger make_logger(const OpenOptions& options, std::optional<LogLevel> level);

}  // namespace bps
