#include "proto/transport/tls/tls_context.h"

#include <fmt/core.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "proto/base/assert.h"
#include "proto/base/config/config.h"
#include "proto/base/config/secret_file.h"
#include "proto/transport/tls/tls_errors.h"
#include "proto/transport/tls/tls_session.h"

namespace bps {
namespace {

constexpr std::size_t kMaxFileBytes = 1024 * 1024;
constexpr const char* kMakeThem = "deploy/operations.md, \"Security\", shows how to make certificates";

template <auto kFree>
struct Free {
  template <class T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Free<X509_STORE_CTX_free>>;

void prepare_openssl() {
  static const int prepared = OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr);
  BPS_ASSERT(prepared == 1);
}

std::string shown_setting(std::string_view setting, bool is_variable) {
  return is_variable ? variable_of(setting) : fmt::format("--{}", setting);
}

// `setting`: as it is shown.
Error bad_file(const std::string& setting, const std::string& path, std::string_view what,
               std::string advice = kMakeThem) {
  ERR_clear_error();
  return make_error(ErrorCode::configuration, fmt::format("{} {} {}", setting, path, what),
                    std::move(advice));
}

Bio memory_of(std::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Where OpenSSL would ask the terminal.
int no_passphrase(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

Result<PrivateKey> parse_key(std::string_view pem, const std::string& setting, const std::string& path) {
  bool asked = false;
  PrivateKey key(PEM_read_bio_PrivateKey(memory_of(pem).get(), nullptr, no_passphrase, &asked));
  if (key != nullptr) return key;
  if (asked) {
    return bad_file(setting, path, "is encrypted with a passphrase, and there is nobody to ask for it",
                    "openssl pkey -in FILE -out PLAIN; chmod 600 PLAIN");
  }
  return bad_file(setting, path, "holds no private key in PEM form");
}

Result<std::vector<Certificate>> parse_certificates(std::string_view pem, const std::string& setting,
                                                    const std::string& path) {
  std::vector<Certificate> found;
  const Bio bio = memory_of(pem);
  bool asked = false;
  while (X509* const next = PEM_read_bio_X509(bio.get(), nullptr, no_passphrase, &asked))
    found.emplace_back(next);
  const auto last = ERR_peek_last_error();
  // The end of the file, also where text stands behind the last certificate.
  const bool whole = ERR_GET_LIB(last) == ERR_LIB_PEM && ERR_GET_REASON(last) == PEM_R_NO_START_LINE;
  if (found.empty()) return bad_file(setting, path, "holds no certificate in PEM form");
  if (!whole) return bad_file(setting, path, fmt::format("is damaged behind certificate {}", found.size()));
  ERR_clear_error();
  return found;
}

// What is public.
Result<std::string> read_file(const std::string& setting, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string content;
  if (file) {
    content.resize(kMaxFileBytes + 1);
    file.read(content.data(), static_cast<std::streamsize>(content.size()));
    content.resize(static_cast<std::size_t>(file.gcount()));
  }
  if (!file.is_open() || file.bad() || (content.empty() && !file.eof())) {
    return bad_file(setting, path, std::string("cannot be read: ") + std::strerror(errno));
  }
  if (content.size() > kMaxFileBytes)
    return bad_file(setting, path, "is too long to be a list of certificates");
  return content;
}

// As the others will, when they are given the certificate.
Status check_acceptance(SSL_CTX* context, const TlsFiles& names) {
  const StoreContext verification(X509_STORE_CTX_new());
  STACK_OF(X509)* chain = nullptr;
  SSL_CTX_get0_chain_certs(context, &chain);
  if (X509_STORE_CTX_init(verification.get(), SSL_CTX_get_cert_store(context),
                          SSL_CTX_get0_certificate(context), chain) != 1) {
    return make_error(ErrorCode::internal, "TLS: " + take_tls_error());
  }
  if (X509_verify_cert(verification.get()) == 1) return {};
  const int why = X509_STORE_CTX_get_error(verification.get());
  return bad_file(shown_setting("tls-cert", names.are_variables), names.certificate,
                  fmt::format("would be refused by the others: {}",
                              describe_refusal(why, shown_setting("tls-ca", names.are_variables))),
                  fmt::format("give a certificate that the authority in {} has signed", names.authority));
}

}  // namespace

TlsContext::TlsContext(Private) {
  prepare_openssl();
  context_ = SSL_CTX_new(TLS_method());
  BPS_ASSERT(context_ != nullptr);
  SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(context_, TLS1_3_VERSION);
  // The first one that both have: AES with a key of 128 bits costs least where the processor knows AES.
  SSL_CTX_set_ciphersuites(context_,
                           "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, TlsSession::on_certificate);
  SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context_, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_num_tickets(context_, 0);
  // A record leaves as soon as the socket has room, and a call that is repeated may find its bytes elsewhere.
  SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Several records in one system call.
  SSL_CTX_set_read_ahead(context_, 1);
  SSL_CTX_set_default_read_buffer_len(context_, TlsSession::kReadBufferBytes);
  socket_method_ = TlsSession::make_socket_method();
  BPS_ASSERT(socket_method_ != nullptr);
}

TlsContext::~TlsContext() {
  SSL_CTX_free(context_);
  BIO_meth_free(socket_method_);
}

Result<SharedTls> TlsContext::make(const Pem& pem, const TlsFiles& names) {
  auto made = std::make_shared<TlsContext>(Private());
  made->are_variables_ = names.are_variables;
  const std::string certificate_setting = made->shown("tls-cert"), key_setting = made->shown("tls-key");
  SSL_CTX* const context = made->context_;
  auto certificates = parse_certificates(pem.certificate, certificate_setting, names.certificate);
  if (!certificates) return certificates.error();
  auto authorities = parse_certificates(pem.authority, made->shown("tls-ca"), names.authority);
  if (!authorities) return authorities.error();
  auto key = parse_key(pem.key, key_setting, names.key);
  if (!key) return key.error();
  if (SSL_CTX_use_certificate(context, certificates->front().get()) != 1) {
    return bad_file(certificate_setting, names.certificate, "cannot be used: " + take_tls_error());
  }
  for (auto entry = certificates->begin() + 1; entry != certificates->end(); ++entry)
    SSL_CTX_add1_chain_cert(context, entry->get());
  if (X509_check_private_key(certificates->front().get(), key->get()) != 1) {
    return bad_file(key_setting, names.key, "is not the key of the certificate in " + names.certificate,
                    "give the two files that were made together");
  }
  if (SSL_CTX_use_PrivateKey(context, key->get()) != 1) {
    return bad_file(key_setting, names.key, "cannot be used: " + take_tls_error());
  }
  for (const Certificate& authority : *authorities)
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get());
  ERR_clear_error();  // the same authority twice is no error
  return SharedTls(std::move(made));
}

std::string TlsContext::shown(std::string_view setting) const {
  return shown_setting(setting, are_variables_);
}

Result<SharedTls> TlsContext::from_pem(const Pem& pem) {
  return make(pem, {"(certificate)", "(key)", "(authority)", false});
}

Result<SharedTls> TlsContext::load(const TlsFiles& files) {
  const auto shown = [&files](std::string_view setting) {
    return shown_setting(setting, files.are_variables);
  };
  const auto certificate = read_file(shown("tls-cert"), files.certificate);
  if (!certificate) return certificate.error();
  const auto authority = read_file(shown("tls-ca"), files.authority);
  if (!authority) return authority.error();
  const auto key = read_secret_file(files.key, shown("tls-key"), kMaxFileBytes, kMakeThem);
  if (!key) return make_error(ErrorCode::configuration, key.error().message, key.error().advice);
  auto made = make({*certificate, key->text(), *authority}, files);
  if (!made) return made;
  if (Status status = check_acceptance((*made)->get(), files); !status) return status.error();
  return made;
}

Result<SharedTls> load_tls(const TlsFiles& files) {
  if (!files.any()) return SharedTls();
  const auto shown = [&files](std::string_view setting) {
    return shown_setting(setting, files.are_variables);
  };
  for (const auto& [setting, path] :
       {std::pair{"tls-cert", &files.certificate}, std::pair{"tls-key", &files.key},
        std::pair{"tls-ca", &files.authority}}) {
    if (path->empty()) {
      return make_error(ErrorCode::configuration, fmt::format("TLS is asked for without {}", shown(setting)),
                        fmt::format("give {}, {} and {}, or none of them", shown("tls-cert"),
                                    shown("tls-key"), shown("tls-ca")));
    }
  }
  return TlsContext::load(files);
}

}  // namespace bps
