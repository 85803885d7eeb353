// An answer as it grows: committed text plain, drafts dim, drafts that were taken back struck through until the next
// change replaces them; behind them what is being waited for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lynx/engine.h"
#include "serve/decode_node.h"

namespace lynx {

class TerminalView : public GenerateObserver {
 public:
  // Without `live` (no terminal) only committed text is written.
  TerminalView(const Engine* engine, bool live);

  void OnText(std::string_view text) override;
  void OnTokens(const std::vector<Token>& tokens, int committed) override;
  void OnWaiting(const TransferProgress& progress) override;
  // Leaves the cursor on a new line, or where it was if no text came; drafts that still stand are erased.
  void End();

 private:
  std::string TextOf(const std::vector<Token>& tokens, std::size_t from, std::size_t to) const;
  // Erases everything behind the committed text.
  void EraseDrafts();
  // Writes drafts, what was lost and what is waited for, behind the committed text.
  void WriteTail(const std::string& lost_text);

  const Engine* engine_;
  const bool live_;
  int width_ = 80;
  int column_ = 0;      // where the committed text ends
  int draft_rows_ = 0;  // rows below that line which drafts reach
  std::vector<Token> shown_;
  int committed_ = 0;
  std::string committed_text_;  // of the committed tokens
  std::size_t text_bytes_ = 0;  // that were written
  std::string waiting_;
};

}  // namespace lynx
