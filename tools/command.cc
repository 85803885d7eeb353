#include "command.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <mutex>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "baselines/baselines.h"
#include "codec/lynx_profile.h"
#include "engine/toy/toy_engine.h"
#ifdef LYNX_HAVE_LLAMA
#include "engine/llama/llama_engine.h"
#endif

namespace lynx {
namespace {

// 16 bytes for each token of the largest --context.
constexpr std::size_t kMaxFileBytes = 64 << 20;

std::atomic<bool> stop_flag = false;

void OnSignal(int) {
  if (stop_flag.exchange(true)) _exit(kExitInterrupted);
}

Result<std::unique_ptr<Engine>> OpenToy(const EngineFlags& flags, int sequences) {
  ToyOptions options;
  options.max_tokens = flags.context;
  options.max_sequences = sequences;
  if (const auto colon = flags.model.find(':'); colon != std::string::npos) {
    const std::string seed = flags.model.substr(colon + 1);
    if (seed.empty() || seed.size() > 18 || seed.find_first_not_of("0123456789") != std::string::npos) {
      return Invalid("\"" + flags.model + "\": write toy or toy:SEED with a number");
    }
    options.seed = std::stoull(seed);
  }
  return MakeToyEngine(options);
}

#ifdef LYNX_HAVE_LLAMA
std::string CacheFolder() {
  if (const char* folder = std::getenv("LYNX_CACHE")) return folder;
  if (const char* folder = std::getenv("XDG_CACHE_HOME")) return std::string(folder) + "/lynx";
  const char* home = std::getenv("HOME");
  return std::string(home == nullptr ? "." : home) + "/.cache/lynx";
}
#endif

}  // namespace

const std::atomic<bool>& StopFlag() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_handler = OnSignal;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    return true;
  }();
  (void)installed;
  return stop_flag;
}

void OutliveLogReader() { signal(SIGPIPE, SIG_IGN); }

// A pipe is writable as long as PIPE_BUF bytes fit: more than a line.
void Say(std::string_view line) {
  constexpr std::size_t kMaxLine = 2000;
  static std::mutex mutex;
  static int lost = 0;
  const std::lock_guard lock(mutex);
  pollfd log{STDERR_FILENO, POLLOUT, 0};
  if (poll(&log, 1, 0) == 0) {
    ++lost;
    return;
  }
  const int before = std::exchange(lost, 0);
  if (before > 0) std::fprintf(stderr, "%d lines were lost: nobody took them\n", before);
  std::fprintf(stderr, "%s\n", OneLine(line.substr(0, kMaxLine)).c_str());
}

int Fail(const std::string& command, const Status& status) {
  std::fprintf(stderr, "lynx %s: %s\n", command.c_str(), OneLine(status.message()).c_str());
  return status.code() == ErrorCode::kInvalid ? kExitUsage : kExitFailed;
}

void EngineFlags::AddTo(CLI::App* app, const char* context_help) {
  app->add_option("--model", model,
                  "GGUF model file; both nodes need the same one (\"toy\" is a tiny built-in model for tests)")
      ->required()
      ->type_name("FILE");
  AddNumber(app, "--context", context, context_help, 8, 1 << 22);
  AddNumber(app, "--threads", threads, "threads of the model; more than there are idle cores makes it much slower", 1,
            1024);
  app->add_flag("--verbose", verbose, "show the model runtime's own log");
}

void EngineFlags::AddWeightsTo(CLI::App* app) {
  weights = "f16";
  app->add_option("--weights", weights, "f16: turn the weights into F16 first (kept in the cache folder); as-is")
      ->capture_default_str()
      ->check(CLI::IsMember({"f16", "as-is"}));
}

Result<std::unique_ptr<Engine>> OpenEngine(const EngineFlags& flags, EngineUse use, int sequences) {
  if (flags.IsToy()) return OpenToy(flags, sequences);
#ifdef LYNX_HAVE_LLAMA
  LlamaOptions options;
  options.model_path = flags.model;
  if (flags.weights == "f16") {
    std::fprintf(stderr, "weights as F16 (made once, a few seconds)\n");
    LYNX_ASSIGN_OR_RETURN(options.model_path, WithF16Weights(flags.model, CacheFolder() + "/models"));
  }
  options.max_tokens = flags.context;
  options.max_sequences = sequences;
  options.unified = use == EngineUse::kPrefill;
  options.threads = flags.threads;
  if (flags.verbose) options.log = [](std::string_view line) { std::cerr << line << '\n'; };
  const bool show = isatty(STDERR_FILENO) != 0;
  if (show) {
    options.progress = [](float share) { std::fprintf(stderr, "\rloading the model: %3.0f %%", double(share) * 100); };
  }
  auto engine = OpenLlamaEngine(options);
  if (show) std::fputs("\r\033[K", stderr);
  return engine;
#else
  (void)use;
  return Unsupported("this build has no llama.cpp engine; configure with LYNX_LLAMA=ON, or use --model toy");
#endif
}

