// The three files, and every way in which they can be wrong when a program starts.
#include "proto/transport/tls/tls_context.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "proto/transport/tls/certificate_harness.h"

namespace bps {
namespace {

using Catch::Contains;
using testing::CertificateAuthority;

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "bps-tls-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& name, const std::string& content, mode_t mode = 0600) const {
    const std::string path = path_ / name;
    std::ofstream(path, std::ios::binary) << content;
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return path;
  }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct Files : Folder {
  const CertificateAuthority authority;
  const CertificateAuthority::Issued issued = authority.issue({"gpu-03"});
  TlsFiles good{file("cert.pem", issued.certificate, 0644), file("key.pem", issued.key),
                file("ca.pem", authority.pem(), 0644)};

  // The error, which must be about the settings and name `path`.
  static Error refusal(const TlsFiles& files, const std::string& path) {
    const auto tls = load_tls(files);
    REQUIRE_FALSE(tls.ok());
    CHECK(tls.error().code == ErrorCode::configuration);
    CHECK_THAT(tls.error().message, Contains(path));
    CHECK_FALSE(tls.error().advice.empty());
    return tls.error();
  }
};

}  // namespace

TEST_CASE("tls files: all three or none") {
  const Files files;
  const auto loaded = load_tls(files.good);
  REQUIRE(loaded.ok());
  CHECK(*loaded != nullptr);
  const auto none = load_tls({});
  REQUIRE(none.ok());
  CHECK(*none == nullptr);
  TlsFiles some = files.good;
  some.certificate.clear();
  CHECK_THAT(files.refusal(some, "").message, Contains("without --tls-cert"));
  some = files.good;
  some.key.clear();
  CHECK_THAT(files.refusal(some, "").message, Contains("without --tls-key"));
  some = {"", "", ""};
  some.key = files.good.key;
  CHECK_THAT(files.refusal(some, "").advice, Contains("--tls-ca"));
  some.are_variables = true;
  CHECK_THAT(files.refusal(some, "").advice, Contains("BPS_TLS_CA") && !Contains("--"));
}

TEST_CASE("tls files: what cannot be read is named") {
  const Files files;
  for (std::string TlsFiles::*const member : {&TlsFiles::certificate, &TlsFiles::key, &TlsFiles::authority}) {
    TlsFiles wrong = files.good;
    wrong.*member = files.path() + "/none";
    CHECK_THAT(files.refusal(wrong, wrong.*member).message, Contains("No such file"));
    wrong.*member = files.path();
    CHECK_THAT(files.refusal(wrong, wrong.*member).message, Contains("directory", Catch::CaseSensitive::No));
    wrong.*member = files.file("empty", "");
    files.refusal(wrong, wrong.*member);
    wrong.*member = files.file("text", "-----BEGIN nothing\n");
    files.refusal(wrong, wrong.*member);
    wrong.*member = files.file("cut", files.issued.certificate.substr(0, 200));
    files.refusal(wrong, wrong.*member);
  }
}

TEST_CASE("tls files: files that were mixed up") {
  const Files files;
  TlsFiles wrong = files.good;
  wrong.certificate = files.good.key;
  CHECK_THAT(files.refusal(wrong, wrong.certificate).message, Contains("holds no certificate"));
  wrong = files.good;
  wrong.key = files.file("swapped", files.issued.certificate);
  CHECK_THAT(files.refusal(wrong, wrong.key).message, Contains("holds no private key"));
  wrong = files.good;
  wrong.key = files.file("other.pem", files.authority.issue().key);
  CHECK_THAT(files.refusal(wrong, wrong.key).message,
             Contains("is not the key of the certificate in " + files.good.certificate));
  wrong = files.good;
  wrong.authority = files.good.certificate;
  CHECK_THAT(files.refusal(wrong, wrong.certificate).message, Contains("would be refused by the others"));
}

TEST_CASE("tls files: a key that others can read is refused") {
  const Files files;
  for (const mode_t mode : {0640, 0604, 0620}) {
    TlsFiles open = files.good;
    open.key = files.file("open.pem", files.issued.key, mode);
    CHECK_THAT(files.refusal(open, open.key).message, Contains("is open to others"));
  }
}

TEST_CASE("tls files: nobody is asked for a passphrase") {
  const Files files;
  BIO* const plain = BIO_new_mem_buf(files.issued.key.data(), static_cast<int>(files.issued.key.size()));
  EVP_PKEY* const key = PEM_read_bio_PrivateKey(plain, nullptr, nullptr, nullptr);
  BIO_free(plain);
  BIO* const bio = BIO_new(BIO_s_mem());
  REQUIRE(PEM_write_bio_PrivateKey(bio, key, EVP_aes_128_cbc(),
                                   reinterpret_cast<const unsigned char*>("word"), 4, nullptr, nullptr) == 1);
  EVP_PKEY_free(key);
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(bio, &bytes);
  TlsFiles locked = files.good;
  locked.key = files.file("locked.pem", std::string(bytes, static_cast<std::size_t>(count)));
  BIO_free(bio);
  CHECK_THAT(files.refusal(locked, locked.key).message, Contains("passphrase"));
}

TEST_CASE("tls files: what the others would refuse is refused at the start") {
  const Files files;
  const auto refusal = [&](const CertificateAuthority::Issued& issued) {
    TlsFiles wrong{files.file("c.pem", issued.certificate), files.file("k.pem", issued.key),
                   files.good.authority};
    return files.refusal(wrong, wrong.certificate).message;
  };
  CHECK_THAT(refusal(files.authority.issue({"late", -7200, -3600})), Contains("it has expired"));
  CHECK_THAT(refusal(files.authority.issue({"early", 3600, 7200})), Contains("not valid yet"));
  CHECK_THAT(refusal(CertificateAuthority("another").issue()),
             Contains("it is not signed by the authority of --tls-ca"));
}

TEST_CASE("tls files: more than one authority, and text around the certificates") {
  const Files files;
  const CertificateAuthority next("the next one");
  TlsFiles both = files.good;
  both.authority = files.file(
      "both.pem", "# old\n" + files.authority.pem() + "# new\n" + next.pem() + files.authority.pem());
  CHECK(load_tls(both).ok());
  const auto issued = next.issue();
  both.certificate = files.file("c.pem", issued.certificate);
  both.key = files.file("k.pem", issued.key);
  CHECK(load_tls(both).ok());
}

}  // namespace bps
