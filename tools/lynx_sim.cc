// lynx-sim: seeded runs of whole systems in virtual time. Prints what broke and how to see it again.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sim/simulation.h"

namespace lynx {
namespace {

constexpr const char* kHelp =
    "Simulates prefill nodes, decode nodes, connections and clients in virtual time, with faults from a seed (cut\n"
    "connections, blackholes, stopped and killed nodes, damaged, lost, doubled and replayed frames, clients that "
    "leave),\n"
    "and checks what Lynx promises:\n"
    "  P1  no token from bytes that were not checked for checksum, epoch and request\n"
    "  P2  committed tokens equal sequential decoding on the complete cache, and are never taken back\n"
    "  P3  every request reaches exactly one terminal state, within its deadline and 2 s\n"
    "  P4  what a node holds is bounded\n"
    "  P5  no byte of a higher stream is handed to a socket while a lower one is granted and unsent\n"
    "  P6  a fault hurts only requests on its own connections\n"
    "  P7  after the end nothing is held";
constexpr const char* kFooter =
    "One run, told event by event:   lynx-sim --seed 42 --verbose\n"
    "Many:                           lynx-sim --seeds 20000 --jobs 2\n"
    "Exit code: 0 all promises were kept, 1 one was broken or a fault never happened, 2 wrong arguments.";
// With this many seeds every fault and every outcome happens.
constexpr std::uint64_t kEnoughSeeds = 2000;

void PrintBroken(std::uint64_t seed, const SimReport& report) {
  for (const std::string& violation : report.violations) {
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), violation.c_str());
  }
  std::printf("  see it again: lynx-sim --seed %llu --verbose\n", static_cast<unsigned long long>(seed));
}

int RunOne(std::uint64_t seed, bool verbose) {
  const auto print = [](std::string_view line) { std::printf("%.*s\n", int(line.size()), line.data()); };
  const SimReport report = verbose ? Simulate(seed, print) : Simulate(seed);
  if (!report.violations.empty()) {
    PrintBroken(seed, report);
    return 1;
  }
  std::printf("seed %llu: all promises kept, %llu events\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(report.events));
  return 0;
}

struct Sum {
  std::atomic<std::uint64_t> next = 0;  // seeds that were begun
  std::mutex mutex;
  std::uint64_t done = 0;
  std::uint64_t broken = 0;
  std::uint64_t events = 0;
  SeenCounts counts{};
};

void RunShare(std::uint64_t first, std::uint64_t count, Sum* sum) {
  constexpr std::uint64_t kMostPrinted = 10;
  for (std::uint64_t i = sum->next++; i < count; i = sum->next++) {
    const SimReport report = Simulate(first + i);
    const std::lock_guard lock(sum->mutex);
    for (std::size_t seen = 0; seen < kSeenCount; ++seen) sum->counts[seen] += report.counts[seen];
    sum->events += report.events;
    if (!report.violations.empty() && ++sum->broken <= kMostPrinted) PrintBroken(first + i, report);
    ++sum->done;
    if (sum->done * 10 / count != (sum->done - 1) * 10 / count) {
      std::printf("%llu of %llu seeds, %llu broken\n", static_cast<unsigned long long>(sum->done),
                  static_cast<unsigned long long>(count), static_cast<unsigned long long>(sum->broken));
      std::fflush(stdout);
    }
  }
}

int RunMany(std::uint64_t first, std::uint64_t count, int jobs) {
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1));
  Sum sum;
  std::vector<std::thread> threads;
  for (int job = 0; job < jobs; ++job) threads.emplace_back(RunShare, first, count, &sum);
  for (std::thread& thread : threads) thread.join();
  int never = 0;
  for (std::size_t seen = 0; seen < kSeenCount; ++seen) {
    std::printf("  %9llu  %s\n", static_cast<unsigned long long>(sum.counts[seen]), SeenName(Seen(seen)).data());
    never += sum.counts[seen] == 0 ? 1 : 0;
  }
  std::printf("%llu seeds, %llu events, %llu broken\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(sum.events), static_cast<unsigned long long>(sum.broken));
  if (never > 0 && count >= kEnoughSeeds) std::printf("%d of these never happened: the runs prove too little\n", never);
  return sum.broken > 0 || (never > 0 && count >= kEnoughSeeds) ? 1 : 0;
}

}  // namespace
}  // namespace lynx

int main(int argc, char** argv) {
  CLI::App app{lynx::kHelp};
  app.footer(lynx::kFooter);
  std::uint64_t seed = 0, first = 1, seeds = 0;
  bool verbose = false, fresh = false;
  int jobs = 1;
  CLI::Option* one = app.add_option("--seed", seed, "run this seed");
  app.add_flag("--verbose", verbose, "tell every event, with its virtual time")->needs(one);
  CLI::Option* many = app.add_option("--seeds", seeds, "run so many seeds")->excludes(one)->check(CLI::PositiveNumber);
  app.add_option("--first", first, "the first of them")->needs(many)->capture_default_str();
  app.add_flag("--fresh", fresh, "begin with a seed from the clock")->needs(many);
  app.add_option("--jobs", jobs, "threads")->needs(many)->check(CLI::Range(1, 64))->capture_default_str();
  try {
    app.parse(argc, argv);
    if (one->count() + many->count() == 0) throw CLI::RequiredError("--seed or --seeds");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (fresh) first = std::uint64_t(std::chrono::system_clock::now().time_since_epoch().count());
  return one->count() > 0 ? lynx::RunOne(seed, verbose) : lynx::RunMany(first, seeds, jobs);
}
