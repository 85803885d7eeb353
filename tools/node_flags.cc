#include "node_flags.h"

#include <cstdio>
#include <fstream>

#include "base/status_macros.h"
#include "serve/codec_threads.h"

namespace lynx {

void NodeFlags::AddTo(CLI::App* app) {
  app->add_flag("--check-config", check_config, "check all options and the files that they name, then end");
  AddNumber(app, "--codec-threads", codec_threads, "threads that encode or decode pages, beside those of the model", 1,
            kMaxCodecThreads);
  app->add_option("--congestion-control", congestion_control,
                  "TCP congestion control; \"system\" leaves the kernel's default")
      ->capture_default_str()
      ->type_name("NAME");
  auto* cert =
      app->add_option("--tls-cert", tls.cert_file, "this node's certificate; `lynx certs` makes it and the next")
          ->type_name("FILE");
  auto* key = app->add_option("--tls-key", tls.key_file, "its key")->type_name("FILE")->needs(cert);
  auto* ca = app->add_option("--tls-ca", tls.ca_file, "the CA of the other nodes' certificates")->type_name("FILE");
  cert->needs(key)->needs(ca);
  ca->needs(cert);
  app->add_option("--tls-allow", tls.allow,
                  "a name that the other node's certificate may have, or *.SUFFIX; may be given several times")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->needs(cert);
  app->add_flag("--plaintext", tls.plaintext, "no TLS although not on loopback: only on a network that you trust")
      ->excludes(cert);
}

void AddKeep(CLI::App* app, int* kept) {
  AddNumber(app, "--keep", *kept, "caches of recent prompts to keep, so that they need not be read again", 0, 64);
}

Status EndCheck(const std::string& command, const EngineFlags& engine, const NodeFlags& node) {
  if (node.tls.enabled()) LYNX_RETURN_IF_ERROR(TlsContext::Load(node.tls).status());
  if (!engine.IsToy() && !std::ifstream(engine.model)) return IoError("can't read the model " + engine.model);
  std::printf("the configuration of lynx %s is fine\n", command.c_str());
  return Ok();
}

}  // namespace lynx
