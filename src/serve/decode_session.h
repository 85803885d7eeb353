// One request on the decode node, sans-IO: what arrived goes in, what to do comes out. Page streams are checked and
// counted here, page by page they become jobs for the codec, complete streams become events of the Speculator. No
// sockets, clock, threads, engine or codec calls inside.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "base/seeded_bug.h"
#include "lynx/codec.h"
#include "lynx/page.h"
#include "lynx/speculate.h"
#include "lynx/transfer.h"
#include "serve/transfer_progress.h"

namespace lynx {

// Decode the page from `streams` (a prefix) into the staging block.
struct PageJob {
  PageAddress address;
  int level = 0;  // the last stream of the prefix
  std::vector<SharedBytes> streams;
};

class DecodeSession {
 public:
  // Tokens [first_token, speculation.prompt_tokens) of `shape` will arrive in pages of the codec; stream_count is taken
  // from the codec. With keep_streams every page stream is kept for Received().
  DecodeSession(const CacheShape& shape, const CodecInfo& codec, SpeculatorConfig speculation, bool keep_streams,
                int first_token = 0);

  // --- from the network; an error means: abort the transfer ---
  Status OnOffer(const TransferOffer& offer);
  Status OnPrefillDone(Token token0, bool end_of_text);
  Status OnPage(int stream, const PageAddress& address, SharedBytes bytes);
  Status OnStreamCompleted(int stream);

  // --- to and from the codec ---
  // A page that can be decoded now. Pages of stream k+1 wait until stream k is in the engine's cache: the staging block
  // never mixes two qualities while the engine reads it.
  std::optional<PageJob> NextPageJob();
  Status OnPageDecoded(const PageAddress& address, int level);

  // --- to and from the engine: the Speculator's events and actions ---
  Status On(const SpeculatorEvent& event);
  // May make pages decodable: a stream that the Speculator has no use for is passed over once a later one is complete.
  SpeculatorAction Next();

  const Speculator& speculator() const { return speculator_; }
  int last_stream() const { return codec_.stream_count - 1; }
  TransferProgress Progress() const { return {false, streams_completed_, bytes_received_, bytes_offered_}; }
  bool AllStreamsReceived() const { return streams_completed_ == codec_.stream_count; }
  // Bytes of page streams held now.
  std::uint64_t bytes_held() const { return bytes_held_; }
  // Everything received, by page, stream 0 first. Requires keep_streams.
  std::map<PageAddress, std::vector<SharedBytes>> Received() const;

 private:
  struct PageState {
    std::vector<SharedBytes> streams;
    int decoded = -1;
    bool in_work = false;
  };

  // Tells the Speculator when a stream is complete and decoded.
  Status ReportReadyStream();
  void Stage(int level);
  // All of stream level_ is decoded: the staging block may be written to the engine.
  bool StagingWhole() const {
    if (kSeededBug == SeededBug::kAppliedEarly) return decoded_at_level_ >= int(pages_.size() + 1) / 2;
    return streams_completed_ > level_ && decoded_at_level_ == int(pages_.size());
  }
  // From now on pages of `level` are decoded.
  void StartLevel(int level);

  const CacheShape shape_;
  const CodecInfo codec_;
  const int first_token_;
  const int token_count_;
  const bool keep_streams_;
  Speculator speculator_;
  std::map<PageAddress, PageState> pages_;
  std::vector<PageAddress> waiting_;  // pages whose next stream may be decodable
  std::vector<int> arrived_;          // page streams, per stream
  int level_ = 0;                     // the stream that is being staged
  int decoded_at_level_ = 0;
  bool refining_ = false;  // the engine reads the staging block
  int streams_completed_ = 0;
  int streams_reported_ = 0;
  bool passed_over_ = false;  // the newest ready stream is not in the engine's cache and won't be
  std::uint64_t bytes_offered_ = 0;
  std::uint64_t bytes_received_ = 0;
  std::uint64_t bytes_held_ = 0;
};

}  // namespace lynx
