#include "terminal_view.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace lynx {
namespace {

constexpr const char* kDim = "\033[2m";
constexpr const char* kStruck = "\033[2;9;31m";

void WriteStyled(const std::string& text, const char* style) {
  if (!text.empty()) std::printf("%s%s\033[0m", style, text.c_str());
}

// Nothing that moves the cursor.
std::string Visible(std::string_view text) {
  std::string visible(text);
  std::erase_if(visible, [](char c) { return (std::uint8_t(c) < 0x20 && c != '\n') || c == 0x7f; });
  return visible;
}

// Rows the cursor goes down when `text` is written from `*column`; *column becomes the new column.
int Advance(const std::string& text, int width, int* column) {
  int rows = 0;
  for (const char c : text) {
    if (c == '\n') {
      ++rows;
      *column = 0;
      continue;
    }
    if ((static_cast<unsigned char>(c) & 0xc0) == 0x80) continue;  // inside a UTF-8 character
    if (*column == width) {
      ++rows;
      *column = 0;
    }
    ++*column;
  }
  return rows;
}

}  // namespace

TerminalView::TerminalView(const Engine* engine, bool live) : engine_(engine), live_(live) {
  winsize size{};
  if (live && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) width_ = size.ws_col;
}

std::string TerminalView::TextOf(const std::vector<Token>& tokens, std::size_t from, std::size_t to) const {
  std::string text;
  for (std::size_t i = from; i < to; ++i) text += engine_->TokenText(tokens[i]);
  return text;
}

void TerminalView::EraseDrafts() {
  if (draft_rows_ > 0) std::printf("\033[%dA", draft_rows_);
  std::printf("\r");
  if (column_ == width_) {
    std::printf("\033[%dC ", width_ - 1);  // past the last column: the next character wraps
    std::printf("\b");
  } else if (column_ > 0) {
    std::printf("\033[%dC", column_);
  }
  if (column_ < width_) std::printf("\033[J");
  draft_rows_ = 0;
}

// Committed text that may still be the beginning of a stop string looks like a draft.
void TerminalView::WriteTail(const std::string& lost_text) {
  const std::string held = committed_text_.substr(std::min(text_bytes_, committed_text_.size()));
  const std::string drafts = Visible(held + TextOf(shown_, std::size_t(committed_), shown_.size()));
  const std::string lost = Visible(lost_text);
  const std::string waiting = waiting_.empty() ? "" : " [" + waiting_ + "]";
  WriteStyled(drafts, kDim);
  WriteStyled(lost, kStruck);
  WriteStyled(waiting, kDim);
  int column = column_;
  draft_rows_ = Advance(drafts + lost + waiting, width_, &column);
}

void TerminalView::OnText(std::string_view text) {
  text_bytes_ += text.size();
  if (live_) {
    const std::string visible = Visible(text);
    EraseDrafts();
    std::fputs(visible.c_str(), stdout);
    Advance(visible, width_, &column_);
  } else {
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  std::fflush(stdout);
}

void TerminalView::OnTokens(const std::vector<Token>& tokens, int committed) {
  if (!live_) return;
  committed_text_ += TextOf(tokens, std::size_t(committed_), std::size_t(committed));
  committed_ = committed;
  // What stood and no longer does: drafts behind the first difference.
  const auto same = std::mismatch(shown_.begin(), shown_.end(), tokens.begin(), tokens.end()).first - shown_.begin();
  const std::string lost = TextOf(shown_, std::max(std::size_t(same), std::size_t(committed)), shown_.size());
  shown_ = tokens;
  EraseDrafts();
  waiting_.clear();
  WriteTail(lost);
  std::fflush(stdout);
}

void TerminalView::OnWaiting(const TransferProgress& progress) {
  if (!live_) return;
  std::string waiting = "the prefill node reads the prompt";
  if (progress.prompt_read && progress.bytes_expected > 0) {
    const auto percent = 100 * progress.bytes_received / progress.bytes_expected;
    waiting = (progress.stream == 0 ? "stream 0 on its way, " : "drafts wait for the rest, ") +
              std::to_string(percent) + " % of the cache is here";
  }
  if (waiting == waiting_) return;
  EraseDrafts();
  waiting_ = std::move(waiting);
  WriteTail("");
  std::fflush(stdout);
}

void TerminalView::End() {
  if (live_) EraseDrafts();
  if (text_bytes_ > 0) std::printf("\n");
  std::fflush(stdout);
}

}  // namespace lynx
