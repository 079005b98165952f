// What OpenSSL says, in words for those who have made the certificates. Stateless.
#pragma once

#include <string>

namespace bps {

// Why a certificate is not accepted (X509_V_ERR_...). `authority`: what this program calls the setting.
std::string describe_refusal(int verification_error, const std::string& authority);

// Why the other side ends the connection, as its alert says.
std::string describe_alert(int alert);

// The first error that waits on this thread; takes all of them away. Empty if there is none.
std::string take_tls_error();

}  // namespace bps
