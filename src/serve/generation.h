// A DecodeSession between its three threads: the network brings pages, codec threads decode them into the staging
// block, the engine thread asks what to do next. Everything is behind one mutex that no slow call holds.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lynx/codec.h"
#include "lynx/engine.h"
#include "lynx/transfer.h"
#include "serve/codec_threads.h"
#include "serve/decode_session.h"
#include "serve/kept_conversations.h"
#include "serve/transfer_progress.h"

namespace lynx {

// What the network told about one transfer, on the clock of the caller.
struct TransferRecord {
  TimeNs first_grant = 0;
  TimeNs prefill_done = 0;
  PrefillDone prefill;
  std::vector<TimeNs> stream_done;               // the last page of each stream arrived; 0: it did not
  std::vector<std::uint64_t> stream_bytes;       // page streams
  std::vector<std::uint64_t> stream_wire_bytes;  // with framing
  bool operator==(const TransferRecord&) const = default;
};

// `kept` is what the sequence begins with: only the tokens behind it arrive. `token0`, when given, was shown already,
// from an earlier try: whatever the prefill node chooses now, it stays.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(const EngineInfo& engine, std::shared_ptr<const Codec> codec, const SpeculatorConfig& speculation,
             bool keep_streams, CodecThreads* codec_threads, std::function<void()> wake, KeptPrefix kept = {},
             std::optional<Token> token0 = {});

  // --- network thread ---
  void OnEvent(TransferNode& node, TransferEvent event, TimeNs now, const Engine& engine);

  // --- engine thread ---
  // The next action; `wake` is called, on any thread, when there may be another. An error when the transfer failed
  // before the last stream was complete.
  Result<SpeculatorAction> Next();
  Status On(const SpeculatorEvent& event);
  // Drafts allowed by the estimate of the last stream's arrival, for drafts that take `step`.
  void UpdateWindow(TimeNs now, TimeNs step, int max_drafts);

  TransferProgress Progress() const;
  // Of the page streams, estimated: in all, and what has not arrived.
  std::uint64_t anchor_bytes() const { return expected_anchor_bytes_; }
  std::uint64_t all_bytes() const { return expected_bytes_; }
  std::uint64_t AnchorBytesLeft() const;
  std::uint64_t AllBytesLeft() const;
  // Of the connection, as last seen; 0: not known.
  double rate_bps() const;

  // Until the end.
  const KeptPrefix& kept() const { return kept_; }
  // The staging block, of the tokens that arrive: whole and at rest between a Refine action and its Refined event.
  const CacheBlock& staging() const { return *staging_; }
  // Frees the staging block once the last stream is refined.
  void FreeStaging() { staging_.reset(); }

  const CodecInfo& codec() const { return codec_->info(); }
  int last_stream() const { return codec_->info().stream_count - 1; }
  // Most bytes of page streams held at a time.
  std::uint64_t peak_held_bytes() const;

  // Copies, for display and the report.
  std::vector<Token> Tokens(int* committed) const;
  TransferRecord Record() const;
  void Counts(int* drafted, int* accepted) const;
  std::map<PageAddress, std::vector<SharedBytes>> Received() const;

 private:
  Status Take(TransferNode& node, TransferEvent& event, TimeNs now, const Engine& engine);
  Status CheckOffer(const TransferOffer& offer) const;
  std::vector<PageAddress> Pages() const;
  TransferProgress Estimate() const;
  void PostJobs();
  void Decode(const PageJob& job, CodecThreads::Scratch* scratch);
  void Fail(Status status);

  const CacheShape shape_;
  const std::shared_ptr<const Codec> codec_;
  const KeptPrefix kept_;
  const int tokens_;  // that arrive
  CodecThreads* const codec_threads_;
  const std::function<void()> wake_;
  const std::optional<Token> token0_;
  std::uint64_t expected_bytes_ = 0;  // of all streams
  std::uint64_t expected_anchor_bytes_ = 0;

  mutable std::mutex mutex_;
  DecodeSession session_;
  std::unique_ptr<CacheBlock> staging_;
  TransferRecord record_;
  std::uint64_t peak_held_bytes_ = 0;
  std::optional<double> rate_bps_;
  Status failure_;
};

}  // namespace lynx
