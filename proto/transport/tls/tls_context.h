// What every TLS connection of a program shares: its certificate and key, and the authority (CA) that must
// have signed the certificate of whoever it talks to. TLS 1.3 only, a certificate on both sides, no tickets
// and no resumption: each connection proves itself anew. Names in certificates are not looked at
// (PROTOCOL.md, section 5): that a certificate comes from the cluster's authority is what counts.
//
// We are a guest in the processes of others: OpenSSL is linked in and hidden, reads no configuration file for
// us, leaves nothing to be done at exit() and never asks anybody for a passphrase.
//
// Immutable and shared; any thread. Failure: load() checks everything that can be wrong with the three files
// when the program starts, and names the file.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "proto/base/result.h"

struct bio_method_st;
struct ssl_ctx_st;

namespace bps {

// The settings tls-cert, tls-key and tls-ca: PEM files.
struct TlsFiles {
  std::string certificate;  // this side's, then the certificates between it and the authority, if any
  std::string key;          // of the certificate; nobody but its owner may have any right to it
  std::string authority;    // one certificate or more
  // How errors call the settings: --tls-cert, or BPS_TLS_CERT where there are no flags.
  bool are_variables = false;

  bool any() const { return !certificate.empty() || !key.empty() || !authority.empty(); }
};

class TlsContext {
  struct Private {
    explicit Private() = default;
  };

 public:
  struct Pem {
    std::string_view certificate, key, authority;
  };

  // All three files. Errors: `configuration`, also where a file is missing, where the key is not that of the
  // certificate, and where the others would refuse the certificate (it has expired, another authority signed
  // it).
  static Result<std::shared_ptr<const TlsContext>> load(const TlsFiles& files);

  // From memory, and without asking whether the others would accept the certificate. For tests, which want
  // to be refused.
  static Result<std::shared_ptr<const TlsContext>> from_pem(const Pem& pem);

  explicit TlsContext(Private);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // For TlsSession.
  ssl_ctx_st* get() const { return context_; }
  const bio_method_st* socket_method() const { return socket_method_; }
  // "--tls-cert", or "BPS_TLS_CERT": what this program calls a setting.
  std::string shown(std::string_view setting) const;

 private:
  static Result<std::shared_ptr<const TlsContext>> make(const Pem& pem, const TlsFiles& names);

  ssl_ctx_st* context_ = nullptr;
  bio_method_st* socket_method_ = nullptr;
  bool are_variables_ = false;
};

using SharedTls = std::shared_ptr<const TlsContext>;

// Null if no file is given; an error if some are and some are not.
Result<SharedTls> load_tls(const TlsFiles& files);

}  // namespace bps
