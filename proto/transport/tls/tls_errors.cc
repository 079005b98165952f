#include "proto/transport/tls/tls_errors.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

namespace bps {

std::string describe_refusal(int verification_error, const std::string& authority) {
  switch (verification_error) {
    case X509_V_ERR_CERT_HAS_EXPIRED: return "it has expired";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "it is not valid yet (does the clock of this machine go right?)";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE: return "it is not signed by the authority of " + authority;
    case X509_V_ERR_INVALID_CA: return "an authority in its chain may not sign certificates";
    case X509_V_ERR_INVALID_PURPOSE:
      return "its extended key usage does not allow this side of a connection (it must allow both, or be "
             "left out)";
    default: return X509_verify_cert_error_string(verification_error);
  }
}

std::string describe_alert(int alert) {
  switch (alert) {
    case SSL_AD_UNKNOWN_CA: return "another authority than its tls-ca has signed it";
    case SSL_AD_DECRYPT_ERROR: return "its signature is not that of the authority in its tls-ca";
    case SSL_AD_CERTIFICATE_EXPIRED: return "it has expired";
    case SSL_AD_CERTIFICATE_REVOKED: return "it is revoked";
    case TLS13_AD_CERTIFICATE_REQUIRED: return "there is none";
    case SSL_AD_BAD_CERTIFICATE: return "it is not valid";
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
      return "it is not for this use; perhaps its extended key usage does not allow both sides of a "
             "connection";
    default: return SSL_alert_desc_string_long(alert);
  }
}

std::string take_tls_error() {
  const unsigned long first = ERR_get_error();
  ERR_clear_error();
  if (first == 0) return {};
  if (const char* const reason = ERR_reason_error_string(first)) return reason;
  return "error " + std::to_string(first);
}

}  // namespace bps
