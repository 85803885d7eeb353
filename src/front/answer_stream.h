// Turns the states of an answer into server-sent events.
#pragma once

#include <string>
#include <vector>

#include "front/answer_run.h"
#include "front/api_reply.h"

namespace lynx {

class AnswerStream {
 public:
  struct Options {
    bool include_usage = false;
    bool drafts = false;
  };
  // `engine` gives the text of drafts.
  AnswerStream(const Engine* engine, ReplyHead head, const Options& options)
      : engine_(engine), head_(std::move(head)), options_(options) {}

  // What is sent before anything else.
  std::string Begin() const;
  // What is sent when the answer looks like this; may be empty.
  std::string Next(const AnswerRun::State& state);
  // The last events; everything that Next was given has been sent.
  std::string End(const Result<GenerateResult>& result) const;

 private:
  std::string DraftEvents(const AnswerRun::State& state);
  // The whole characters in the first `count` tokens that are shown: what the text of tokens is cut from.
  std::size_t TextBytes(std::size_t count) const;

  const Engine* const engine_;
  const ReplyHead head_;
  const Options options_;
  // What a client that sees drafts has.
  std::vector<Token> tokens_;
  std::vector<std::size_t> ends_;  // of the tokens in text_
  std::string text_;
  std::size_t committed_ = 0;
};

}  // namespace lynx