void AnswerFlags::AddTo(CLI::App* app) {
  AddNumber(app, "--max-tokens", max_tokens, "tokens of the answer at most", 1, 1 << 22);
  AddNumber(app, "--max-drafts", max_drafts, "drafts at most; 0 never drafts", 0, 1024);
  app->add_option("--stop", stop, "end the answer before this text; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  AddNumber(app, "--temperature", sampling.temperature, "0 is greedy", 0, 100);
  AddNumber(app, "--top-k", sampling.top_k, "keep the k likeliest tokens; 0: all", 0, 1 << 30);
  AddNumber(app, "--top-p", sampling.top_p, "keep the likeliest tokens up to this probability; 1: all", 0, 1);
  AddNumber(app, "--min-p", sampling.min_p, "keep tokens at least this likely, relative to the likeliest; 0: all", 0,
            1);
  app->add_option("--seed", sampling.seed, "of the sampling noise")->capture_default_str()->type_name("N");
  app->add_option("--method", method,
                  "coupled: the same tokens as without drafts; rejection: the same distribution (paper, eq. 10 and 11)")
      ->capture_default_str()
      ->check(CLI::IsMember({"coupled", "rejection"}));
}

SamplingOptions AnswerFlags::Sampling() const {
  SamplingOptions options = sampling;
  options.method = method == "rejection" ? SamplingMethod::kRejection : SamplingMethod::kCoupled;
  return options;
}

CLI::Validator Between(double low, double high) {
  const auto check = [low, high](const std::string& text) {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return std::string();
    std::ostringstream message;
    message << std::setprecision(10) << text << " is not a number from " << low << " to " << high;
    return message.str();
  };
  return CLI::Validator(check, "");
}

std::string OneLine(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (std::uint8_t(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

// Piece by piece: devices and pipes have no size to compare first.
Result<std::string> ReadFile(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return IoError("can't read " + path + ": it is a folder");
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  std::istream& from = path == "-" ? std::cin : file;
  std::string text;
  std::vector<char> piece(64 << 10);
  while (from && text.size() <= kMaxFileBytes) {
    from.read(piece.data(), std::streamsize(piece.size()));
    text.append(piece.data(), std::size_t(from.gcount()));
  }
  if (text.size() > kMaxFileBytes) return LimitExceeded(path + " has more than 64 MiB; give a shorter file");
  if (from.bad() || (path != "-" && !file.is_open()))
    return IoError("can't read " + path + ": " + std::strerror(errno));
  return text;
}

void AddProfile(CLI::App* app, std::string* path) {
  app->add_option("--profile", *path, "what `lynx calibrate` wrote: better anchors of codec lynx")->type_name("FILE");
}

Result<std::optional<Profile>> ReadProfile(const std::string& path) {
  if (path.empty()) return std::optional<Profile>();
  LYNX_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const auto bytes = std::as_bytes(std::span(text));
  Profile profile{{bytes.begin(), bytes.end()}};
  LYNX_RETURN_IF_ERROR(CheckLynxProfile(profile));
  return std::optional<Profile>(std::move(profile));
}

Result<std::vector<std::string>> SplitCodecs(const std::vector<std::string>& arguments) {
  std::vector<std::string> codecs;
  for (const std::string& argument : arguments) {
    std::size_t at = 0;
    while (at <= argument.size()) {
      const std::size_t end = std::min(argument.find(',', at), argument.size());
      const std::string piece = argument.substr(at, end - at);
      const auto equals = piece.find('=');
      const bool continues = !codecs.empty() && equals != std::string::npos && piece.find(':') == std::string::npos;
      if (continues) {
        codecs.back() += "," + piece;
      } else if (!piece.empty()) {
        codecs.push_back(piece);
      }
      at = end + 1;
    }
  }
  if (codecs.empty()) return Invalid("--codecs names no codec");
  return codecs;
}

Status CheckServed(std::string_view codec) {
  if (IsBaseline(codec)) {
    return Unsupported("codec " + std::string(codec) + " is a baseline, for `lynx eval quality` only");
  }
  return codec == "auto" ? Ok() : MakeCodec(codec, {ElementType::kBf16, {{.kv_heads = 1, .key_dim = 1}}}).status();
}

Status CheckWritable(const std::string& path) {
  if (path.empty()) return Ok();
  std::error_code ignored;
  const bool existed = std::filesystem::exists(path, ignored);
  if (!std::ofstream(path, std::ios::app)) return IoError("can't write " + path + ": " + std::strerror(errno));
  if (!existed) std::filesystem::remove(path, ignored);
  return Ok();
}

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return IoError("can't write " + path + ": " + std::strerror(errno));
  return Ok();
}

Status WriteJson(const std::string& path, const nlohmann::json& json) {
  if (path.empty()) return Ok();
  return WriteFile(path, json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

Result<std::vector<Token>> BuildPrompt(const Engine& engine, std::string_view document, std::string_view question,
                                       bool raw, int prompt_tokens) {
  // The template is applied to a mark, so that the document can be cut in tokens without touching what surrounds it.
  constexpr std::string_view kMark = "\x01lynx-document\x01";
  std::string around(kMark);
  if (!question.empty()) around += "\n\n" + std::string(question);
  if (!raw) {
    LYNX_ASSIGN_OR_RETURN(around, engine.ChatPrompt({{"user", around}}));
  }
  const auto at = around.find(kMark);
  if (at == std::string::npos) return EngineError("the model's chat template drops the message; use --raw");
  if (prompt_tokens == 0) return engine.Tokenize(around.replace(at, kMark.size(), document), true);
  LYNX_ASSIGN_OR_RETURN(std::vector<Token> tokens, engine.Tokenize(around.substr(0, at) + std::string(document), true));
  LYNX_ASSIGN_OR_RETURN(const std::vector<Token> tail, engine.Tokenize(around.substr(at + kMark.size()), true));
  if (int(tail.size()) >= prompt_tokens) return Invalid("--prompt-tokens is too small for the question");
  const std::size_t room = std::size_t(prompt_tokens) - tail.size();
  if (tokens.size() < room) {
    return Invalid("the prompt has only " + std::to_string(tokens.size() + tail.size()) +
                   " tokens; give a longer "
                   "--prompt-file or at most that many --prompt-tokens");
  }
  tokens.resize(room);
  tokens.insert(tokens.end(), tail.begin(), tail.end());
  return tokens;
}

}  // namespace lynx
