// Threads that encode or decode pages: tasks begin in the order in which they were posted; with one thread they also
// end in it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lynx {

inline constexpr int kMaxCodecThreads = 256;

class CodecThreads {
 public:
  using Scratch = std::vector<std::byte>;  // of the thread that runs the task; grows as needed
  using Task = std::function<void(Scratch& scratch)>;

  // threads: 1…kMaxCodecThreads.
  CodecThreads(int threads, std::size_t max_queued) : max_queued_(max_queued) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
  }
  // Runs what is queued, then ends.
  ~CodecThreads() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  CodecThreads(const CodecThreads&) = delete;
  CodecThreads& operator=(const CodecThreads&) = delete;

  // Waits while max_queued tasks are waiting.
  void Post(Task task) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return tasks_.size() < max_queued_; });
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }

 private:
  void Loop() {
    Scratch scratch;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      changed_.notify_all();
      task(scratch);
      task = nullptr;
      lock.lock();
    }
  }

  const std::size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lynx
