// One thread that runs tasks in order, with a bounded queue.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace lynx {

class Worker {
 public:
  explicit Worker(std::size_t max_queued) : max_queued_(max_queued), thread_([this] { Loop(); }) {}
  // Runs what is queued, then ends.
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Waits while max_queued tasks are waiting.
  void Post(std::function<void()> task) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return tasks_.size() < max_queued_; });
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      changed_.notify_all();
      task();
      task = nullptr;
      lock.lock();
    }
  }

  const std::size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace lynx
