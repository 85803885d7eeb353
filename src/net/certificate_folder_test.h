// Certificates of a CA of their own in a temporary folder.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "net/certificates.h"
#include "net/tls.h"

namespace lynx {

class CertificateFolder {
 public:
  CertificateFolder() : authority_(MakeAuthority(ValidForDays(1))) {
    static int count = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("lynx-tls-" + std::to_string(getpid()) + "-" + std::to_string(++count));
    std::filesystem::create_directories(folder_);
    Write("ca.pem", authority_.certificate);
  }
  ~CertificateFolder() { std::filesystem::remove_all(folder_); }
  CertificateFolder(const CertificateFolder&) = delete;
  CertificateFolder& operator=(const CertificateFolder&) = delete;

  // Files with a new certificate; written under the name `file` (`name` if empty).
  TlsOptions Make(const std::string& name, std::vector<std::string> allow = {}, Validity validity = ValidForDays(1),
                  const std::string& file = "") {
    const std::string stem = file.empty() ? name : file;
    const KeyAndCertificate pair = MakeCertificate(authority_, name, validity).value();
    Write(stem + ".pem", pair.certificate);
    Write(stem + ".key", pair.key);
    return {Path(stem + ".pem"), Path(stem + ".key"), Path("ca.pem"), std::move(allow), false};
  }
  std::string Path(const std::string& file) const { return (folder_ / file).string(); }
  void Write(const std::string& file, const std::string& text) const {
    std::ofstream(Path(file), std::ios::binary) << text;
  }

 private:
  const KeyAndCertificate authority_;
  std::filesystem::path folder_;
};

}  // namespace lynx
