#include "proto/daemon/access.h"

#include "proto/auth/key_file.h"

namespace bps {

void add_access(Config& config, AccessSettings& settings, const char* key_help,
                const char* certificate_help) {
  config.add("key-file", settings.key_file, key_help).unit("FILE");
  config.add("tls-cert", settings.tls.certificate, certificate_help).unit("FILE");
  config.add("tls-key", settings.tls.key, "The key of --tls-cert").unit("FILE");
  config.add("tls-ca", settings.tls.authority, "Who must have signed the certificates of the others")
      .unit("FILE");
}

Result<SharedKey> read_key(const AccessSettings& settings) {
  return settings.key_file.empty() ? SharedKey() : read_cluster_key(settings.key_file);
}

Result<Access> read_access(const AccessSettings& settings) {
  auto key = read_key(settings);
  if (!key) return key.error();
  auto tls = load_tls(settings.tls);
  if (!tls) return tls.error();
  return Access{std::move(key).value(), std::move(tls).value()};
}

}  // namespace bps
