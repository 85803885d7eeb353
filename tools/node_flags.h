// What the commands that run a node share.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "command.h"
#include "net/tls.h"

namespace lynx {

struct NodeFlags {
  std::string congestion_control = "cubic";
  int codec_threads = 1;
  TlsOptions tls;
  bool check_config = false;

  void AddTo(CLI::App* app);
  // PrefillOptions or DecodeOptions.
  template <typename Options>
  void Set(Options* options) const {
    options->tcp.congestion_control = congestion_control;
    options->codec_threads = codec_threads;
    options->tls = tls;
  }
};

// --keep, of prefill nodes.
void AddKeep(CLI::App* app, int* kept);

// The end of --check-config, once all else has been read: the certificates, and whether the model's file is there. Says
// that all is fine, if it is.
Status EndCheck(const std::string& command, const EngineFlags& engine, const NodeFlags& node);

}  // namespace lynx
