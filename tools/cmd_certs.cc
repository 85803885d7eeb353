// lynx certs: certificates for TLS between nodes, without an authority of one's own.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "command.h"
#include "net/certificates.h"

namespace lynx {
namespace {

struct CertsFlags {
  std::string dir;
  std::vector<std::string> names = {"prefill", "decode"};
  int days = 90;
};

struct NewFile {
  std::string path;
  std::string text;
  mode_t mode = 0;
};

Status Write(const NewFile& file) {
  const int fd = open(file.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, file.mode);
  if (fd < 0) return IoError("can't write " + file.path + ": " + std::strerror(errno));
  const ssize_t written = write(fd, file.text.data(), file.text.size());
  if (written >= 0) errno = ENOSPC;  // if that is not all
  if (close(fd) == 0 && written == ssize_t(file.text.size())) return Ok();
  const Status status = IoError("can't write " + file.path + ": " + std::strerror(errno));
  unlink(file.path.c_str());
  return status;
}

// All or none: half of a CA would be in the way of the next try.
Status WriteAll(const std::vector<NewFile>& files) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    const Status status = Write(files[i]);
    if (status.ok()) continue;
    for (std::size_t j = 0; j < i; ++j) unlink(files[j].path.c_str());
    return status;
  }
  return Ok();
}

// "spiffe://cluster/prefill" as a file's name.
std::string FileName(std::string name) {
  for (char& c : name) {
    if (c == '/' || c == ':' || c == '%') c = '_';
  }
  return name;
}

void AddPair(const std::string& path, const KeyAndCertificate& pair, std::vector<NewFile>* files) {
  files->push_back({path + ".pem", pair.certificate, 0644});
  files->push_back({path + ".key", pair.key, 0600});
}

// All that is to be written; the folder's CA, or a new one.
Result<std::vector<NewFile>> MakeFiles(const CertsFlags& flags) {
  std::vector<NewFile> files;
  const std::string ca = flags.dir + "/ca";
  KeyAndCertificate authority;
  if (std::filesystem::exists(ca + ".pem")) {
    LYNX_ASSIGN_OR_RETURN(authority.certificate, ReadFile(ca + ".pem"));
    LYNX_ASSIGN_OR_RETURN(authority.key, ReadFile(ca + ".key"));
  } else {
    authority = MakeAuthority(ValidForDays(flags.days));
    AddPair(ca, authority, &files);
  }
  for (const std::string& name : flags.names) {
    if (FileName(name) == "ca") return Invalid("ca is the name of the CA's own files; choose another one");
    LYNX_ASSIGN_OR_RETURN(const KeyAndCertificate node, MakeCertificate(authority, name, ValidForDays(flags.days)));
    AddPair(flags.dir + "/" + FileName(name), node, &files);
  }
  for (const NewFile& file : files) {
    if (!std::filesystem::exists(file.path)) continue;
    return Invalid(file.path + " is there already; delete it or choose another --dir or --name");
  }
  return files;
}

Status RunCerts(const CertsFlags& flags) {
  std::error_code error;
  if (std::filesystem::create_directories(flags.dir, error)) {
    std::filesystem::permissions(flags.dir, std::filesystem::perms::owner_all, error);
  }
  if (error) return IoError("can't make the folder " + flags.dir + ": " + error.message());
  LYNX_ASSIGN_OR_RETURN(const std::vector<NewFile> files, MakeFiles(flags));
  LYNX_RETURN_IF_ERROR(WriteAll(files));
  for (const NewFile& file : files) std::printf("%s\n", file.path.c_str());
  std::printf("\nBring ca.pem and a node's own .pem and .key to its machine; ca.key stays here. Valid for %d days.\n",
              flags.days);
  for (const std::string& name : flags.names) {
    const std::string path = flags.dir + "/" + FileName(name);
    std::printf("%s: --tls-cert %s.pem --tls-key %s.key --tls-ca %s/ca.pem\n", name.c_str(), path.c_str(), path.c_str(),
                flags.dir.c_str());
  }
  std::printf("and --tls-allow with the other side's name; `lynx certs --help` shows whole commands.\n");
  return Ok();
}

}  // namespace

void AddCertsCommand(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<CertsFlags>();
  CLI::App* command = app->add_subcommand("certs", "make a throw-away CA and certificates for TLS between nodes");
  command->add_option("--dir", flags->dir, "where the files go; a CA that is there already is used again")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--name", flags->names,
                   "a node's name: of its own choice, its host name or address, or a URI; may be given several times")
      ->capture_default_str()
      ->type_name("NAME")
      ->allow_extra_args(false);
  AddNumber(command, "--days", flags->days, "how long they are valid", 1, 3650);
  command->footer(
      "Two machines that trust nothing but each other:\n"
      "  lynx certs --dir certs --name prefill --name decode\n"
      "  lynx prefill --model M.gguf --listen 0.0.0.0:7000 --tls-cert certs/prefill.pem --tls-key certs/prefill.key\n"
      "               --tls-ca certs/ca.pem --tls-allow decode\n"
      "  lynx generate --model M.gguf --prefill HOST:7000 --prompt \"Hello\" --tls-cert certs/decode.pem\n"
      "               --tls-key certs/decode.key --tls-ca certs/ca.pem --tls-allow prefill\n"
      "Each side checks the other's certificate: by the CA, valid today, with a name that --tls-allow gives. Without\n"
      "--tls-allow a prefill node takes every certificate of the CA, and a decode node one for the host it asked for.\n"
      "A node reads its files again when they change, so certificates are renewed by replacing them.\n"
      "Nothing is overwritten. Keys are for their owner only (0600). Certificates of any other CA work as well.");
  command->callback([flags, exit_code] { *exit_code = ExitCode("certs", RunCerts(*flags)); });
}

}  // namespace lynx
