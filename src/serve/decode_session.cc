#include "serve/decode_session.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/status_macros.h"

namespace lynx {
namespace {

SpeculatorConfig WithStreams(SpeculatorConfig config, int stream_count) {
  config.stream_count = stream_count;
  return config;
}

std::string Describe(const PageAddress& address) {
  return "layer " + std::to_string(address.layer) + (address.kind == KvKind::kKey ? " K" : " V") + ", tokens " +
         std::to_string(address.first_token) + "+" + std::to_string(address.token_count);
}

}  // namespace

DecodeSession::DecodeSession(const CacheShape& shape, const CodecInfo& codec, SpeculatorConfig speculation,
                             bool keep_streams, int first_token)
    : shape_(shape),
      codec_(codec),
      first_token_(first_token),
      token_count_(speculation.prompt_tokens - first_token),
      keep_streams_(keep_streams),
      speculator_(WithStreams(speculation, codec.stream_count)),
      arrived_(codec.stream_count) {
  for (const PageAddress& address :
       PagesOf(shape, first_token_, token_count_, codec.page_tokens, codec.heads_per_page)) {
    pages_[address].streams.resize(codec.stream_count);
  }
}

Status DecodeSession::OnOffer(const TransferOffer& offer) {
  if (int(offer.stream_count) != codec_.stream_count) {
    return Unsupported("offer has " + std::to_string(offer.stream_count) + " streams, the codec " + codec_.spec +
                       " has " + std::to_string(codec_.stream_count));
  }
  if (int(offer.first_token) != first_token_ || int(offer.token_count) != token_count_) {
    return Corrupt("offer is for tokens " + std::to_string(offer.first_token) + "+" +
                   std::to_string(offer.token_count) + ", wanted are " + std::to_string(first_token_) + "+" +
                   std::to_string(token_count_));
  }
  bytes_offered_ = std::accumulate(offer.max_bytes.begin(), offer.max_bytes.end(), std::uint64_t{0});
  return Ok();
}

Status DecodeSession::OnPrefillDone(Token token0, bool end_of_text) {
  return speculator_.On(Token0{token0, end_of_text});
}

Status DecodeSession::OnPage(int stream, const PageAddress& address, SharedBytes bytes) {
  const auto found = pages_.find(address);
  if (found == pages_.end() || stream < 0 || stream >= codec_.stream_count) {
    return Corrupt("page " + Describe(address) + ", stream " + std::to_string(stream) + " is not part of the transfer");
  }
  SharedBytes& slot = found->second.streams[stream];
  if (slot) return Corrupt("page " + Describe(address) + ", stream " + std::to_string(stream) + " came twice");
  bytes_received_ += bytes->size();
  bytes_held_ += bytes->size();
  slot = std::move(bytes);
  ++arrived_[stream];
  if (stream == level_) waiting_.push_back(address);
  return Ok();
}

Status DecodeSession::OnStreamCompleted(int stream) {
  if (stream != streams_completed_) return Corrupt("streams completed out of order");
  if (arrived_[stream] != int(pages_.size())) {
    return Corrupt("stream " + std::to_string(stream) + " ended after " + std::to_string(arrived_[stream]) + " of " +
                   std::to_string(pages_.size()) + " pages");
  }
  ++streams_completed_;
  return ReportReadyStream();
}

std::optional<PageJob> DecodeSession::NextPageJob() {
  while (!waiting_.empty()) {
    const PageAddress address = waiting_.back();
    waiting_.pop_back();
    PageState& page = pages_.at(address);
    if (page.in_work || page.decoded >= level_) continue;
    page.in_work = true;
    // Lower streams are all here: level_ rises only when they are complete.
    return PageJob{address, level_, {page.streams.begin(), page.streams.begin() + level_ + 1}};
  }
  return std::nullopt;
}

Status DecodeSession::OnPageDecoded(const PageAddress& address, int level) {
  PageState& page = pages_.at(address);
  page.in_work = false;
  page.decoded = level;
  ++decoded_at_level_;
  if (level == last_stream() && !keep_streams_) {
    for (SharedBytes& stream : page.streams) {
      bytes_held_ -= stream->size();
      stream = std::make_shared<const std::vector<std::byte>>();  // still there, so that a second copy is refused
    }
  }
  return ReportReadyStream();
}

Status DecodeSession::ReportReadyStream() {
  if (!StagingWhole()) return Ok();
  passed_over_ = false;
  for (; streams_reported_ <= level_; ++streams_reported_) {
    LYNX_RETURN_IF_ERROR(speculator_.On(StreamReady{streams_reported_}));
  }
  return Ok();
}

Status DecodeSession::On(const SpeculatorEvent& event) {
  // A stream that was passed over can't be refined any more, so no draft may begin on it.
  const bool no_drafts = passed_over_ && std::holds_alternative<DraftWindow>(event);
  LYNX_RETURN_IF_ERROR(speculator_.On(no_drafts ? SpeculatorEvent(DraftWindow{0}) : event));
  if (const Refined* refined = std::get_if<Refined>(&event)) Stage(refined->stream + 1);
  return Ok();
}

SpeculatorAction DecodeSession::Next() {
  SpeculatorAction action = speculator_.Next();
  // Waiting beside a ready stream: nothing is to be drafted on it, so the next one is staged at once.
  if (std::holds_alternative<Wait>(action) && streams_reported_ > level_ && level_ < last_stream()) {
    passed_over_ = true;
    Stage(level_ + 1);
  }
  return action;
}

// Begins to decode pages with the streams up to `level`; what is complete already need not pass one by one.
void DecodeSession::Stage(int level) {
  if (level > last_stream()) return;
  level_ = std::max(level, streams_completed_ - 1);
  decoded_at_level_ = 0;
  waiting_.clear();
  for (const auto& [address, page] : pages_) {
    if (page.streams[level_]) waiting_.push_back(address);
  }
}

std::map<PageAddress, std::vector<SharedBytes>> DecodeSession::Received() const {
  std::map<PageAddress, std::vector<SharedBytes>> received;
  for (const auto& [address, page] : pages_) received[address] = page.streams;
  return received;
}

}  // namespace lynx
