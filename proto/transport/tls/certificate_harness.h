// Certificates for tests, made while they run: nothing to keep, nothing that expires in a drawer.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "proto/transport/tls/tls_context.h"

namespace bps::testing {

class CertificateAuthority {
 public:
  struct Issued {
    std::string certificate, key;  // PEM
  };
  struct Wish {
    std::string name = "peer";
    long from_seconds = -60;  // from now
    long until_seconds = 3600;
    const char* extended_key_usage = nullptr;
  };

  explicit CertificateAuthority(const std::string& name = "test authority")
      : name_(name), key_(EVP_EC_gen("P-256")), certificate_(sign({name}, key_.get(), true)) {}

  std::string pem() const { return text_of(certificate_.get()); }

  Issued issue(const Wish& wish) const {
    const PrivateKey key(EVP_EC_gen("P-256"));
    return {text_of(sign(wish, key.get(), false).get()), text_of(key.get())};
  }
  Issued issue() const { return issue(Wish()); }

  // For who trusts this authority and shows a certificate of `from`.
  SharedTls context(const Issued& shown) const {
    const std::string authority = pem();
    auto made = TlsContext::from_pem({shown.certificate, shown.key, authority});
    REQUIRE(made.ok());
    return *made;
  }
  SharedTls context() const { return context(issue()); }

 private:
  struct FreeKey {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  };
  struct FreeCertificate {
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using PrivateKey = std::unique_ptr<EVP_PKEY, FreeKey>;
  using Certificate = std::unique_ptr<X509, FreeCertificate>;

  static void extend(X509* certificate, int what, const char* value) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, what, value);
    REQUIRE(extension != nullptr);
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }

  static X509_NAME* named(const std::string& name) {
    X509_NAME* const made = X509_NAME_new();
    X509_NAME_add_entry_by_txt(made, "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    return made;
  }

  Certificate sign(const Wish& wish, EVP_PKEY* key, bool authority) const {
    Certificate made(X509_new());
    X509_set_version(made.get(), X509_VERSION_3);
    static long serial = 0;
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), wish.from_seconds);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), wish.until_seconds);
    X509_set_pubkey(made.get(), key);
    X509_NAME* const subject = named(wish.name);
    X509_NAME* const issuer = named(name_);
    X509_set_subject_name(made.get(), subject);
    X509_set_issuer_name(made.get(), issuer);
    X509_NAME_free(subject);
    X509_NAME_free(issuer);
    extend(made.get(), NID_basic_constraints, authority ? "critical,CA:TRUE" : "critical,CA:FALSE");
    if (wish.extended_key_usage != nullptr) extend(made.get(), NID_ext_key_usage, wish.extended_key_usage);
    REQUIRE(X509_sign(made.get(), key_.get(), EVP_sha256()) > 0);
    return made;
  }

  template <class Write>
  static std::string written(Write write) {
    BIO* const bio = BIO_new(BIO_s_mem());
    REQUIRE(write(bio) == 1);
    char* bytes = nullptr;
    const long count = BIO_get_mem_data(bio, &bytes);
    std::string text(bytes, static_cast<std::size_t>(count));
    BIO_free(bio);
    return text;
  }
  static std::string text_of(X509* certificate) {
    return written([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
  }
  static std::string text_of(EVP_PKEY* key) {
    return written(
        [&](BIO* bio) { return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr); });
  }

  const std::string name_;
  const PrivateKey key_;
  const Certificate certificate_;
};

}  // namespace bps::testing
