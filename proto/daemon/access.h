// What a program needs to prove who it is to the others of its cluster: the same flags in all of them.
#pragma once

#include <string>

#include "proto/auth/key.h"
#include "proto/base/config/config.h"
#include "proto/base/result.h"
#include "proto/transport/tls/tls_context.h"

namespace bps {

struct AccessSettings {
  std::string key_file;
  TlsFiles tls;
};

// --key-file, --tls-cert, --tls-key and --tls-ca. The texts differ: what the key is for, and where TLS is
// used.
void add_access(Config& config, AccessSettings& settings, const char* key_help, const char* certificate_help);

struct Access {
  SharedKey key;  // null: none
  SharedTls tls;  // null: none
};

Result<SharedKey> read_key(const AccessSettings& settings);
Result<Access> read_access(const AccessSettings& settings);

}  // namespace bps
